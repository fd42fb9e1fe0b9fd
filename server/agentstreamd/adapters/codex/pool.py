"""The servers of a daemon: one for each environment, started on first use, shared by sessions."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from agentstreamd.adapters.codex.launch import ServerSpec
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.server import AppServer
from agentstreamd.process import ProcessHost, ProcessSpec, StopPolicy

_log = logging.getLogger(__name__)


class Pool:
    """Servers by what they are started with. A server that nobody uses is stopped after a while."""

    def __init__(self, processes: ProcessHost, directory: Path, limits: Limits) -> None:
        """Start servers in `directory`."""
        self._processes = processes
        self._directory = directory
        self._limits = limits
        self._servers: dict[ServerSpec, AppServer] = {}
        self._locks: dict[ServerSpec, asyncio.Lock] = {}
        self._users: dict[AppServer, int] = {}
        self._running: set[AppServer] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def acquire(self, spec: ServerSpec) -> AppServer:
        """A running server, of which the caller must let go by `release`.

        Raises `AgentFailed` and ProcessError.
        """
        async with self._locks.setdefault(spec, asyncio.Lock()):  # one start, however many ask
            server = self._servers.get(spec)
            if server is None or not server.alive:
                server = self._servers[spec] = await self._start(spec)
            self._users[server] = self._users.get(server, 0) + 1
            return server

    def release(self, server: AppServer) -> None:
        """The caller of `acquire` needs the server no more."""
        left = self._users[server] - 1
        self._users[server] = left
        if left == 0:
            task = asyncio.create_task(self._linger(server))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @contextlib.asynccontextmanager
    async def using(self, spec: ServerSpec) -> AsyncIterator[AppServer]:
        """A running server, while in this block."""
        server = await self.acquire(spec)
        try:
            yield server
        finally:
            self.release(server)

    async def close(self) -> None:
        """Stop all servers."""
        for task in list(self._tasks):
            task.cancel()
        self._servers.clear()
        stops = [self._stop(server) for server in list(self._running)]
        await asyncio.gather(*stops, return_exceptions=True)

    async def _start(self, spec: ServerSpec) -> AppServer:
        limits = self._limits
        child = await self._processes.spawn(
            ProcessSpec(
                argv=spec.argv,
                cwd=str(self._directory),
                env=dict(spec.env),
                label="codex app-server",
                stop=StopPolicy(
                    polite_grace_seconds=limits.polite_seconds,
                    term_grace_seconds=limits.term_seconds,
                    sweep_grace_seconds=limits.sweep_seconds,
                ),
            )
        )
        server = AppServer(child, limits)
        await server.start()
        self._running.add(server)
        return server

    async def _stop(self, server: AppServer) -> None:
        await server.stop()
        self._running.discard(server)

    async def _linger(self, server: AppServer) -> None:
        if server.alive:
            await asyncio.sleep(self._limits.linger_seconds)
        if self._users.get(server):
            return
        self._users.pop(server, None)
        for spec, running in list(self._servers.items()):
            if running is server:
                del self._servers[spec]
                self._locks.pop(spec, None)
        await self._stop(server)
