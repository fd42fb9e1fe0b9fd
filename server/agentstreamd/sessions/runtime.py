"""One session at work: its stream, its turns and its agent put together."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.base import AgentExit, Driver
from agentstreamd.model import Draft, Kind, event, status_item, whole
from agentstreamd.sessions import stored
from agentstreamd.sessions.errors import log_unavailable, session_ended
from agentstreamd.sessions.keeper import EndedTurn
from agentstreamd.sessions.parts import Environment, SessionParts
from agentstreamd.sessions.recording import Recording
from agentstreamd.sessions.seat import DriverSeat
from agentstreamd.sessions.turns import Turns

logger = logging.getLogger(__name__)


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
        self.turns.on_last = lambda: self.on_idle()
        self._new_id = environment.new_id
        self._last_exit: AgentExit | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run work of this session in the background; it is cancelled when the session unloads."""
        task = asyncio.get_running_loop().create_task(work, name=f"{name}:{self.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", task.get_name(), exc_info=task.exception())
        if self.idle:
            self.on_idle()

    def snapshot(self, earliest: int, latest: int) -> session_pb2.Session:
        """The session as it is now; the sequences are the log's."""
        shown = session_pb2.Session()
        shown.CopyFrom(self.recording.describe())
        shown.earliest_sequence = earliest
        shown.latest_sequence = latest
        shown.turn_id = self.keeper.turn_id
        shown.queue.extend(queued.shown for queued in self.turns.queue)
        shown.pending_requests.extend(p.describe() for p in self.keeper.pending.values())
        return shown

    def check_live(self) -> None:
        """Refuse work on a session that has ended or a log that is out."""
        if self.keeper.ended or self.seat.closing:
            raise session_ended(self.session_id)
        if self.journal.failure is not None:
            raise log_unavailable(self.journal.failure.detail)

    # What the driver says

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """Put drafts of the driver into the stream (`Sink`)."""
        self.recording.tick()
        self.keeper.apply(drafts)
        self.recording.flush()
        await self.journal.room()

    def save_state(self, state: bytes) -> None:
        """Keep state of the driver (`Sink`)."""
        self.adapter_state = state
        self.journal.write((), puts={stored.ADAPTER: state})

    def exited(self, exit: AgentExit) -> None:
        """The agent process is gone (`Sink`)."""
        self._last_exit = exit
        keeper = self.keeper
        if keeper.ended or (exit.expected and not keeper.turn_id):
            return
        self.recording.tick()
        if not exit.expected:
            self._say_exited(exit)
        if keeper.turn_id:
            if self.turns.interrupting == keeper.turn_id:
                keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
            else:
                message = exit.message or "the agent ended while a turn was running"
                keeper.end_turn(
                    event_pb2.TURN_STATUS_FAILED, error_pb2.Error(message=message, code=exit.code)
                )
        self.recording.flush()
        if not exit.resumable:
            self.spawn(
                self.end(
                    event_pb2.SESSION_END_REASON_NOT_RESUMABLE,
                    event_pb2.SESSION_ENDER_AGENT,
                    exit.message,
                ),
                "end",
            )

    def _say_exited(self, exit: AgentExit) -> None:
        known = {"exit_code": exit.exit_code, "signal": exit.signal}
        metadata = {name: value for name, value in known.items() if value is not None}
        detail = "\n".join(filter(None, (exit.message, exit.stderr_head, exit.stderr_tail)))
        item = status_item(f"agent_exited:{self._new_id()}", "agent_exited", detail)
        self.keeper.apply(whole(item, synthetic=True, metadata_json=json.dumps(metadata)))

    def _turn_ended(self, turn: EndedTurn) -> None:
        if self.config.one_shot and not self.seat.closing:
            self.spawn(
                self.end(
                    event_pb2.SESSION_END_REASON_ONE_SHOT_DONE, event_pb2.SESSION_ENDER_DAEMON
                ),
                "end",
            )
        self.turns.ended(turn)

    # What clients ask for

    async def change_agent_settings(
        self, model: str | None, permission_mode: agent_pb2.PermissionMode.ValueType | None
    ) -> None:
        """Have the agent take another model or permission mode."""
        async with self.seat.lock:
            self.check_live()
            await self.seat.driver.update(model=model, permission_mode=permission_mode)

    async def end(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str = "",
    ) -> None:
        """End the session; returns when that is durable."""
        if not self.keeper.ended and not self.seat.closing:
            self.seat.closing = True
            turn_id = self.keeper.turn_id
            if turn_id:
                self.turns.interrupting = turn_id
                with suppress(Exception):
                    await self.turns.stop(turn_id)
            await self._close_driver(forget=True)
            self.recording.tick()
            self.keeper.end_session(self._session_ended(reason, by, message))
            keys = [stored.queue_key(queued.shown.turn_id) for queued in self.turns.queue]
            self.turns.queue.clear()
            self.recording.flush(deletes=keys)
        await self.recording.committed(self.recording.flush())

    def _session_ended(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str,
    ) -> Draft:
        draft = Draft(Kind.SESSION_ENDED, event(synthetic=True))
        payload = draft.event.session_ended
        payload.reason, payload.ended_by, payload.message = reason, by, message
        exit = self._last_exit
        if exit is not None:
            if exit.exit_code is not None:
                payload.exit_code = exit.exit_code
            if exit.signal is not None:
                payload.signal = exit.signal
            payload.stderr_head = exit.stderr_head
            payload.stderr_tail = exit.stderr_tail
        return draft

    async def unload(self, *, stopping: bool = False) -> None:
        """Let go of everything; with `stopping` the daemon ends, and with it a running turn."""
        self.seat.closing = True
        turn_id = self.keeper.turn_id
        await self._close_driver()
        if stopping and turn_id and self.keeper.turn_id == turn_id:
            self.recording.tick()
            self.keeper.end_turn(event_pb2.TURN_STATUS_FAILED, restarted())
            self.recording.flush()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.journal.close()

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
