"""All sessions of a daemon: making, finding, loading, recovering and stopping them."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import Adapter, Driver, DriverContext, ProcessHost
from agentstreamd.events.errors import (
    InvalidPageCursor,
    LogUnavailable,
    SessionNotFound,
)
from agentstreamd.events.log import EventLog, SessionInfo
from agentstreamd.sessions import errors, stored
from agentstreamd.sessions.agents import Agents, adapter_errors
from agentstreamd.sessions.checks import SESSION_ID, check_config
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.interactions import Interactions
from agentstreamd.sessions.loading import load_session, new_session, started_payload
from agentstreamd.sessions.messages import send_message, update_settings
from agentstreamd.sessions.parts import Environment, SessionParts
from agentstreamd.sessions.runtime import SessionRuntime
from agentstreamd.sessions.turns import turn_not_running

logger = logging.getLogger(__name__)

DEFAULT_PAGE = 50
MAX_PAGE = 1000


class _Live:
    """A loaded session with what belongs to it."""

    def __init__(self, runtime: SessionRuntime, interactions: Interactions) -> None:
        self.runtime = runtime
        self.interactions = interactions
        self.users = 0
        self.idle_timer: asyncio.TimerHandle | None = None


class SessionManager:
    """The sessions of one daemon, over its event log and its adapters.

    All methods raise `SessionError` for what a caller can do something about.

    Attributes:
        log: The event log, for reading events.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        adapters: Mapping[str, Adapter],
        processes: ProcessHost,
        config: SessionsConfig,
        now_ns: Callable[[], int] = time.time_ns,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Manage the sessions in `log`; `start` comes before anything else."""
        self.log = log
        self._agents = Agents(adapters)
        self._processes = processes
        self._config = config
        self._environment = Environment(log, config, now_ns, new_id)
        self._live: dict[str, _Live] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._following: dict[str, int] = {}
        self._draining = False
        self._unloading: set[asyncio.Task[None]] = set()

    # Life of the daemon

    async def start(self) -> None:
        """Close what an earlier daemon left under way, and go on with messages that wait."""
        async for info in self.log.scan(stored.SESSION):
            record = session_pb2.Session.FromString(info.value or b"")
            cut_off = info.latest != record.latest_sequence
            if record.state == session_pb2.SESSION_STATE_ENDED and not cut_off:
                continue
            waiting = await self.log.get_prefix(info.session_id, stored.queue_key(""))
            if cut_off or waiting:
                await self._recover(info.session_id)

    async def _recover(self, session_id: str) -> None:
        try:
            live = await self._load(session_id)
        except Exception:
            # One broken session must not keep the others from being served.
            logger.exception("session %s could not be recovered", session_id)
            return
        live.runtime.turns.start_queued()
        self._watch_idle(live)

    def start_draining(self) -> None:
        """Take no new work from now on."""
        self._draining = True

    async def drain(self) -> None:
        """Stop all agents and write what is left; bounded by what the drivers promise."""
        self.start_draining()
        live = list(self._live.values())
        self._live.clear()
        for one in live:
            one.interactions.close()
            if one.idle_timer is not None:
                one.idle_timer.cancel()
        await asyncio.gather(*(one.runtime.unload(stopping=True) for one in live))

    # Agents

    async def list_agents(
        self, request: service_pb2.ListAgentsRequest
    ) -> service_pb2.ListAgentsResponse:
        """The agents, by name, a page at a time."""
        return await self._agents.list(request)

    async def get_agent(self, name: str) -> agent_pb2.Agent:
        """One agent. Raises AGENT_NOT_FOUND."""
        return await self._agents.describe(name)

    # Sessions

    async def create(self, request: service_pb2.CreateSessionRequest) -> session_pb2.Session:
        """Make a session, or find the one that was made by the same call before."""
        if self._draining:
            raise errors.draining()
        config = request.config
        violations = check_config(config)
        if request.session_id and not SESSION_ID.fullmatch(request.session_id):
            violations.append(("session_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"))
        if violations:
            raise errors.invalid(*violations)
        session_id = request.session_id or f"ses_{self._environment.new_id()}"
        async with self._lock(session_id):
            existing = await self._find_made(session_id, config)
            if existing is not None:
                return existing
            return await self._make(session_id, config)

    async def _find_made(
        self, session_id: str, config: session_pb2.SessionConfig
    ) -> session_pb2.Session | None:
        try:
            created = await self._value(session_id, stored.CREATED)
        except SessionNotFound:
            return None
        if created == stored.digest(config):
            return await self._describe(session_id)
        there = await self._describe(session_id)
        wanted = stored.without_secrets(config)
        differing = [
            field.name
            for field in session_pb2.SessionConfig.DESCRIPTOR.fields
            if getattr(there.config, field.name) != getattr(wanted, field.name)
        ]
        raise errors.SessionError(
            error_pb2.ERROR_REASON_SESSION_EXISTS,
            f"session {session_id!r} exists already, made with other settings",
            {"session_id": session_id, "fields": ",".join(differing)},
        )

    async def _make(
        self, session_id: str, config: session_pb2.SessionConfig
    ) -> session_pb2.Session:
        agent = await self._agents.usable(config)
        parts = new_session(session_id, config, self._environment)
        if config.title or config.labels:
            parts.keeper.settings.take(
                event_pb2.SessionUpdated(
                    title=config.title, labels=event_pb2.Labels(labels=config.labels)
                )
            )
        live = self._put_together(parts)
        runtime = live.runtime
        try:
            with adapter_errors(config.agent):
                await runtime.seat.driver.open()
            runtime.recording.tick()
            if not runtime.keeper.started:
                runtime.keeper.start_session(started_payload(config, agent.version))
            ticket = runtime.recording.flush(
                {
                    stored.CONFIG: config.SerializeToString(),
                    stored.CREATED: stored.digest(config),
                }
            )
            await runtime.recording.committed(ticket)
        except BaseException:
            self._forget(live)
            await runtime.unload()
            raise
        self._watch_idle(live)
        return await self._describe(session_id)

    async def get(self, session_id: str) -> session_pb2.Session:
        """A session as it is now. Raises SESSION_NOT_FOUND."""
        try:
            return await self._describe(session_id)
        except SessionNotFound as error:
            raise errors.session_not_found(session_id) from error
        except LogUnavailable as error:
            raise errors.log_unavailable(error.detail) from error

    async def list(
        self, request: service_pb2.ListSessionsRequest
    ) -> service_pb2.ListSessionsResponse:
        """Sessions, oldest first, a page at a time."""
        wanted = dict(request.labels)
        size = page_size(request.page_size)
        try:
            page = await self.log.list_sessions(
                after=request.page_token, limit=size, key=stored.SESSION
            )
        except InvalidPageCursor as error:
            raise errors.SessionError(
                error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN,
                "the page token was not made by this server for this call",
                {},
                [("page_token", "is not a token of this server")],
            ) from error
        except LogUnavailable as error:
            raise errors.log_unavailable(error.detail) from error
        response = service_pb2.ListSessionsResponse(next_page_token=page.next_cursor)
        for info in page.sessions:
            shown = self._show(info)
            if request.live_only and shown.state == session_pb2.SESSION_STATE_ENDED:
                continue
            if all(shown.config.labels.get(key) == value for key, value in wanted.items()):
                response.sessions.append(shown)
        return response

    async def send(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        """Give a session's agent a message."""
        if self._draining:
            raise errors.draining()
        async with self._using(request.session_id) as live:
            agent = await self._agents.describe(live.runtime.config.agent)
            running = sum(1 for one in self._live.values() if one.runtime.keeper.turn_id)
            if running >= self._config.max_sessions_running:
                raise limit_exceeded("max_sessions_running", self._config.max_sessions_running)
            return await send_message(live.runtime, agent, request, self.log, self._config)

    async def update(self, request: service_pb2.UpdateSessionRequest) -> session_pb2.Session:
        """Change a session's settings."""
        async with self._using(request.session_id) as live:
            agent = await self._agents.describe(live.runtime.config.agent)
            await update_settings(live.runtime, agent, request)
            return await self._describe(request.session_id)

    async def interrupt(
        self, request: service_pb2.InterruptTurnRequest
    ) -> service_pb2.InterruptTurnResponse:
        """Stop a session's running turn; returns when it has ended."""
        async with self._using(request.session_id) as live:
            runtime = live.runtime
            if request.discard_queue:
                runtime.turns.discard_queue()
            running = runtime.keeper.turn_id
            if running and request.turn_id in ("", running):
                ended = await runtime.turns.interrupt()
            else:
                earlier = runtime.turns.ended_turn(request.turn_id)
                if earlier is None:
                    raise turn_not_running(request.session_id, request.turn_id)
                ended = earlier
            return service_pb2.InterruptTurnResponse(
                turn_id=ended.turn_id, sequence=ended.sequence, status=ended.status
            )

    async def end(self, session_id: str) -> session_pb2.Session:
        """End a session; returns when that is durable."""
        async with self._using(session_id) as live:
            await live.runtime.end(
                event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT, event_pb2.SESSION_ENDER_CLIENT
            )
            return await self._describe(session_id)

    async def delete(self, session_id: str) -> None:
        """End a session if need be, and forget it."""
        await self.end(session_id)
        async with self._lock(session_id):
            live = self._live.get(session_id)
            if live is not None:
                self._forget(live)
                await live.runtime.unload()
            try:
                await self.log.delete_session(session_id)
            except SessionNotFound as error:
                raise errors.session_not_found(session_id) from error
            except LogUnavailable as error:
                raise errors.log_unavailable(error.detail) from error

    async def respond(self, request: service_pb2.RespondRequest) -> service_pb2.RespondResponse:
        """Answer a request of a session's agent."""
        async with self._using(request.session_id) as live:
            return await live.interactions.respond(request)

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

    # Loading and unloading

    def _lock(self, session_id: str) -> "_SessionLock":
        return _SessionLock(self._locks, session_id)

    def _using(self, session_id: str) -> "_Use":
        return _Use(self, session_id)

    async def acquire(self, session_id: str) -> _Live:
        """The session, loaded, for the length of a call."""
        try:
            async with self._lock(session_id):
                live = self._live.get(session_id) or await self._load(session_id)
        except SessionNotFound as error:
            raise errors.session_not_found(session_id) from error
        except LogUnavailable as error:
            raise errors.log_unavailable(error.detail) from error
        live.users += 1
        return live

    def release(self, live: _Live) -> None:
        """The call is over."""
        live.users -= 1
        self._watch_idle(live)

    async def _load(self, session_id: str) -> _Live:
        with await self.log.open_reader(session_id) as reader:
            loaded = await load_session(reader, self._environment)
        live = self._put_together(loaded.parts)
        if loaded.recovered:
            await live.runtime.journal.settled(live.runtime.recording.flush())
        return live

    def _put_together(self, parts: SessionParts) -> _Live:
        runtime = SessionRuntime(parts, self._environment, self._make_driver)
        live = _Live(runtime, Interactions(runtime, self.log))
        runtime.on_idle = lambda: self._watch_idle(live)
        self._live[runtime.session_id] = live
        self._tell_followers(runtime.session_id)
        return live

    def _make_driver(self, runtime: SessionRuntime) -> Driver:
        config = runtime.config
        directory = self._config.state_directory / config.agent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        native = runtime.keeper.stamper.native_session_id or config.resume_native_session_id
        return self._agents.adapter(config.agent).driver(
            DriverContext(
                session_id=runtime.session_id,
                session_uid=runtime.uid,
                config=config,
                native_session_id=native,
                state=runtime.adapter_state,
                sink=runtime,
                processes=self._processes,
                environment=self._config.agent_environment,
                state_directory=directory,
            )
        )

    def _watch_idle(self, live: _Live) -> None:
        """Unload the session when it has been idle for long enough."""
        if live.idle_timer is not None:
            live.idle_timer.cancel()
            live.idle_timer = None
        runtime = live.runtime
        if self._live.get(runtime.session_id) is not live or live.users or not runtime.idle:
            return
        if runtime.keeper.ended:
            delay_seconds = 0.0
        elif self._config.idle_agent_seconds:
            delay_seconds = self._config.idle_agent_seconds
        else:
            return
        live.idle_timer = asyncio.get_running_loop().call_later(
            delay_seconds, self._on_idle_long, live
        )

    def _on_idle_long(self, live: _Live) -> None:
        live.idle_timer = None
        if live.users or not live.runtime.idle:
            return
        task = asyncio.get_running_loop().create_task(self._unload(live))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, live: _Live) -> None:
        runtime = live.runtime
        async with self._lock(runtime.session_id):
            if live.users or not runtime.idle or self._live.get(runtime.session_id) is not live:
                return
            self._forget(live)
            await runtime.unload()

    def _forget(self, live: _Live) -> None:
        live.interactions.close()
        if live.idle_timer is not None:
            live.idle_timer.cancel()
        self._live.pop(live.runtime.session_id, None)

    # Describing

    async def _value(self, session_id: str, key: str) -> bytes:
        return await self.log.get(session_id, key) or b""

    async def _describe(self, session_id: str) -> session_pb2.Session:
        info = await self.log.info(session_id)
        if session_id in self._live:
            return self._show(info)
        value = await self.log.get(session_id, stored.SESSION)
        return self._show(SessionInfo(info.session_id, info.uid, info.earliest, info.latest, value))

    def _show(self, info: SessionInfo) -> session_pb2.Session:
        live = self._live.get(info.session_id)
        if live is not None:
            return live.runtime.snapshot(info.earliest, info.latest)
        shown = session_pb2.Session.FromString(info.value or b"")
        shown.earliest_sequence = info.earliest
        shown.latest_sequence = info.latest
        return shown


class _Use:
    """Holds a session loaded for the length of a call."""

    def __init__(self, manager: SessionManager, session_id: str) -> None:
        self._manager = manager
        self._session_id = session_id
        self._live: _Live | None = None

    async def __aenter__(self) -> _Live:
        self._live = await self._manager.acquire(self._session_id)
        return self._live

    async def __aexit__(self, *exc: object) -> None:
        if self._live is not None:
            self._manager.release(self._live)


class _SessionLock:
    """A lock by session id that exists only while somebody holds or wants it."""

    def __init__(self, locks: dict[str, asyncio.Lock], session_id: str) -> None:
        self._locks = locks
        self._session_id = session_id
        self._lock = locks.setdefault(session_id, asyncio.Lock())

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release()
        if not self._lock.locked() and not getattr(self._lock, "_waiters", None):
            self._locks.pop(self._session_id, None)


def page_size(asked: int) -> int:
    """The size of a page. Raises INVALID_FIELD."""
    if asked < 0 or asked > MAX_PAGE:
        raise errors.invalid(("page_size", f"must be 0 to {MAX_PAGE}"))
    return asked or DEFAULT_PAGE


def limit_exceeded(limit: str, value: int) -> errors.SessionError:
    """A documented limit was reached."""
    return errors.SessionError(
        error_pb2.ERROR_REASON_LIMIT_EXCEEDED,
        f"the limit {limit} of {value} is reached",
        {"limit": limit, "value": str(value)},
    )
