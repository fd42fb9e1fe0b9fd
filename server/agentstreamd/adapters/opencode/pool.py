"""The servers of a daemon: one for each environment, started when needed, stopped when not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentstreamd.adapters.opencode.launch import Plan
from agentstreamd.adapters.opencode.server import Limits, Server
from agentstreamd.process import ProcessHost

_log = logging.getLogger(__name__)


class Pool:
    """Servers by `Plan.key`. A lease keeps one running."""

    def __init__(
        self,
        processes: ProcessHost,
        directory: Path,
        limits: Limits,
        via: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._processes = processes
        self._directory = directory
        self._limits = limits
        self._via = via
        self._servers: dict[str, Server] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def lease(self, plan: Plan) -> Server:
        """The server of this plan, started if there is none.

        Raises `AgentFailed` and `ProcessError`.
        """
        async with self._starting.setdefault(plan.key, asyncio.Lock()):
            server = self._servers.get(plan.key)
            if server is None or not server.alive:
                server = await Server.start(
                    plan, self._processes, self._directory, self._limits, self._via
                )
                self._servers[plan.key] = server
                server.on_end = lambda: self._forget(plan.key, server)
            server.leases += 1
            return server

    def release(self, server: Server) -> None:
        """A session no longer counts on the server."""
        server.leases -= 1
        if server.leases == 0:
            task = asyncio.create_task(self._stop_if_idle(server))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        """Stop all servers."""
        for task in self._stopping:
            task.cancel()
        servers = list(self._servers.values())
        await asyncio.gather(*(server.stop() for server in servers))

    async def _stop_if_idle(self, server: Server) -> None:
        await asyncio.sleep(self._limits.linger_seconds)
        if server.leases == 0 and server in self._servers.values():
            for key, known in list(self._servers.items()):
                if known is server:
                    del self._servers[key]  # nobody must lease what is about to end
            await server.stop()

    def _forget(self, key: str, server: Server) -> None:
        if self._servers.get(key) is server:
            del self._servers[key]
