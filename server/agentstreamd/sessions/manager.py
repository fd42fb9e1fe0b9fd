"""All sessions of a daemon: the calls that clients make."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from agentstream.v1 import agent_pb2, blob_pb2, error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import Adapter, Driver, DriverContext, ProcessHost
from agentstreamd.events.errors import (
    EventLogError,
    InvalidPageCursor,
    LogUnavailable,
    Reason,
    SessionNotFound,
)
from agentstreamd.events.log import EventLog
from agentstreamd.sessions import errors, stored
from agentstreamd.sessions.agents import Agents, adapter_errors
from agentstreamd.sessions.checks import SESSION_ID, check_config
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.live import LiveSessions
from agentstreamd.sessions.loading import new_session, started_payload
from agentstreamd.sessions.messages import send_message, update_settings
from agentstreamd.sessions.paging import invalid_page_token, page_size
from agentstreamd.sessions.parts import Environment, Watch
from agentstreamd.sessions.roots import Roots
from agentstreamd.sessions.runtime import SessionRuntime

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class SessionManager:
    """The sessions of one daemon, over its event log and its adapters.

    All methods raise `SessionError` for what a caller can do something about. A caller that goes
    away while one runs stops nothing half-way.

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
        watch: Watch | None = None,
    ) -> None:
        """Manage the sessions in `log`; `start` comes before anything else.

        `watch` gives who is shown every event of a session in memory.
        """
        self.log = log
        self._agents = Agents(adapters)
        self._processes = processes
        self._config = config
        self._environment = Environment(log, config, now_ns, new_id, watch)
        self._live = LiveSessions(self._environment, self._make_driver)
        self._draining = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # Life of the daemon

    async def start(self) -> None:
        """Close what an earlier daemon left under way, and go on with messages that wait.

        Raises EventLogError where the log can't be read or is damaged.
        """
        at_work = await self.log.having(stored.queue_key(""))
        at_work |= await self.log.having(stored.steer_key(""))
        begun = await self.log.having(stored.turn_key(""))
        async for info in self.log.scan(stored.SESSION):
            record = session_pb2.Session.FromString(info.value or b"")
            if record.latest_sequence > info.latest:  # they were stored in one commit
                raise LogUnavailable(
                    Reason.CORRUPT,
                    f"session {info.session_id} has events up to {info.latest} only, of "
                    f"{record.latest_sequence}",
                )
            if record.uid != info.uid:
                raise LogUnavailable(
                    Reason.CORRUPT, f"the uid of session {info.session_id} changed"
                )
            is_over = record.config.one_shot and info.session_id in begun
            if record.latest_sequence == info.latest and (
                record.state == session_pb2.SESSION_STATE_ENDED
                or not (is_over or info.session_id in at_work)
            ):
                continue
            try:
                await self._live.recover(info.session_id)
            except (EventLogError, errors.SessionError) as error:
                logger.error("session %s could not be recovered: %s", info.session_id, error)
            except Exception:
                # One broken session must not keep the others from being served.
                logger.exception("session %s could not be recovered", info.session_id)

    @property
    def loaded(self) -> int:
        """How many sessions are in memory."""
        return len(self._live)

    @property
    def running(self) -> int:
        """How many turns run."""
        return self._live.running

    def start_draining(self) -> None:
        """Take no new work from now on."""
        self._draining = True

    async def drain(self) -> None:
        """Stop all agents and write what is left; bounded by what the drivers promise."""
        self.start_draining()
        await self._live.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _check_draining(self) -> None:
        if self._draining:
            raise errors.draining()

    async def _finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work that must not stop half-way when its caller goes away."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return await asyncio.shield(task)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, if there still is one

    # Agents

    async def list_agents(
        self, request: service_pb2.ListAgentsRequest
    ) -> service_pb2.ListAgentsResponse:
        """The agents, by name, a page at a time."""
        return await self._agents.list(request)

    async def get_agent(self, name: str, *, include_login: bool = False) -> agent_pb2.Agent:
        """One agent; whether it is logged in only where asked. Raises AGENT_NOT_FOUND."""
        return await self._agents.describe(name, include_login=include_login)

    # Sessions

    async def create(self, request: service_pb2.CreateSessionRequest) -> session_pb2.Session:
        """Make a session, or find the one that was made by the same call before."""
        self._check_draining()
        violations = check_config(request.config, Roots(self._config.allowed_roots))
        if request.session_id and not SESSION_ID.fullmatch(request.session_id):
            violations.append(("session_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"))
        if violations:
            raise errors.invalid(*violations)
        config = session_pb2.SessionConfig()
        config.CopyFrom(request.config)
        return await self._finish(self._create(request.session_id, config))

    async def _create(
        self, given_id: str, config: session_pb2.SessionConfig
    ) -> session_pb2.Session:
        session_id = given_id or f"ses_{self._environment.new_id()}"
        async with self._live.locks.hold(session_id):
            # No session can have an id that was made just now: that saves a look into the log.
            if not (given_id and await self._was_made(given_id, config)):
                await self._make(session_id, config)
            return await self._live.find(session_id)

    async def _was_made(self, session_id: str, config: session_pb2.SessionConfig) -> bool:
        """Whether the session is there, made with these settings."""
        try:
            with errors.log_errors(session_id):
                created = await self.log.get(session_id, stored.CREATED)
        except errors.SessionError as error:
            if isinstance(error.__cause__, SessionNotFound):
                return False
            raise
        fields = stored.differing(created or b"{}", config)
        if not fields:
            return True
        raise errors.SessionError(
            error_pb2.ERROR_REASON_SESSION_EXISTS,
            f"session {session_id!r} exists already, made with other settings",
            {"session_id": session_id, "fields": ",".join(fields)},
        )

    async def _make(self, session_id: str, config: session_pb2.SessionConfig) -> None:
        agent = await self._agents.usable(config)
        created = stored.fingerprint(config)
        parts = new_session(session_id, config, self._environment)
        parts.keeper.settings.take(
            event_pb2.SessionUpdated(
                title=config.title, labels=event_pb2.Labels(labels=config.labels)
            )
        )
        live = self._live.add(parts)
        runtime = live.runtime
        try:
            with adapter_errors(config.agent):
                await runtime.seat.driver.open()
            puts = {stored.CONFIG: config.SerializeToString(), stored.CREATED: created}
            ticket = runtime.begin(started_payload(config, agent.version), puts)
            await runtime.recording.committed(ticket)
        except BaseException:
            await self._live.drop(live)
            raise
        self._live.watch_idle(live)

    async def get(self, session_id: str) -> session_pb2.Session:
        """A session as it is now. Raises SESSION_NOT_FOUND."""
        return await self._live.find(session_id)

    async def list(
        self, request: service_pb2.ListSessionsRequest
    ) -> service_pb2.ListSessionsResponse:
        """Sessions, oldest first, a page at a time."""
        size = page_size(request.page_size)
        try:
            with errors.log_errors():
                page = await self.log.list_sessions(
                    after=request.page_token, limit=size, key=stored.SESSION
                )
        except InvalidPageCursor as error:
            raise invalid_page_token() from error
        response = service_pb2.ListSessionsResponse(next_page_token=page.next_cursor)
        for info in page.sessions:
            shown = await self._live.describe(info)
            if request.live_only and shown.state == session_pb2.SESSION_STATE_ENDED:
                continue
            if all(shown.config.labels.get(k) == value for k, value in request.labels.items()):
                response.sessions.append(shown)
        return response

    async def send(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        """Give a session's agent a message."""
        self._check_draining()
        async with self._live.use(request.session_id) as live:
            runtime = live.runtime
            agent = await self._agents.describe(runtime.config.agent)
            work = send_message(runtime, agent, request, self.log, self._config, self._check_room)
            return await runtime.finish(work, "send")

    def _check_room(self) -> None:
        limit = self._config.max_running_sessions
        if self._live.running >= limit:
            raise errors.limit_exceeded("max_running_sessions", limit)

    async def update(self, request: service_pb2.UpdateSessionRequest) -> session_pb2.Session:
        """Change a session's settings."""
        self._check_draining()
        async with self._live.use(request.session_id) as live:
            agent = await self._agents.describe(live.runtime.config.agent)
            await live.runtime.finish(update_settings(live.runtime, agent, request), "update")
            return await self._live.find(request.session_id)

    async def interrupt(
        self, request: service_pb2.InterruptTurnRequest
    ) -> service_pb2.InterruptTurnResponse:
        """Stop a session's running turn; returns when it has ended."""
        async with self._live.use(request.session_id) as live:
            turns = live.runtime.turns
            if request.discard_queue:
                turns.discard_queue()
                await live.runtime.recording.sync()
            if turns.running and request.turn_id in ("", turns.running):
                return await turns.interrupt()
            return await turns.ended_turn(request.turn_id, self.log)

    async def end(self, session_id: str) -> session_pb2.Session:
        """End a session; returns when that is durable."""
        async with self._live.use(session_id) as live:
            await self._end(live.runtime)
            return await self._live.find(session_id)

    async def _end(self, runtime: SessionRuntime) -> None:
        await runtime.end(
            event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT, event_pb2.SESSION_ENDER_CLIENT
        )

    async def delete(self, session_id: str, uid: str = "") -> None:
        """End a session if need be, and forget it; with `uid`, only the session that has it."""
        await self._finish(self._delete(session_id, uid))

    async def _delete(self, session_id: str, wanted_uid: str) -> None:
        async with self._live.use(session_id) as live:
            uid = live.runtime.uid
            if wanted_uid and uid != wanted_uid:
                raise errors.session_not_found(session_id)
            await self._end(live.runtime)
        async with self._live.locks.hold(session_id):
            with errors.log_errors(session_id):
                if (await self.log.info(session_id)).uid != uid:
                    # Deleted by another call meanwhile, and made anew: that one stays.
                    raise errors.session_not_found(session_id)
                there = self._live.get(session_id)
                if there is not None:
                    await self._live.drop(there, errors.session_deleted(session_id))
                await self.log.delete_session(session_id)

    async def respond(self, request: service_pb2.RespondRequest) -> service_pb2.RespondResponse:
        """Answer a request of a session's agent."""
        async with self._live.use(request.session_id) as live:
            return await live.runtime.finish(live.interactions.respond(request), "respond")

    async def blob(self, session_id: str, blob_id: str) -> blob_pb2.BlobRef:
        """What a blob is, as the events that refer to it say. Raises `BlobNotFound`."""
        with errors.log_errors(session_id):
            size = await self.log.blob_size(session_id, blob_id)
            known = await self.log.get(session_id, stored.blob_key(blob_id))
        if known is None:
            return blob_pb2.BlobRef(blob_id=blob_id, size_bytes=size)
        return blob_pb2.BlobRef.FromString(known)

    def following(self, session_id: str) -> AbstractContextManager[None]:
        """While it is entered, somebody reads the session's stream."""
        return self._live.following(session_id)

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
