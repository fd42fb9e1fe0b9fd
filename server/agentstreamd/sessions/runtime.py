"""One session at work: its turns, its queue and its agent, between clients and the stream."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import (
    AdapterError,
    AgentExit,
    AgentFailed,
    Driver,
    NotDelivered,
    Prompt,
)
from agentstreamd.events.errors import LogUnavailable
from agentstreamd.events.log import EventLog
from agentstreamd.model import Draft, Kind, event, status_item, whole
from agentstreamd.sessions import stored
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.errors import SessionError, log_unavailable, session_ended
from agentstreamd.sessions.journal import Journal
from agentstreamd.sessions.keeper import EndedTurn, Output, StreamKeeper
from agentstreamd.sessions.prompts import preview, user_item
from agentstreamd.sessions.requests import Pending, respond_response
from agentstreamd.sessions.stored import Queued

logger = logging.getLogger(__name__)

REMEMBERED_TURNS = 256


@dataclass(slots=True)
class Accepted:
    """A message whose acceptance is on its way into the log.

    Attributes:
        digest: Tells it from another message of the same id.
        response: What was answered.
        ticket: Of the write that makes it durable.
    """

    digest: bytes
    response: service_pb2.SendMessageResponse
    ticket: int


@dataclass(frozen=True, slots=True)
class Environment:
    """What a session works with, apart from what is its own.

    Attributes:
        log: The event log.
        config: Settings of the sessions layer.
        now_ns: The time, Unix nanoseconds.
        new_id: Makes ids that were never used before.
    """

    log: EventLog
    config: SessionsConfig
    now_ns: Callable[[], int]
    new_id: Callable[[], str]


@dataclass(slots=True)
class SessionParts:
    """The parts a session is put together from.

    Attributes:
        record: The session as answers show it, without what changes all the time.
        config: Its settings as they are now, secrets included.
        keeper: Its stream.
        journal: The way of its events into the log.
        queue: Messages that wait.
        adapter_state: What its last driver saved.
    """

    record: session_pb2.Session
    config: session_pb2.SessionConfig
    keeper: StreamKeeper
    journal: Journal
    queue: list[Queued] = field(default_factory=list)
    adapter_state: bytes = b""


class SessionRuntime:
    """A session that is loaded.

    It is the `Sink` of its driver. All state is changed on the event loop, between two awaits: what
    a method decides on is still so when it acts.

    Attributes:
        keeper: Its stream.
        journal: The way of its events into the log.
        config: Its settings as they are now, secrets included.
        followers: How many readers follow its stream now.
        on_asked: Told of each request that comes.
        on_resolved: Told of the id of each request that is resolved.
        on_idle: Told whenever a turn has ended and none follows.
    """

    def __init__(self, parts: SessionParts, environment: Environment) -> None:
        """Put a session together; `attach` gives it its driver."""
        self.keeper = parts.keeper
        self.journal = parts.journal
        self.config = parts.config
        self.followers = 0
        self.on_asked: Callable[[Pending], None] = lambda pending: None
        self.on_resolved: Callable[[str], None] = lambda request_id: None
        self.on_idle: Callable[[], None] = lambda: None
        self.answer_digests: dict[str, bytes] = {}
        self._record = parts.record
        self._queue = parts.queue
        self._adapter_state = parts.adapter_state
        self._env = environment
        self._make_driver: Callable[[], Driver] | None = None
        self._driver: Driver | None = None
        self._driver_lock = asyncio.Lock()
        self._accepting: dict[str, Accepted] = {}
        self._ended_turns: dict[str, EndedTurn] = {}
        self._turn_waiters: dict[str, asyncio.Future[EndedTurn]] = {}
        self._interrupting = ""
        self._ending = False
        self._last_exit: AgentExit | None = None
        self._was_quiescent = True
        self._tasks: set[asyncio.Task[None]] = set()

    # Parts

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._record.session_id

    @property
    def uid(self) -> str:
        """The session's uid."""
        return self._record.uid

    @property
    def adapter_state(self) -> bytes:
        """What the driver saved last."""
        return self._adapter_state

    @property
    def idle(self) -> bool:
        """Nothing is under way or waits."""
        return self.keeper.quiescent and not self._queue and not self._tasks

    @property
    def driver(self) -> Driver:
        """The driver; made when it is first needed."""
        if self._driver is None:
            if self._make_driver is None:
                raise RuntimeError("attach() comes first")
            self._driver = self._make_driver()
        return self._driver

    def attach(self, make_driver: Callable[[], Driver]) -> None:
        """Say how a driver is made."""
        self._make_driver = make_driver

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
        shown.CopyFrom(self._described())
        shown.earliest_sequence = earliest
        shown.latest_sequence = latest
        shown.turn_id = self.keeper.turn_id
        shown.queue.extend(queued.shown for queued in self._queue)
        shown.pending_requests.extend(p.describe() for p in self.keeper.pending.values())
        return shown

    def _described(self) -> session_pb2.Session:
        record, keeper = self._record, self.keeper
        record.config.CopyFrom(stored.without_secrets(self.config))
        record.state = self._state()
        record.update_time.FromNanoseconds(keeper.stamper.time_ns)
        record.native_session_id = keeper.stamper.native_session_id
        record.agent_version = keeper.settings.known.agent_version
        record.usage.CopyFrom(keeper.usage)
        return record

    def _state(self) -> session_pb2.SessionState.ValueType:
        keeper = self.keeper
        if keeper.ended:
            return session_pb2.SESSION_STATE_ENDED
        if not keeper.turn_id:
            return session_pb2.SESSION_STATE_IDLE
        if any(pending.turn_id == keeper.turn_id for pending in keeper.pending.values()):
            return session_pb2.SESSION_STATE_WAITING
        return session_pb2.SESSION_STATE_RUNNING

    # The stream

    def tick(self) -> None:
        """Set the time of the events that follow."""
        self.keeper.stamper.set_time(self._env.now_ns())

    def flush(self, puts: dict[str, bytes] | None = None, deletes: Sequence[str] = ()) -> int:
        """Hand what the keeper made to the log, with state that belongs to it; gives a ticket."""
        output = self.keeper.take()
        state = output.puts
        if puts:
            state.update(puts)
        removed = list(deletes)
        self._note_resolved(output, state, removed)
        quiescent = self.keeper.quiescent
        if quiescent or self._was_quiescent:
            self._was_quiescent = quiescent
            record = self._described()
            # A restart reads on from here. What came before the moment something was under way has
            # been taken into account already.
            if quiescent:
                record.latest_sequence = self.keeper.stamper.sequence
            state[stored.SESSION] = record.SerializeToString()
        ticket = self.journal.write(output.records, puts=state, deletes=removed, blobs=output.blobs)
        for pending in output.asked:
            self.on_asked(pending)
        for ended in output.ended:
            self._turn_ended(ended)
        return ticket

    def _note_resolved(self, output: Output, state: dict[str, bytes], removed: list[str]) -> None:
        for request_id, resolved, sequence in output.resolved:
            response = respond_response(resolved, sequence)
            answered = self.answer_digests.pop(request_id, b"")
            state[stored.resolution_key(request_id)] = stored.with_digest(answered, response)
            removed.append(stored.intent_key(request_id))
            self.on_resolved(request_id)

    async def committed(self, ticket: int) -> None:
        """Wait until a flush is durable. Raises `SessionError` LOG_UNAVAILABLE."""
        try:
            await self.journal.committed(ticket)
        except LogUnavailable as error:
            raise log_unavailable(error.detail) from error

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """Put drafts of the driver into the stream (`Sink`)."""
        self.tick()
        self.keeper.apply(drafts)
        self.flush()
        await self.journal.room()

    def save_state(self, state: bytes) -> None:
        """Keep state of the driver (`Sink`)."""
        self._adapter_state = state
        self.journal.write((), puts={stored.ADAPTER: state})

    def exited(self, exit: AgentExit) -> None:
        """The agent process is gone (`Sink`)."""
        self._last_exit = exit
        keeper = self.keeper
        if keeper.ended or (exit.expected and not keeper.turn_id):
            return
        self.tick()
        if not exit.expected:
            self._say_exited(exit)
        if keeper.turn_id:
            if self._interrupting == keeper.turn_id:
                keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
            else:
                keeper.end_turn(
                    event_pb2.TURN_STATUS_FAILED,
                    error_pb2.Error(
                        message=exit.message or "the agent ended while a turn was running",
                        code=exit.code,
                    ),
                )
        self.flush()

    def _say_exited(self, exit: AgentExit) -> None:
        lines = [exit.message]
        if exit.stderr_head or exit.stderr_tail:
            lines.append("\n".join(filter(None, (exit.stderr_head, exit.stderr_tail))))
        item = status_item(
            f"agent_exited:{self._env.new_id()}", "agent_exited", "\n".join(filter(None, lines))
        )
        self.keeper.apply(whole(item, synthetic=True, metadata_json=_exit_json(exit)))

    # Turns

    def check_live(self) -> None:
        """Refuse work on a session that has ended or a log that is out."""
        if self.keeper.ended or self._ending:
            raise session_ended(self.session_id)
        if self.journal.failure is not None:
            raise log_unavailable(self.journal.failure.detail)

    def accepted(self, client_message_id: str) -> Accepted | None:
        """A message of this id whose acceptance is on its way into the log."""
        return self._accepting.get(client_message_id)

    @property
    def busy(self) -> bool:
        """A turn is running, or about to."""
        return bool(self.keeper.turn_id) or bool(self._queue)

    @property
    def queue_length(self) -> int:
        """How many messages wait."""
        return len(self._queue)

    async def start_turn(
        self, request: service_pb2.SendMessageRequest, digest: bytes
    ) -> service_pb2.SendMessageResponse:
        """Accept a message that starts a turn; returns when that is durable."""
        response = service_pb2.SendMessageResponse(
            turn_id=f"turn_{self._env.new_id()}",
            sequence=self.keeper.stamper.sequence,
            disposition=service_pb2.MESSAGE_DISPOSITION_STARTED,
        )
        trigger = (
            event_pb2.TURN_TRIGGER_COMMAND if request.command else event_pb2.TURN_TRIGGER_CLIENT
        )
        puts = self._remember(request, digest, response)
        ticket = self._begin(response.turn_id, trigger, request, puts)
        await self._accept(request, digest, response, ticket)
        return response

    async def enqueue(
        self, request: service_pb2.SendMessageRequest, digest: bytes
    ) -> service_pb2.SendMessageResponse:
        """Accept a message that waits for the turns before it; returns when that is durable."""
        response = service_pb2.SendMessageResponse(
            turn_id=f"turn_{self._env.new_id()}",
            sequence=self.keeper.stamper.sequence,
            disposition=service_pb2.MESSAGE_DISPOSITION_QUEUED,
        )
        shown = session_pb2.QueuedMessage(
            turn_id=response.turn_id,
            client_message_id=request.client_message_id,
            preview=preview(tuple(request.parts)),
        )
        shown.create_time.FromNanoseconds(self._env.now_ns())
        position = self._queue[-1].position + 1 if self._queue else 1
        queued = Queued(shown, request, position)
        self._queue.append(queued)
        self.tick()
        self._say_queue()
        puts = self._remember(request, digest, response)
        puts[stored.queue_key(response.turn_id)] = queued.encode()
        await self._accept(request, digest, response, self.flush(puts))
        return response

    async def steer(
        self, request: service_pb2.SendMessageRequest, digest: bytes
    ) -> service_pb2.SendMessageResponse:
        """Put a message into the running turn; returns when the agent has it and it is durable."""
        turn_id = self.keeper.turn_id
        prompt = self._prompt(turn_id, request)
        async with self._driver_lock:
            if self.keeper.turn_id != turn_id:
                raise turn_not_running(self.session_id, turn_id)
            try:
                await self.driver.steer(prompt)
            except NotDelivered as error:
                raise turn_not_running(self.session_id, turn_id) from error
        response = service_pb2.SendMessageResponse(
            turn_id=turn_id,
            sequence=self.keeper.stamper.sequence,
            disposition=service_pb2.MESSAGE_DISPOSITION_STEERED,
        )
        self.tick()
        self.keeper.add_message(
            user_item(f"user_{prompt.message_id}", prompt.parts),
            metadata_json=_message_json(request, prompt),
        )
        await self.committed(self.flush(self._remember(request, digest, response)))
        return response

    def discard_queue(self) -> None:
        """Forget the messages that wait."""
        if not self._queue:
            return
        keys = [stored.queue_key(queued.shown.turn_id) for queued in self._queue]
        self._queue.clear()
        self.tick()
        self._say_queue()
        self.flush(deletes=keys)

    def ended_turn(self, turn_id: str) -> EndedTurn | None:
        """How a turn ended, if it did lately."""
        return self._ended_turns.get(turn_id)

    async def interrupt(self) -> EndedTurn:
        """Stop the running turn; returns when it has ended and that is durable."""
        turn_id = self.keeper.turn_id
        self._interrupting = turn_id
        ended = await self._stop_turn(turn_id)
        await self.committed(self.flush())
        return ended

    async def _stop_turn(self, turn_id: str) -> EndedTurn:
        waiter = self._turn_waiters.get(turn_id)
        if waiter is None:
            waiter = asyncio.get_running_loop().create_future()
            self._turn_waiters[turn_id] = waiter
        grace = self._env.config.interrupt_grace_seconds
        try:
            async with asyncio.timeout(grace):
                await self.driver.interrupt()
                return await asyncio.shield(waiter)
        except (TimeoutError, AdapterError) as error:
            logger.info("session %s: the turn did not stop by itself: %s", self.session_id, error)
        # Not under the lock: a start that hangs holds it, and is what has to be ended.
        await self.driver.close()
        if self.keeper.turn_id == turn_id:
            self.tick()
            self.keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
            self.flush()
        return await waiter

    def start_queued(self) -> None:
        """Start the next message that waits, if nothing runs."""
        if self.keeper.turn_id or not self._queue or self._ending or self.keeper.ended:
            return
        queued = self._queue.pop(0)
        self.tick()
        self._say_queue()
        turn_id = queued.shown.turn_id
        self._begin(
            turn_id,
            event_pb2.TURN_TRIGGER_QUEUE,
            queued.request,
            {},
            deletes=[stored.queue_key(turn_id)],
        )

    def _begin(
        self,
        turn_id: str,
        trigger: event_pb2.TurnTrigger.ValueType,
        request: service_pb2.SendMessageRequest,
        puts: dict[str, bytes],
        deletes: Sequence[str] = (),
    ) -> int:
        prompt = self._prompt(turn_id, request)
        self.tick()
        self.keeper.begin_turn(
            turn_id,
            trigger,
            user_item(f"user_{prompt.message_id}", prompt.parts),
            client_message_id=request.client_message_id,
            metadata_json=_message_json(request, prompt),
        )
        ticket = self.flush(puts, deletes)
        self.spawn(self._deliver(prompt, ticket), "deliver")
        return ticket

    async def _deliver(self, prompt: Prompt, ticket: int) -> None:
        # Durable first: an agent must not work on a message that a crash would forget.
        await self.journal.settled(ticket)
        try:
            async with self._driver_lock:
                if self.keeper.turn_id == prompt.turn_id and not self._ending:
                    await self.driver.send(prompt)
        except AdapterError as error:
            self.fail_turn(prompt.turn_id, str(error), _code_of(error))
        except Exception:
            logger.exception("session %s: the driver failed to send", self.session_id)
            self.fail_turn(
                prompt.turn_id,
                "the adapter failed; the daemon's log says more",
                error_pb2.ERROR_CODE_AGENT_INTERNAL,
            )

    def fail_turn(self, turn_id: str, message: str, code: error_pb2.ErrorCode.ValueType) -> None:
        """End a turn as failed (as interrupted, if it was being), if it is still running."""
        if self.keeper.turn_id != turn_id:
            return
        self.tick()
        error = error_pb2.Error(message=message, code=code)
        if self._interrupting == turn_id:
            self.keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
        else:
            said = event(synthetic=True)
            said.error.CopyFrom(error)
            self.keeper.apply([Draft(Kind.ERROR, said)])
            self.keeper.end_turn(event_pb2.TURN_STATUS_FAILED, error)
        self.flush()

    def _turn_ended(self, ended: EndedTurn) -> None:
        turns = self._ended_turns
        turns[ended.turn_id] = ended
        if len(turns) > REMEMBERED_TURNS:
            del turns[next(iter(turns))]
        if self._interrupting == ended.turn_id:
            self._interrupting = ""
        waiter = self._turn_waiters.pop(ended.turn_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(ended)
        if self.config.one_shot and not self._ending:
            self.spawn(
                self.end(
                    event_pb2.SESSION_END_REASON_ONE_SHOT_DONE, event_pb2.SESSION_ENDER_DAEMON
                ),
                "end",
            )
        elif self._queue:
            # Not at once: what the agent said together with the end of its turn comes first.
            asyncio.get_running_loop().call_soon(self.start_queued)
        else:
            self.on_idle()

    def _prompt(self, turn_id: str, request: service_pb2.SendMessageRequest) -> Prompt:
        return Prompt(turn_id, self._env.new_id(), tuple(request.parts), request.command)

    def _remember(
        self,
        request: service_pb2.SendMessageRequest,
        digest: bytes,
        response: service_pb2.SendMessageResponse,
    ) -> dict[str, bytes]:
        if not request.client_message_id:
            return {}
        key = stored.message_key(request.client_message_id)
        return {key: stored.with_digest(digest, response)}

    async def _accept(
        self,
        request: service_pb2.SendMessageRequest,
        digest: bytes,
        response: service_pb2.SendMessageResponse,
        ticket: int,
    ) -> None:
        client_message_id = request.client_message_id
        if client_message_id:
            self._accepting[client_message_id] = Accepted(digest, response, ticket)
        await self.committed(ticket)
        # Kept when that failed: the log will take it later, until then only this knows it.
        self._accepting.pop(client_message_id, None)

    def _say_queue(self) -> None:
        update = event_pb2.SessionUpdated()
        update.queue.messages.extend(queued.shown for queued in self._queue)
        update.queue.SetInParent()
        self.keeper.update(update)

    # Settings

    async def change_agent_settings(
        self, model: str | None, permission_mode: agent_pb2.PermissionMode.ValueType | None
    ) -> None:
        """Have the agent take another model or permission mode."""
        async with self._driver_lock:
            self.check_live()
            await self.driver.update(model=model, permission_mode=permission_mode)

    # The end

    async def stop_agent(self) -> None:
        """Stop the agent's process; the next message starts it again."""
        async with self._driver_lock:
            if self._driver is not None and not self.keeper.turn_id:
                await self._driver.close()

    async def end(
        self,
        reason: event_pb2.SessionEndReason.ValueType,
        by: event_pb2.SessionEnder.ValueType,
        message: str = "",
    ) -> None:
        """End the session; returns when that is durable."""
        if not self.keeper.ended and not self._ending:
            self._ending = True
            await self._close_driver(forget=True)
            draft = Draft(Kind.SESSION_ENDED, event(synthetic=True))
            payload = draft.event.session_ended
            payload.reason, payload.ended_by, payload.message = reason, by, message
            if self._last_exit is not None:
                _add_exit(payload, self._last_exit)
            self.tick()
            self.keeper.end_session(draft)
            keys = [stored.queue_key(queued.shown.turn_id) for queued in self._queue]
            self._queue.clear()
            self.flush(deletes=keys)
            self._ending = False
        await self.committed(self.flush())

    async def _close_driver(self, *, forget: bool) -> None:
        turn_id = self.keeper.turn_id
        if turn_id and self._driver is not None:
            self._interrupting = turn_id
            with suppress(Exception):
                await self._stop_turn(turn_id)
        if self._driver is not None:
            await self._driver.close(forget=forget)

    async def unload(self, *, stopping: bool = False) -> None:
        """Let go of everything; with `stopping` the daemon ends, and with it a running turn."""
        self._ending = True
        turn_id = self.keeper.turn_id
        if self._driver is not None:
            try:
                await self._driver.close()
            except Exception:
                logger.exception("session %s: the driver failed to close", self.session_id)
        if stopping and turn_id and self.keeper.turn_id == turn_id:
            self.tick()
            self.keeper.end_turn(event_pb2.TURN_STATUS_FAILED, restarted())
            self.flush()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.journal.close()


def restarted() -> error_pb2.Error:
    """The error of a turn that the daemon's end cut off."""
    return error_pb2.Error(
        message="the daemon was stopped while the turn was running",
        code=error_pb2.ERROR_CODE_DAEMON_RESTARTED,
    )


def turn_not_running(session_id: str, turn_id: str) -> SessionError:
    """No turn is running, or not the one that was named."""
    what = f"turn {turn_id!r}" if turn_id else "a turn"
    return SessionError(
        error_pb2.ERROR_REASON_TURN_NOT_RUNNING,
        f"{what} is not running in session {session_id!r}",
        {"session_id": session_id, "turn_id": turn_id},
    )


def _code_of(error: AdapterError) -> error_pb2.ErrorCode.ValueType:
    if isinstance(error, AgentFailed):
        return error.code
    return error_pb2.ERROR_CODE_AGENT_START_FAILED


def _message_json(request: service_pb2.SendMessageRequest, prompt: Prompt) -> str:
    known = {"client_message_id": request.client_message_id, "message_id": prompt.message_id}
    return json.dumps({name: value for name, value in known.items() if value})


def _exit_json(exit: AgentExit) -> str:
    known = {"exit_code": exit.exit_code, "signal": exit.signal}
    return json.dumps({name: value for name, value in known.items() if value is not None})


def _add_exit(payload: event_pb2.SessionEnded, exit: AgentExit) -> None:
    if exit.exit_code is not None:
        payload.exit_code = exit.exit_code
    if exit.signal is not None:
        payload.signal = exit.signal
    payload.stderr_head = exit.stderr_head
    payload.stderr_tail = exit.stderr_tail
