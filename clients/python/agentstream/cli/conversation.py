"""A session at the terminal: its events shown as they come, its requests answered."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from agentstream.cli.answering import (
    Answerer,
    pending_request,
    request_of,
    resolved_request_id,
    respond,
)
from agentstream.cli.prompts import Answer, Request
from agentstream.cli.terminal import Interrupted
from agentstream.client import (
    AgentstreamError,
    AsyncClient,
    AsyncEventStream,
    Backoff,
    FailedPrecondition,
    InvalidArgument,
    RequestAlreadyResolved,
    Unavailable,
    typed_errors,
)
from agentstream.v1 import event_pb2, interaction_pb2, service_pb2, session_pb2

_ATTEMPTS: Final = 3
"""How often an answer that does not fit is asked for again."""


class Conversation:
    """Follows one session in the background, from `start` to `close`.

    Attributes:
        session_id: The session.
        ended: Set once the session has ended.
    """

    def __init__(
        self,
        client: AsyncClient,
        session_id: str,
        *,
        show: Callable[[event_pb2.Event], object],
        notice: Callable[[str], object],
        answerer: Answerer | None = None,
        on_interrupt: Callable[[], object] = lambda: None,
        hold: bool = True,
    ) -> None:
        """A conversation.

        Args:
            client: The daemon.
            session_id: The session.
            show: Given every event, in order.
            notice: Given a sentence about what went wrong beside the stream.
            answerer: Answers requests; None leaves them to others.
            on_interrupt: Called when the person presses Ctrl-C at a prompt of the answerer.
            hold: Show nothing while the answerer is asking, as it would tear the prompt.
        """
        self.session_id = session_id
        self.ended = asyncio.Event()
        self._client = client
        self._show = show
        self._notice = notice
        self._answerer = answerer
        self._on_interrupt = on_interrupt
        self._hold = hold
        self._held: list[event_pb2.Event] = []
        self._asking = asyncio.Lock()
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._on_its_way: set[str] = set()
        self._turns: dict[str, asyncio.Future[event_pb2.TurnEnded]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def start(self, after: int = 0) -> session_pb2.Session:
        """Follow from after `after`; returns when the stream is open. Raises AgentstreamError."""
        stream = self._client.follow(self.session_id, after, on_reconnect=self._reconnecting)
        session = await stream.open()
        # Only what is waiting still: those of the backlog that were answered are none of ours.
        waiting = {pending_request(p).request_id for p in session.pending_requests}
        self._reader = asyncio.create_task(self._read(stream, session.latest_sequence, waiting))
        return session

    async def send(
        self,
        parts: Sequence[service_pb2.InputPart],
        *,
        command: bool = False,
        queue: bool = False,
    ) -> asyncio.Future[event_pb2.TurnEnded]:
        """Send a message; the future has the end of its turn. Raises AgentstreamError.

        `command`: it is a command of the agent. `queue`: wait for a turn that runs.
        """
        request = service_pb2.SendMessageRequest(
            session_id=self.session_id,
            parts=parts,
            command=command,
            when_busy=service_pb2.WHEN_BUSY_QUEUE if queue else service_pb2.WHEN_BUSY_REJECT,
        )
        with typed_errors():
            answer = await self._client.stub.SendMessage(request)
        return self._turn(answer.turn_id)

    async def wait(self, turn: "asyncio.Future[event_pb2.TurnEnded]") -> event_pb2.TurnEnded | None:
        """The end of `turn`, or None if the session ended without it.

        Raises AgentstreamError when the stream can't be followed any more.
        """
        assert self._reader is not None
        waiters: list[asyncio.Future[Any]] = [turn, self._reader]
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            self._reader.result()
            return None
        async with self._asking:  # until a prompt that is not wanted any more has gone
            self._release()
        return turn.result()

    async def wait_ended(self) -> None:
        """Wait for the end of the session's stream. Raises AgentstreamError."""
        assert self._reader is not None
        await asyncio.wait([self._reader])  # cancelling the wait must not cancel the reader
        self._reader.result()

    async def interrupt(self) -> None:
        """Interrupt the running turn; not having one is no error."""
        try:
            with typed_errors():
                await self._client.stub.InterruptTurn(
                    service_pb2.InterruptTurnRequest(session_id=self.session_id)
                )
        except FailedPrecondition as error:
            if error.reason not in ("TURN_NOT_RUNNING", "SESSION_ENDED"):
                raise

    async def close(self) -> None:
        """Stop following; the session goes on."""
        tasks = [*self._answers.values(), *([self._reader] if self._reader else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._release()

    def _turn(self, turn_id: str) -> "asyncio.Future[event_pb2.TurnEnded]":
        if turn_id not in self._turns:
            self._turns[turn_id] = asyncio.get_running_loop().create_future()
        return self._turns[turn_id]

    async def _read(self, stream: AsyncEventStream, backlog: int, waiting: set[str]) -> None:
        async with stream:
            async for event in stream:
                if self._hold and self._asking.locked():
                    self._held.append(event)
                else:
                    self._show(event)
                request = request_of(event)
                if request is not None and (
                    event.sequence > backlog or request.request_id in waiting
                ):
                    self._begin_answer(request)
                elif request_id := resolved_request_id(event):
                    self._withdraw(request_id)
                elif event.HasField("turn_ended"):
                    turn = self._turn(event.turn_id)
                    if not turn.done():
                        turn.set_result(event.turn_ended)
                elif event.HasField("session_ended"):
                    self.ended.set()

    def _withdraw(self, request_id: str) -> None:
        """The request is settled: nobody needs to answer it, unless it was our answer."""
        if request_id in self._answers and request_id not in self._on_its_way:
            self._answers[request_id].cancel()

    def _begin_answer(self, request: Request) -> None:
        if self._answerer is None:
            return
        task = asyncio.create_task(self._answer(request, self._answerer))
        self._answers[request.request_id] = task
        task.add_done_callback(lambda _: self._answers.pop(request.request_id, None))

    async def _answer(self, request: Request, answerer: Answerer) -> None:
        async with self._asking:
            self._release()
            try:
                for _ in range(_ATTEMPTS):
                    if await self._give(request, await answerer.ask(request)):
                        break
            except Interrupted:
                self._on_interrupt()
            except AgentstreamError as error:
                self._notice(f"The answer was not taken: {error.message}")
            finally:
                self._release()

    async def _give(self, request: Request, answer: Answer) -> bool:
        """Give the answer; returns whether that is all that can be done."""
        stop = isinstance(answer, interaction_pb2.PermissionAnswer) and answer.interrupt
        self._on_its_way.add(request.request_id)
        try:
            await self._respond(request.request_id, answer)
        except RequestAlreadyResolved as error:
            self._notice(f"It has been answered already: {error.message}")
        except InvalidArgument as error:
            self._notice(f"The answer does not fit: {error.message}")
            return False
        except FailedPrecondition as error:
            if not stop or error.reason != "CAPABILITY_NOT_SUPPORTED":
                raise
            # This agent can't do both at once.
            reject = interaction_pb2.PERMISSION_DECISION_REJECT
            plain = interaction_pb2.PermissionAnswer(decision=reject)
            await self._respond(request.request_id, plain)
            await self.interrupt()
        finally:
            self._on_its_way.discard(request.request_id)
        return True

    async def _respond(self, request_id: str, answer: Answer) -> None:
        backoff = Backoff()
        for attempt in range(1, backoff.attempts + 1):
            try:
                await respond(self._client, self.session_id, request_id, answer)
                return
            except Unavailable as error:  # the same answer again is safe
                if attempt == backoff.attempts:
                    raise
                await asyncio.sleep(backoff.delay(attempt, error.retry_delay, 0.5))

    def _release(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._show(event)

    def _reconnecting(self, error: AgentstreamError, delay: float) -> None:
        if delay >= 1:
            self._notice(f"The connection to the daemon was lost, trying again in {delay:.0f} s …")
