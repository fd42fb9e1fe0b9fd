"""One running server of OpenCode: its process, its API, its events on their way to the sessions."""

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentstream.v1 import error_pb2
from agentstreamd.adapters.base import AgentExit, AgentFailed
from agentstreamd.adapters.last_words import LastWords
from agentstreamd.adapters.opencode.api import Api, Refused, Unreachable
from agentstreamd.adapters.opencode.calls import Call
from agentstreamd.adapters.opencode.launch import Plan
from agentstreamd.adapters.opencode.native import Unreadable, decode, dict_in, text_in
from agentstreamd.process import (
    ChildProcess,
    ExitStatus,
    LineFramer,
    ProcessHost,
    ProcessSpec,
    StopPolicy,
)

_log = logging.getLogger(__name__)

_READY = "listening on "


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds.

    Attributes:
        start_seconds: From the start of the process until it listens and its events can be read.
        request_seconds: Until a request is answered.
        silence_seconds: Without any event, heartbeats included (one every ten), until the stream is
            taken for dead and opened anew.
        dead_seconds: Without an event stream until the server is taken for dead and killed.
        reconnect_seconds: Between two attempts to open the event stream.
        taken_seconds: After a message was accepted until the server must work on it.
        settle_seconds: After a turn seems over until what is missing of its end is fetched.
        abort_seconds: Until a turn that is stopped has ended.
        linger_seconds: After its last session let go of a server until it is stopped.
        term_seconds: From TERM to KILL.
        sweep_seconds: From TERM to KILL of what the server leaves running.
    """

    start_seconds: float = 60.0
    request_seconds: float = 30.0
    silence_seconds: float = 35.0
    dead_seconds: float = 30.0
    reconnect_seconds: float = 0.2
    taken_seconds: float = 30.0
    settle_seconds: float = 2.0
    abort_seconds: float = 10.0
    linger_seconds: float = 10.0
    term_seconds: float = 2.0
    sweep_seconds: float = 1.0


class Listener:
    """A session that a server works for. A base to derive from."""

    async def on_event(self, native: bytes) -> None:
        """An event of the session or of one of its sub-agents. Waits while it can't take more."""
        raise NotImplementedError

    async def on_reconnected(self) -> None:
        """The event stream broke and is back: events may be missing."""
        raise NotImplementedError

    async def on_gone(self, exit: AgentExit) -> None:
        """The server is gone; all its events were handed over."""
        raise NotImplementedError


class Server:
    """A server; made by `start`.

    Attributes:
        api: Its API.
        leases: How many sessions count on it.
        on_end: Told once when it can no longer be used.
        words: What it leaves on standard error.
    """

    def __init__(self, child: ChildProcess, limits: Limits) -> None:
        self.leases = 0
        self.on_end: Callable[[], None] = lambda: None
        self.api: Api
        self.words = LastWords(child.stderr)
        self._child = child
        self._limits = limits
        self._routes: dict[str, Listener] = {}
        self._connected = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._expected = False
        self._silent = False

    @classmethod
    async def start(
        cls,
        plan: Plan,
        processes: ProcessHost,
        directory: Path,
        limits: Limits,
        via: Callable[[str], Awaitable[str]] | None = None,
    ) -> "Server":
        """Start a server and wait until it can be used.

        `via` gives another URL to reach it by. Raises `AgentFailed` and `ProcessError`.
        """
        password = secrets.token_urlsafe(32)
        child = await processes.spawn(
            ProcessSpec(
                argv=plan.argv,
                cwd=str(directory),
                env={**plan.env, "OPENCODE_SERVER_PASSWORD": password},
                label="opencode serve",
                stop=StopPolicy(
                    term_grace_seconds=limits.term_seconds,
                    sweep_grace_seconds=limits.sweep_seconds,
                ),
            )
        )
        server = cls(child, limits)
        try:
            child.close_stdin()
            async with asyncio.timeout(limits.start_seconds):
                # A request before this line would never be answered.
                url = await server._listening()
                if via is not None:
                    url = await via(url)
                server.api = Api(url, password, request_seconds=limits.request_seconds)
                server._ending = asyncio.create_task(server._watch())
                server._reader = asyncio.create_task(server._read())
                await server._connected.wait()
        except (TimeoutError, AgentFailed) as error:
            await server.stop()
            said = child.stderr.text().strip()[-2000:]
            how = "in time" if isinstance(error, TimeoutError) else f"({child.exit_status})"
            raise AgentFailed(
                f"OpenCode's server did not start {how}: {said or 'it said nothing'}",
                error_pb2.ERROR_CODE_AGENT_START_FAILED,
            ) from error
        except BaseException:
            child.kill()
            raise
        return server

    @property
    def alive(self) -> bool:
        """It runs, as far as it is known."""
        return self._child.exit_status is None and not self._expected and not self._silent

    async def call(self, call: Call, directory: str, *, seconds: float | None = None) -> Any:
        """Make a request; see `Api.call`."""
        return await self.api.call(call, directory, seconds=seconds)

    def attach(self, session_id: str, listener: Listener) -> None:
        """Have the events of a native session go to `listener`."""
        self._routes[session_id] = listener

    def detach(self, listener: Listener) -> None:
        """Send nothing more to `listener`."""
        self._routes = {name: to for name, to in self._routes.items() if to is not listener}

    def kill(self) -> None:
        """It does not answer any more: end it; its sessions are told."""
        self._silent = True
        self._child.kill()

    async def stop(self) -> None:
        """End it and all that it started. Bounded in time, idempotent."""
        self._expected = True
        await self._child.stop()
        if self._ending is not None:
            await asyncio.wait({self._ending})

    # --- the process ---------------------------------------------------------------------------

    async def _listening(self) -> str:
        """The URL of the line that says that it listens. Raises `AgentFailed` when it ends."""
        framer = LineFramer(skip_empty=True)
        while chunk := await self._child.stdout.read():
            for line in framer.feed(chunk):
                text = line.decode("utf-8", "replace") if isinstance(line, bytes) else ""
                _, found, url = text.partition(_READY)
                if found and urlsplit(url.strip()).scheme == "http":
                    return url.strip()
        await self._child.wait_gone()
        raise AgentFailed("the server ended")

    async def _watch(self) -> None:
        """Wait for the end of the process, and tell."""
        draining = asyncio.create_task(self._drain())
        await self._child.wait_gone()
        draining.cancel()
        if self._reader is not None:
            # What it wrote before it ended is still in the socket.
            await asyncio.wait({self._reader}, timeout=self._limits.request_seconds)
            self._reader.cancel()
        self.on_end()
        exit = self._exit()
        # Not one after the other: one whose stream can't take more must not hold up the others.
        told = (listener.on_gone(exit) for listener in set(self._routes.values()))
        for failure in await asyncio.gather(*told, return_exceptions=True):
            if failure is not None:
                _log.error("a session was not told that OpenCode's server is gone: %r", failure)
        self._routes.clear()
        await self.api.close()

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while await self._child.stdout.read():
                pass

    def _exit(self) -> AgentExit:
        status = self._child.exit_status or ExitStatus(signal=signal.SIGKILL)
        message = f"OpenCode's server ended ({status})."
        code = error_pb2.ERROR_CODE_AGENT_EXITED
        if self._silent:
            message = "OpenCode's server did not answer any more and was stopped."
            code = error_pb2.ERROR_CODE_AGENT_PROTOCOL
        if not self._expected:
            self.words.log(str(self._child))
        return AgentExit(
            expected=self._expected,
            exit_code=status.code,
            signal=status.signal,
            stderr_head=self.words.head(),
            stderr_tail=self.words.tail(),
            message=message,
            code=code,
        )

    # --- events --------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read events as long as the process lives, over any number of connections."""
        loop = asyncio.get_running_loop()
        limits = self._limits
        last = loop.time()
        first = True
        while True:
            try:
                # Ends with the heartbeats, so a server that only accepts connections is found out.
                async for native in self.api.events(silence_seconds=limits.silence_seconds):
                    last = loop.time()
                    if not self._connected.is_set():
                        self._connected.set()
                        if not first:
                            await self._tell_reconnected()
                        first = False
                    await self._route(native)
            except Unreachable as error:
                _log.info("%s", error)
            except Refused as error:
                _log.warning("OpenCode refuses its events: %s", error)
            except Exception:
                _log.exception("OpenCode's events could not be handed over")
            self._connected.clear()
            if self._child.exit_status is not None:
                return
            if loop.time() - last > limits.silence_seconds + limits.dead_seconds:
                _log.error("%s is silent; it is killed", self._child)
                self.kill()
                return
            await asyncio.sleep(limits.reconnect_seconds)

    async def _tell_reconnected(self) -> None:
        for listener in set(self._routes.values()):
            await listener.on_reconnected()

    async def _route(self, native: bytes) -> None:
        try:
            said = decode(native)
        except Unreadable:
            for each in set(self._routes.values()):
                await each.on_event(native)
            return
        if said.is_noise:
            return
        session_id = said.session_id
        listener: Listener | None = self._routes.get(session_id)
        if listener is None and said.type == "session.created":
            parent = text_in(dict_in(said.properties, "info"), "parentID")
            listener = self._routes.get(parent)
            if listener is not None:
                self._routes[session_id] = listener
        if listener is not None:
            await listener.on_event(native)
        elif not session_id and said.type != "session.error":
            # It belongs to nobody in particular and is of no known kind.
            for each in set(self._routes.values()):
                await each.on_event(native)
