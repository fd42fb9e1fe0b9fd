"""One session at work: its stream, its turns and its agent put together."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.base import AgentExit, Driver
from agentstreamd.model import Draft, Kind, event, status_item, whole
from agentstreamd.sessions import stored
from agentstreamd.sessions.errors import SessionError, draining, log_unavailable, session_ended
from agentstreamd.sessions.keeper import EndedTurn
from agentstreamd.sessions.parts import Environment, SessionParts
from agentstreamd.sessions.recording import Recording
from agentstreamd.sessions.seat import DriverSeat
from agentstreamd.sessions.turns import Turns

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class SessionRuntime:
    """A session that is loaded. It is the `Sink` of its driver.

    Attributes:
        recording: The way of its stream into the log.
        keeper: Its stream.
        journal: The way of its events into the log.
        config: Its settings as they are now, secrets included.
        seat: Its driver.
        turns: Its turns.
        followers: How many readers follow its stream now.
        adapter_state: What its driver saved last.
        on_idle: Told whenever nothing is under way any more.
    """

    def __init__(
        self,
        parts: SessionParts,
        environment: Environment,
        make_driver: "Callable[[SessionRuntime], Driver]",
    ) -> None:
        """Put a session together; the driver is made when it is first needed."""
        self.recording = Recording(parts, environment.now_ns)
        self.keeper = parts.keeper
        self.journal = parts.journal
        self.config = parts.config
        self.followers = 0
        self.adapter_state = parts.adapter_state
        self.on_idle: Callable[[], None] = lambda: None
        self.seat = DriverSeat(lambda: make_driver(self))
        self.turns = Turns(self.recording, self.seat, environment, self.spawn, parts.queue)
        self.recording.on_turn_ended = self._turn_ended
        self.recording.on_rest = lambda: self.on_idle()
        self._new_id = environment.new_id
        self._early: list[Draft] = []
        self._unloading = False
        self._refusal = draining()
        self._last_exit: AgentExit | None = None
        self._last_error = error_pb2.ERROR_CODE_UNSPECIFIED
        self._ending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.recording.session_id

    @property
    def uid(self) -> str:
        """The session's uid."""
        return self.recording.uid

    @property
    def idle(self) -> bool:
        """Nothing is under way or waits."""
        return self.keeper.quiescent and not self.turns.queue and not self._tasks

    def spawn(self, work: Coroutine[Any, Any, Result], name: str) -> "asyncio.Task[Result]":
        """Run work of this session in the background; it is cancelled when the session unloads."""
        task = asyncio.get_running_loop().create_task(work, name=f"{name}:{self.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    async def finish(self, work: Coroutine[Any, Any, Result], name: str) -> Result:
        """Run work that must not stop half-way when whoever asked for it goes away."""
        task = self.spawn(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise self._refusal from None
            raise

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, SessionError):
                logger.error("%s failed", task.get_name(), exc_info=error)
        if self.idle:
            self.on_idle()

    def snapshot(self) -> session_pb2.Session:
        """The session as it is now, up to its newest event, which may not be durable yet."""
        shown = session_pb2.Session()
        shown.CopyFrom(self.recording.describe())
        shown.latest_sequence = self.keeper.stamper.sequence
        shown.turn_id = self.keeper.turn_id
        shown.queue.extend(queued.shown for queued in self.turns.queue)
        shown.pending_requests.extend(p.describe() for p in self.keeper.pending.values())
        return shown

    async def describe(self, earliest: int, latest: int) -> session_pb2.Session:
        """The session as answers show it: nothing in it is not durable, unless the log is out.

        `earliest` and `latest` are the sequences of the log.
        """
        shown = self.snapshot()
        shown.earliest_sequence = earliest
        try:
            await self.recording.sync()
        except SessionError:
            shown.latest_sequence = latest
        return shown

    def check_live(self) -> None:
        """Refuse work on a session that has ended or is let go of, or a log that is out."""
        if self._unloading and not self.keeper.ended:
            # Not the session's end: the client may come back with it.
            raise self._refusal
        if self.keeper.ended or self.seat.closing:
            raise session_ended(self.session_id)
        if self.journal.failure is not None:
            raise log_unavailable(self.journal.failure.detail)

    # What the driver says

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """Put drafts of the driver into the stream (`Sink`)."""
        if not self.keeper.started:
            self._early.extend(drafts)
            return
        self.turns.has_process = True
        self.recording.tick()
        self.keeper.apply(drafts)
        self.recording.flush()
        if self.keeper.ended and self._ending is None:
            self.end_soon(
                event_pb2.SESSION_END_REASON_ENDED_BY_AGENT, event_pb2.SESSION_ENDER_AGENT
            )
        await self.journal.room()

    def begin(self, known: event_pb2.SessionStarted, puts: dict[str, bytes]) -> int:
        """Begin the stream, once the driver is open; `known` is what the daemon knows itself.

        The agent's own `session_started` comes first, whatever else it said before it. Returns the
        ticket of the write that makes the session.
        """
        early, self._early = self._early, []
        self.recording.tick()
        own = next((draft for draft in early if draft.kind is Kind.SESSION_STARTED), None)
        if own is None:
            self.keeper.start_session(known)
        else:
            early.remove(own)
            said = event_pb2.SessionStarted()
            said.CopyFrom(known)
            said.MergeFrom(own.event.session_started)
            own.event.session_started.CopyFrom(said)
            self.keeper.apply([own])
        self.keeper.apply(early)
        ticket = self.recording.flush(puts)
        self.journal.create()
        return ticket

    def save_state(self, state: bytes) -> None:
        """Keep state of the driver (`Sink`)."""
        self.adapter_state = state
        self.journal.write((), puts={stored.ADAPTER: state})

    def exited(self, exit: AgentExit) -> None:
        """The agent process is gone (`Sink`)."""
        self._last_exit = exit
        if not exit.expected:
            self._last_error = exit.code
        keeper = self.keeper
        if keeper.ended or not keeper.started:
            return
        if not exit.resumable:
            # First: a message that waits must not start a turn any more.
            self.end_soon(
                event_pb2.SESSION_END_REASON_NOT_RESUMABLE,
                event_pb2.SESSION_ENDER_AGENT,
                exit.message,
            )
        self.recording.tick()
        if not exit.expected:
            self._say_exited(exit)
        turn_id = keeper.turn_id
        if not self.turns.survives_exit() and turn_id:
            if self.turns.interrupting == turn_id:
                keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
            else:
                message = exit.message or "the agent ended while a turn was running"
                error = error_pb2.Error(message=message, code=exit.code)
                if self._unloading:
                    error = restarted()
                keeper.end_turn(event_pb2.TURN_STATUS_FAILED, error)
        keeper.close_all("the agent is gone")
        self.recording.flush()

    def _say_exited(self, exit: AgentExit) -> None:
        known = {"exit_code": exit.exit_code, "signal": exit.signal}
        metadata = {name: value for name, value in known.items() if value is not None}
        detail = "\n".join(filter(None, (exit.message, exit.stderr_head, exit.stderr_tail)))
        shown = self.keeper.stamper.redacted(detail)
        item = status_item(f"agent_exited:{self._new_id()}", "agent_exited", shown)
        self.keeper.apply(whole(item, synthetic=True, metadata_json=json.dumps(metadata)))

    def _turn_ended(self, turn: EndedTurn) -> None:
        self._last_error = turn.error_code
        if self.config.one_shot:
            self.end_one_shot()
        self.turns.ended(turn)

    def end_one_shot(self) -> None:
        """The first turn of a one-shot session is over."""
        if not self.seat.closing:
            self.end_soon(
                event_pb2.SESSION_END_REASON_ONE_SHOT_DONE, event_pb2.SESSION_ENDER_DAEMON
            )

    # What clients ask for

    async def change_agent_settings(
        self, model: str | None, permission_mode: agent_pb2.PermissionMode.ValueType | None
    ) -> event_pb2.SessionUpdated:
        """Have the agent take another model or permission mode.

        Returns what is to be said of it: what the agent has said itself, in its own words (a
        model's full name), is not said again.
        """
        said = event_pb2.SessionUpdated()
        known = self.keeper.settings
        async with self.seat.exclusive():
            self.check_live()
            before = known.model, known.permission_mode
            await self.seat.driver.update(model=model, permission_mode=permission_mode)
            if model is not None and known.model == before[0]:
                said.model = model
            if permission_mode is not None and known.permission_mode == before[1]:
                said.permission_mode = permission_mode
        return said

    async def end(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str = "",
    ) -> None:
        """End the session; returns when that is durable."""
        if not self.keeper.ended or self._ending is not None:
            await asyncio.shield(self.end_soon(reason, by, message))
        await self.recording.sync()

    def end_soon(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str = "",
    ) -> "asyncio.Task[None]":
        """End the session in the background; nothing new begins from now on."""
        if self._ending is None:
            self.seat.closing = True
            self._ending = self.spawn(self._end(reason, by, message), "end")
        return self._ending

    async def _end(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str,
    ) -> None:
        if self.keeper.turn_id:
            with suppress(SessionError):
                await self.turns.stop()
        await self._close_driver(forget=True)
        self.turns.discard_queue()
        if not self.keeper.ended:
            self.recording.tick()
            self.keeper.end_session(self._session_ended(reason, by, message))
            self.recording.flush()

    def _session_ended(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str,
    ) -> Draft:
        draft = Draft(Kind.SESSION_ENDED, event(synthetic=True))
        payload = draft.event.session_ended
        payload.reason, payload.ended_by, payload.message = reason, by, message
        payload.error_code = self._last_error
        exit = self._last_exit
        if exit is not None:
            if exit.exit_code is not None:
                payload.exit_code = exit.exit_code
            if exit.signal is not None:
                payload.signal = exit.signal
            payload.stderr_head = exit.stderr_head
            payload.stderr_tail = exit.stderr_tail
        return draft

    async def rest(self) -> bool:
        """Stop the agent of an idle session; whether the session can be unloaded now.

        It can't while the log is out: what it has not taken would be lost.
        """
        self.seat.closing = True
        await self._close_driver()
        try:
            await self.recording.sync()
        except SessionError:
            pass
        else:
            if self.idle:
                return True
        self.seat.closing = self.keeper.ended
        return False

    async def unload(self, refusal: SessionError | None = None) -> None:
        """Let go of everything. A turn that runs, and all else that is open, ends with the daemon.

        Whoever still waits for something of the session gets `refusal`.
        """
        self._refusal = refusal or self._refusal
        if self._ending is not None:
            await asyncio.wait([self._ending])
        self.seat.closing = self._unloading = True
        await self._close_driver()
        if self.keeper.started and not self.keeper.ended:
            self.recording.tick()
            if self.keeper.turn_id:
                self.keeper.end_turn(event_pb2.TURN_STATUS_FAILED, restarted())
            self.keeper.close_all("the daemon was stopped")
            self.recording.flush()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.journal.close(self._refusal)

    async def _close_driver(self, *, forget: bool = False) -> None:
        try:
            await self.seat.close(forget=forget)
        except Exception:
            # The session's own end must not hang on an adapter's fault.
            logger.exception("session %s: the driver failed to close", self.session_id)


def restarted() -> error_pb2.Error:
    """The error of a turn that the daemon's end cut off."""
    return error_pb2.Error(
        message="the daemon was stopped while the turn was running",
        code=error_pb2.ERROR_CODE_DAEMON_RESTARTED,
    )
