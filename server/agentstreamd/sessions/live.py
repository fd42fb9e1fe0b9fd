"""Sessions in memory: loaded when they are used, let go of when they have been idle."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from agentstream.v1 import session_pb2
from agentstreamd.adapters.base import Driver
from agentstreamd.events.log import SessionInfo
from agentstreamd.sessions import errors, stored
from agentstreamd.sessions.errors import SessionError, log_errors
from agentstreamd.sessions.interactions import Interactions
from agentstreamd.sessions.keyed_locks import KeyedLocks
from agentstreamd.sessions.loading import load_session
from agentstreamd.sessions.parts import Environment, SessionParts
from agentstreamd.sessions.runtime import SessionRuntime

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Live:
    """A session in memory.

    Attributes:
        runtime: The session.
        interactions: Its requests.
        users: How many calls use it now.
        idle_timer: Runs out when it has been idle for long enough.
    """

    runtime: SessionRuntime
    interactions: Interactions
    users: int = 0
    idle_timer: asyncio.TimerHandle | None = None


class LiveSessions:
    """The sessions in memory. One session is there at most once.

    Attributes:
        locks: Held, by session id, while a session is made, loaded, unloaded or deleted.
    """

    def __init__(
        self, environment: Environment, make_driver: Callable[[SessionRuntime], Driver]
    ) -> None:
        """Load sessions from the log of `environment`."""
        self.locks = KeyedLocks()
        self._env = environment
        self._make_driver = make_driver
        self._live: dict[str, Live] = {}
        # Counted as it changes: each message asks for it, and there may be thousands of sessions.
        self._running: set[str] = set()
        self._following: dict[str, int] = {}
        self._closed = False
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """How many sessions have a running turn."""
        return len(self._running)

    def __len__(self) -> int:
        """How many sessions are in memory."""
        return len(self._live)

    @asynccontextmanager
    async def use(self, session_id: str) -> AsyncIterator[Live]:
        """Hold a session in memory for the length of a call."""
        async with self.locks.hold(session_id):
            live = self._live.get(session_id)
            if live is not None and live.runtime.journal.broken and not live.users:
                await self.drop(live)
                live = None
            if live is None:
                with log_errors(session_id):
                    live = await self.load(session_id)
            live.users += 1
        try:
            yield live
        finally:
            live.users -= 1
            self.watch_idle(live)

    def add(self, parts: SessionParts) -> Live:
        """Put a session together. The caller holds its lock."""
        if self._closed:
            raise errors.draining()
        if self._env.watch is not None:
            watch = self._env.watch(parts.record.session_id, parts.config.agent)
            parts.keeper.stamper.listener = watch
        runtime = SessionRuntime(parts, self._env, self._make_driver)
        live = Live(runtime, Interactions(runtime, self._env.log))
        runtime.on_idle = lambda: self.watch_idle(live)
        runtime.recording.on_running = lambda running: self._note(live, running)
        self._live[runtime.session_id] = live
        self._tell_followers(runtime.session_id)
        return live

    async def load(self, session_id: str) -> Live:
        """Load a session, and go on where it stopped. The caller holds its lock."""
        with await self._env.log.open_reader(session_id) as reader:
            loaded = await load_session(reader, self._env)
        live = self.add(loaded.parts)
        runtime = live.runtime
        if loaded.recovered:
            ticket = runtime.recording.flush(loaded.puts, loaded.deletes)
            try:
                await runtime.recording.committed(ticket)
            except BaseException:
                await self.drop(live)
                raise
        if loaded.had_turn and not runtime.keeper.ended:
            runtime.end_one_shot()
        runtime.turns.start_queued()
        return live

    async def recover(self, session_id: str) -> None:
        """Load a session that was at work when the daemon ended."""
        async with self.locks.hold(session_id):
            if session_id not in self._live:
                self.watch_idle(await self.load(session_id))

    async def drop(self, live: Live, refusal: SessionError | None = None) -> None:
        """Let go of a session; who still waits for something of it gets `refusal`."""
        live.interactions.close()
        if live.idle_timer is not None:
            live.idle_timer.cancel()
        if self._live.get(live.runtime.session_id) is live:
            del self._live[live.runtime.session_id]
            self._running.discard(live.runtime.session_id)
        await live.runtime.unload(refusal)

    def _note(self, live: Live, running: bool) -> None:
        session_id = live.runtime.session_id
        if self._live.get(session_id) is not live:
            return
        if running:
            self._running.add(session_id)
        else:
            self._running.discard(session_id)

    def get(self, session_id: str) -> Live | None:
        """The session, if it is in memory. The caller holds its lock."""
        return self._live.get(session_id)

    async def close(self) -> None:
        """Let go of all sessions, and load none any more."""
        self._closed = True
        every = [self.drop(live) for live in list(self._live.values())]
        for failure in await asyncio.gather(*every, return_exceptions=True):
            if isinstance(failure, BaseException):
                logger.error("a session did not stop in order", exc_info=failure)
        if self._unloading:
            await asyncio.wait(self._unloading)

    # Followers

    @contextmanager
    def following(self, session_id: str) -> Iterator[None]:
        """While it is entered, somebody reads the session's stream."""
        self._following[session_id] = self._following.get(session_id, 0) + 1
        self._tell_followers(session_id)
        try:
            yield
        finally:
            self._following[session_id] -= 1
            self._tell_followers(session_id)
            if not self._following[session_id]:
                del self._following[session_id]

    def _tell_followers(self, session_id: str) -> None:
        live = self._live.get(session_id)
        if live is not None:
            live.runtime.followers = self._following.get(session_id, 0)

    # Idle sessions

    def watch_idle(self, live: Live) -> None:
        """Unload the session when it has been idle for long enough."""
        if live.idle_timer is not None:
            live.idle_timer.cancel()
            live.idle_timer = None
        runtime = live.runtime
        if self._live.get(runtime.session_id) is not live or live.users or not runtime.idle:
            return
        delay_seconds = self._env.config.idle_agent_seconds
        if runtime.keeper.ended:
            delay_seconds = 0.0
        elif not delay_seconds:
            return
        live.idle_timer = asyncio.get_running_loop().call_later(
            delay_seconds, self._on_idle_long, live
        )

    def _on_idle_long(self, live: Live) -> None:
        live.idle_timer = None
        task = asyncio.get_running_loop().create_task(self._unload(live))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, live: Live) -> None:
        runtime = live.runtime
        async with self.locks.hold(runtime.session_id):
            if live.users or not runtime.idle or self._live.get(runtime.session_id) is not live:
                return
            if await runtime.rest():
                await self.drop(live)
                return
        # The log is out, or the agent said something at the last moment.
        loop = asyncio.get_running_loop()
        live.idle_timer = loop.call_later(_AGAIN_SECONDS, self._on_idle_long, live)

    # Describing

    async def describe(self, info: SessionInfo) -> session_pb2.Session:
        """A session as answers show it; `info` has what the log knows of it."""
        live = self._live.get(info.session_id)
        if live is not None:
            return await live.runtime.describe(info.earliest, info.latest)
        shown = session_pb2.Session.FromString(info.value or b"")
        shown.earliest_sequence = info.earliest
        shown.latest_sequence = info.latest
        return shown

    async def find(self, session_id: str) -> session_pb2.Session:
        """A session as it is now. Raises SESSION_NOT_FOUND, LOG_UNAVAILABLE."""
        log = self._env.log
        with log_errors(session_id):
            # First, so that the sequences are never older than it.
            value = await log.get(session_id, stored.SESSION)
            info = await log.info(session_id)
        return await self.describe(replace(info, value=value))


_AGAIN_SECONDS = 1.0
"""How long to wait before an idle session that could not be unloaded is tried again."""
