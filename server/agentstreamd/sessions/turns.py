"""The turns of a session: messages that start them, wait for them or are put into them."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from agentstream.v1 import error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AdapterError, AgentFailed, NotDelivered, Prompt
from agentstreamd.events.log import EventLog
from agentstreamd.model import Draft, Kind, event
from agentstreamd.sessions import stored
from agentstreamd.sessions.errors import SessionError, draining, log_errors
from agentstreamd.sessions.keeper import EndedTurn
from agentstreamd.sessions.keyed_locks import KeyedLocks
from agentstreamd.sessions.parts import Environment
from agentstreamd.sessions.prompts import message_id_json, preview, user_item
from agentstreamd.sessions.recording import Recording, interrupt_response
from agentstreamd.sessions.seat import DriverSeat
from agentstreamd.sessions.stored import Queued

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Spawn(Protocol):
    """Runs work of the session in the background, under a name."""

    def __call__(self, work: Coroutine[Any, Any, Result], name: str, /) -> "asyncio.Task[Result]":
        """Begin `work`."""


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


class Turns:
    """The turns of one session.

    All state is changed on the event loop, between two awaits: what a method decides on is still so
    when it acts.

    Attributes:
        queue: Messages that wait for the running turn to end.
        interrupting: The turn that is being interrupted; empty when none is.
        handing_over: The turn whose message the agent does not have yet; empty when it has.
        has_process: A process of the agent runs, as far as the session can tell.
        sending: Held, by client_message_id, while a message is taken.
    """

    def __init__(
        self,
        recording: Recording,
        seat: DriverSeat,
        environment: Environment,
        spawn: Spawn,
        queue: list[Queued],
    ) -> None:
        """Run turns on the stream of `recording` with the driver of `seat`."""
        self.queue = queue
        self.interrupting = ""
        self.handing_over = ""
        self.has_process = False
        self.sending = KeyedLocks()
        self._recording = recording
        self._keeper = recording.keeper
        self._seat = seat
        self._env = environment
        self._spawn = spawn
        self._accepting: dict[str, Accepted] = {}
        self._waiting = False
        self._had_process = False
        self._stops: dict[str, asyncio.Task[EndedTurn]] = {}
        self._waiters: dict[str, asyncio.Future[EndedTurn]] = {}

    def accepted(self, client_message_id: str) -> Accepted | None:
        """A message of this id whose acceptance is on its way into the log."""
        return self._accepting.get(client_message_id)

    def forget_accepted(self, client_message_id: str) -> None:
        """The log has it by now."""
        self._accepting.pop(client_message_id, None)

    @property
    def running(self) -> str:
        """The turn that runs; empty for none."""
        return self._keeper.turn_id

    @property
    def current(self) -> str:
        """The turn that runs, or is about to; empty for none."""
        return self._keeper.turn_id or (self.queue[0].shown.turn_id if self.queue else "")

    @property
    def _name(self) -> str:
        return f"session {self._recording.session_id}"

    async def start_turn(
        self, request: service_pb2.SendMessageRequest, digest: bytes
    ) -> service_pb2.SendMessageResponse:
        """Accept a message that starts a turn; returns when that is durable."""
        response = service_pb2.SendMessageResponse(
            turn_id=f"turn_{self._env.new_id()}",
            sequence=self._keeper.stamper.sequence,
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
            sequence=self._keeper.stamper.sequence,
            disposition=service_pb2.MESSAGE_DISPOSITION_QUEUED,
        )
        shown = session_pb2.QueuedMessage(
            turn_id=response.turn_id,
            client_message_id=request.client_message_id,
            preview=preview(tuple(request.parts)),
        )
        shown.create_time.FromNanoseconds(self._env.now_ns())
        position = self.queue[-1].position + 1 if self.queue else 1
        queued = Queued(shown, request, position)
        self.queue.append(queued)
        self._recording.tick()
        self._say_queue()
        puts = self._remember(request, digest, response)
        puts[stored.queue_key(response.turn_id)] = queued.encode()
        await self._accept(request, digest, response, self._recording.flush(puts))
        return response

    async def steer(
        self, request: service_pb2.SendMessageRequest, digest: bytes
    ) -> service_pb2.SendMessageResponse:
        """Put a message into the running turn; returns when the agent has it and it is durable."""
        turn_id = self._keeper.turn_id
        prompt = self._prompt(turn_id, request)
        async with self._seat.exclusive():
            if self._keeper.turn_id != turn_id or self._seat.closing:
                raise turn_not_running(self._recording.session_id, turn_id)
            # Taken before: what the agent says of the message at once is set off by it, too.
            response = steered(turn_id, self._keeper.stamper.sequence)
            await self._hand_in(prompt, request, response)
        self._recording.tick()
        self._keeper.add_message(
            user_item(f"user_{prompt.message_id}", prompt.parts),
            metadata_json=message_id_json(request.client_message_id, prompt.message_id),
        )
        ticket = self._recording.flush(
            self._remember(request, digest, response), [stored.steer_key(prompt.message_id)]
        )
        await self._recording.committed(ticket)
        return response

    async def _hand_in(
        self,
        prompt: Prompt,
        request: service_pb2.SendMessageRequest,
        response: service_pb2.SendMessageResponse,
    ) -> None:
        """Put a message into the running turn. Whatever happens, it is durable by then."""
        shown = session_pb2.QueuedMessage(turn_id=prompt.turn_id)
        key = stored.steer_key(prompt.message_id)
        journal = self._recording.journal
        try:
            puts = {key: Queued(shown, request, response.sequence).encode()}
            await self._recording.committed(journal.write((), puts=puts))
            if self._keeper.turn_id != prompt.turn_id:
                raise NotDelivered("the turn has ended")
            await self._seat.driver.steer(prompt)
        except BaseException as error:
            journal.write((), deletes=[key])
            if isinstance(error, NotDelivered):
                raise turn_not_running(self._recording.session_id, prompt.turn_id) from error
            raise

    def discard_queue(self) -> None:
        """Forget the messages that wait."""
        if not self.queue:
            return
        keys = [stored.queue_key(queued.shown.turn_id) for queued in self.queue]
        self.queue.clear()
        self._recording.tick()
        self._say_queue()
        self._recording.flush(deletes=keys)

    async def interrupt(self) -> service_pb2.InterruptTurnResponse:
        """Stop the running turn; returns when it has ended and that is durable."""
        ended = await self.stop()
        await self._recording.sync()
        return interrupt_response(ended)

    async def ended_turn(self, turn_id: str, log: EventLog) -> service_pb2.InterruptTurnResponse:
        """How a turn has ended, once that is durable. Raises TURN_NOT_RUNNING."""
        session_id = self._recording.session_id
        await self._recording.sync()
        with log_errors(session_id):
            value = await log.get(session_id, stored.turn_key(turn_id)) if turn_id else None
        if value is None:
            raise turn_not_running(session_id, turn_id)
        return service_pb2.InterruptTurnResponse.FromString(value)

    async def stop(self) -> EndedTurn:
        """Have the agent stop the running turn; stop the agent if it does not.

        All who ask for it while it goes on share one attempt, which goes on without them.
        """
        turn_id = self._keeper.turn_id
        if not turn_id:
            raise turn_not_running(self._recording.session_id, "")
        self.interrupting = turn_id
        stop = self._stops.get(turn_id)
        if stop is None:
            stop = self._spawn(self._stop(turn_id), "interrupt")
            self._stops[turn_id] = stop
            stop.add_done_callback(lambda _: self._stops.pop(turn_id, None))
        try:
            return await asyncio.shield(stop)
        except asyncio.CancelledError:
            if stop.cancelled():
                raise draining() from None
            raise

    async def _stop(self, turn_id: str) -> EndedTurn:
        waiter = self._waiter(turn_id)
        if not (self._waiting and self.handing_over == turn_id):
            try:
                async with asyncio.timeout(self._env.config.interrupt_grace_seconds):
                    await self._seat.driver.interrupt()
                    return await asyncio.shield(waiter)
            except (TimeoutError, AdapterError) as error:
                why = str(error) or "it had its time"
                logger.info("%s: the turn did not stop by itself: %s", self._name, why)
            except Exception:
                logger.exception("%s: the driver failed to interrupt", self._name)
            try:
                await self._seat.close()
            except Exception:
                logger.exception("%s: the driver failed to close", self._name)
        if self._keeper.turn_id == turn_id:
            self._recording.tick()
            self._keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
            self._recording.flush()
        return await waiter

    async def stop_late(self, turn_id: str) -> None:
        """Stop a turn that the agent was told to end, if it has not done so in time."""
        if self._keeper.turn_id != turn_id:
            return
        self.interrupting = turn_id
        waiter = self._waiter(turn_id)
        await asyncio.wait([waiter], timeout=self._env.config.interrupt_grace_seconds)
        if self._keeper.turn_id == turn_id:
            await self.stop()

    def _waiter(self, turn_id: str) -> "asyncio.Future[EndedTurn]":
        waiter = self._waiters.get(turn_id)
        if waiter is None:
            waiter = self._waiters[turn_id] = asyncio.get_running_loop().create_future()
        return waiter

    def start_queued(self) -> None:
        """Start the next message that waits, if nothing runs."""
        if self._keeper.turn_id or not self.queue or self._seat.closing or self._keeper.ended:
            return
        queued = self.queue.pop(0)
        self._recording.tick()
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
        self._recording.tick()
        self._keeper.begin_turn(
            turn_id,
            trigger,
            user_item(f"user_{prompt.message_id}", prompt.parts),
            client_message_id=request.client_message_id,
            metadata_json=message_id_json(request.client_message_id, prompt.message_id),
        )
        ticket = self._recording.flush(puts, deletes)
        self.handing_over = turn_id
        self._waiting = True
        self._had_process = self.has_process
        self._spawn(self._deliver(prompt, ticket), "deliver")
        return ticket

    async def _deliver(self, prompt: Prompt, ticket: int) -> None:
        turn_id = prompt.turn_id
        try:
            # Durable first: an agent must not work on a message that a crash would forget.
            await self._recording.journal.settled(ticket)
            async with self._seat.exclusive():
                if self._keeper.turn_id == turn_id and not self._seat.closing:
                    self._waiting = False
                    await self._seat.driver.send(prompt)
                    self.has_process = self.has_process or self.handing_over == turn_id
        except SessionError:
            return  # the session is gone
        except AdapterError as error:
            self.fail_turn(turn_id, str(error), _code_of(error))
        except Exception:
            logger.exception("%s: the driver failed to send", self._name)
            self.fail_turn(
                prompt.turn_id,
                "the adapter failed; the daemon's log says more",
                error_pb2.ERROR_CODE_AGENT_INTERNAL,
            )
        finally:
            if self.handing_over == turn_id:
                self.handing_over = ""

    def survives_exit(self) -> bool:
        """Take note that a process of the agent is gone; whether the running turn goes on.

        It does where its message is not with the agent yet and a process ran before: the driver has
        noticed late that that one is gone, or ended it, and hands the message to the next one.
        """
        self.has_process = False
        survives = bool(self.handing_over) and self._had_process
        self._had_process = False
        if not survives:
            self.handing_over = ""
        return survives

    def fail_turn(self, turn_id: str, message: str, code: error_pb2.ErrorCode.ValueType) -> None:
        """End a turn as failed (as interrupted, if it was being), if it is still running."""
        if self._keeper.turn_id != turn_id:
            return
        self._recording.tick()
        error = error_pb2.Error(message=message, code=code)
        if self.interrupting == turn_id:
            self._keeper.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
        else:
            said = event(synthetic=True)
            said.error.CopyFrom(error)
            self._keeper.apply([Draft(Kind.ERROR, said)])
            self._keeper.end_turn(event_pb2.TURN_STATUS_FAILED, error)
        self._recording.flush()

    def ended(self, turn: EndedTurn) -> None:
        """Take note that a turn has ended; the next message that waits follows."""
        if self.interrupting == turn.turn_id:
            self.interrupting = ""
        waiter = self._waiters.pop(turn.turn_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(turn)
        if self.queue:
            # Not at once: what the agent said together with the end of its turn comes first.
            asyncio.get_running_loop().call_soon(self.start_queued)

    def _prompt(self, turn_id: str, request: service_pb2.SendMessageRequest) -> Prompt:
        return Prompt(
            turn_id,
            self._env.new_id(),
            tuple(request.parts),
            request.command,
            request.model,
            request.effort,
        )

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
        await self._recording.committed(ticket)
        # Kept when that failed: the log will take it later, until then only this knows it.
        self._accepting.pop(client_message_id, None)

    def _say_queue(self) -> None:
        update = event_pb2.SessionUpdated()
        update.queue.messages.extend(queued.shown for queued in self.queue)
        update.queue.SetInParent()
        self._keeper.update(update)


def steered(turn_id: str, sequence: int) -> service_pb2.SendMessageResponse:
    """What is answered to a message that was put into a running turn."""
    return service_pb2.SendMessageResponse(
        turn_id=turn_id,
        sequence=sequence,
        disposition=service_pb2.MESSAGE_DISPOSITION_STEERED,
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
