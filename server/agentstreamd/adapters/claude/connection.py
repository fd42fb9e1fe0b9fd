"""One running process of Claude Code: its lines both ways, its control requests, its end."""

import asyncio
import contextlib
import itertools
import logging
import signal
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentstream.v1 import agent_pb2, error_pb2
from agentstreamd.adapters.base import AgentExit, AgentFailed
from agentstreamd.adapters.claude import answers, failures
from agentstreamd.adapters.claude.failures import Failure, Reason
from agentstreamd.adapters.claude.normalizer import ClaudeControl, ClaudeNormalizer
from agentstreamd.adapters.claude.requests import NativeRequest
from agentstreamd.model import Draft, Kind, unparsed
from agentstreamd.process import ChildProcess, ExitStatus, Line, LineFramer, ProcessGone

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds, and how large they may be, in bytes.

    Attributes:
        start_seconds: From the start of the process until it answers `initialize`.
        control_seconds: Until a control request (model, permission mode, interrupt) is answered.
        taken_seconds: Until a message is taken up, for an interrupt that follows it.
        interrupt_seconds: When stopping: until an interrupted turn has ended.
        polite_seconds: When stopping: until the process has ended by itself, `interrupt_seconds`
            included. Then TERM and KILL follow.
        term_seconds: From TERM to KILL.
        sweep_seconds: From TERM to KILL of what the process leaves running.
        drain_seconds: After the end of the process: until its last output is in the stream.
        line_bytes: Longest line that is taken; a longer one becomes `agent_unparsed`.
    """

    start_seconds: float = 60.0
    control_seconds: float = 15.0
    taken_seconds: float = 3.0
    interrupt_seconds: float = 5.0
    polite_seconds: float = 10.0
    term_seconds: float = 2.0
    sweep_seconds: float = 1.0
    drain_seconds: float = 15.0
    line_bytes: int = 64 * 2**20


class StartFailed(Exception):
    """The process ended, or went silent, before it was ready; it is gone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Listener:
    """What a connection tells its driver. A base to derive from."""

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """Drafts for the stream, in order; waits while the stream can't take more."""
        raise NotImplementedError

    def on_exit(self, connection: "Connection", exit: AgentExit) -> None:
        """The process, which had been ready, is gone; all its drafts were handed over."""
        raise NotImplementedError


class Connection:
    """A process and what is known of it. Make it, then `start` it once.

    Attributes:
        turn_open: A turn runs, as far as it is known.
    """

    def __init__(
        self,
        child: ChildProcess,
        normalizer: ClaudeNormalizer,
        listener: Listener,
        limits: Limits,
        *,
        can_bypass: bool,
    ) -> None:
        self._can_bypass = can_bypass
        self.turn_open = False
        self._child = child
        self._normalizer = normalizer
        self._listener = listener
        self._limits = limits
        self._controls: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)
        # What the process says before it is ready; not for the stream when it never is.
        self._early: list[Draft] | None = []
        self._turn_taken = asyncio.Event()
        self._turn_ended = asyncio.Event()
        self._expected = False
        self._broken = ""
        self._asked: list[str] = []
        self._message_id = ""
        self._initialize_id = ""
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """The process runs and takes input, as far as it is known."""
        return self._child.exit_status is None and not self._expected

    def can_take(self, mode: agent_pb2.PermissionMode.ValueType) -> bool:
        """Whether the running process can be put into `mode`."""
        return self._can_bypass or mode != agent_pb2.PERMISSION_MODE_BYPASS

    async def start(self, initialize: Mapping[str, Any]) -> None:
        """Wait until the process is ready. Raises `StartFailed`; the process is then gone."""
        self._reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await self._request("initialize", initialize)
        except (TimeoutError, ProcessGone, AgentFailed) as error:
            if isinstance(error, ProcessGone):
                await self.ended()  # by itself: its exit code and last words are on their way
            status = await self._child.stop()
            silent = isinstance(error, TimeoutError)
            how = f"no answer in {self._limits.start_seconds:g} s" if silent else str(status)
            said = f"{self._child.stderr.text()}\n{error if isinstance(error, AgentFailed) else ''}"
            raise StartFailed(failures.start_failure(how, said)) from None
        except BaseException:
            self._child.kill()
            raise

    async def prompt(self, line: bytes, message_id: str) -> None:
        """Write a message that starts a turn. Raises ProcessGone: it did not arrive."""
        self._message_id = message_id
        self._turn_taken.clear()
        self._turn_ended.clear()
        self.turn_open = True
        try:
            await self.write(line)
        except ProcessGone:
            self.turn_open = False
            raise

    async def write(self, line: bytes) -> None:
        """Write one line (given without terminator). Raises ProcessGone.

        The normalizer has the line before the process can react to it.
        """
        drafts = self._normalizer.sent(line)
        await self._child.stdin.write(line + b"\n")
        if drafts:
            await self._hand_over(drafts)

    def waiting(self, request_id: str) -> NativeRequest | None:
        """The request, where the process waits for its answer; else None."""
        request = self._normalizer.request(request_id)
        return None if request is None or request.answered else request

    async def control(self, subtype: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a control request; return the payload of its answer.

        Raises AgentFailed (refused, or no answer in time) and ProcessGone.
        """
        try:
            async with asyncio.timeout(self._limits.control_seconds):
                return await self._request(subtype, fields)
        except TimeoutError:
            seconds = f"{self._limits.control_seconds:g} seconds"
            raise AgentFailed(f"Claude Code did not answer {subtype} within {seconds}.") from None

    async def interrupt(self) -> None:
        """Tell the process to stop the running turn. Raises as `control` does.

        It is not told before it says that it has taken the turn up: an interrupt that finds it idle
        is answered with success and stops nothing. A message that waits behind a turn that the
        process began by itself is withdrawn, since an interrupt does not drop it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.taken_seconds):
                await self._turn_taken.wait()
        if self.turn_open:
            with contextlib.suppress(AgentFailed):  # taken up already, or not known to an old CLI
                await self.control("cancel_async_message", {"message_uuid": self._message_id})
        if self.turn_open:
            await self.control("interrupt", {})

    async def stop(self) -> None:
        """End the process and all that it started, its last output being in the stream after.

        Bounded in time, idempotent. A running turn is interrupted first, which is the only way
        that ends its tools in order; input is closed only after the turn's result was read, since
        an older CLI loses output otherwise.
        """
        self._expected = True
        ready = self._early is None
        await self._child.stop(self._ask_to_end if ready else None)
        if self._reader is None:
            return
        done, _ = await asyncio.wait({self._reader}, timeout=self._limits.drain_seconds)
        if not done:
            _log.error("%s: its last output could not be put into the stream in time", self._child)
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def ended(self) -> None:
        """Wait until the process is gone and its exit was reported; bounded."""
        if self._reader is not None and not self._reader.done():
            await asyncio.wait({self._reader}, timeout=self._limits.drain_seconds)

    async def _ask_to_end(self) -> None:
        if self.turn_open:
            try:
                async with asyncio.timeout(self._limits.interrupt_seconds):
                    await self.interrupt()
                    await self._turn_ended.wait()
            except (TimeoutError, AgentFailed):
                _log.warning("%s did not end its turn when interrupted", self._child)
        self._child.close_stdin()

    async def _request(self, subtype: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        request_id = f"agentstream-{next(self._numbers)}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._controls[request_id] = answer
        if subtype == "initialize":
            self._initialize_id = request_id
        try:
            await self.write(answers.encode_control(request_id, subtype, fields))
            return await answer
        finally:
            self._controls.pop(request_id, None)

    # --- reading -------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            framer = LineFramer(self._limits.line_bytes, skip_empty=True)
            while chunk := await self._child.stdout.read():
                await self._take(framer.feed(chunk))
            await self._take(framer.finish())
            self._fail_controls()
            await self._child.end_within(self._limits.polite_seconds)
            await self._hand_over(self._normalizer.finish())
        except Exception:
            _log.exception("%s: its output could not be put into the stream", self._child)
            self._child.kill()
            await self._child.wait_gone()
        finally:
            self.turn_open = False
            self._fail_controls()
            self._turn_taken.set()
            self._turn_ended.set()
            if self._early is None:
                self._listener.on_exit(self, self._exit())

    def _fail_controls(self) -> None:
        for answer in self._controls.values():
            if not answer.done():
                answer.set_exception(ProcessGone("Claude Code has ended."))

    def _exit(self) -> AgentExit:
        stderr = self._child.stderr
        status = self._child.exit_status or ExitStatus(signal=signal.SIGKILL)
        failure = failures.exit_failure(str(status), stderr.text())
        if self._broken:
            protocol = error_pb2.ERROR_CODE_AGENT_PROTOCOL
            failure = Failure(Reason.OTHER, protocol, self._broken)
        return AgentExit(
            expected=self._expected,
            exit_code=status.code,
            signal=status.signal,
            stderr_head=stderr.head(),
            stderr_tail=stderr.tail(),
            message=f"Claude Code was stopped ({status})." if self._expected else failure.message,
            code=failure.code,
        )

    async def _take(self, lines: Iterable[Line]) -> None:
        drafts: list[Draft] = []
        for line in lines:
            if isinstance(line, bytes):
                drafts += self._normalizer.feed(line)
            else:
                error = f"the line is longer than {self._limits.line_bytes} bytes"
                drafts.append(unparsed(line.head, error, size_bytes=line.length))
                self._on_unreadable(line.head)
        controls = self._normalizer.take_controls()
        if drafts:
            unanswered = self._watch(drafts)
            await self._hand_over(drafts)
            if unanswered:
                self._background(self._leave_unanswered(unanswered))
        for control in controls:
            await self._on_control(control)

    def _watch(self, drafts: Iterable[Draft]) -> list[str]:
        """Take note of turns; returns the requests of those that have ended."""
        over: list[str] = []
        for draft in drafts:
            if draft.kind is Kind.TURN_STARTED:
                self.turn_open = True
                self._turn_taken.set()
                self._turn_ended.clear()
            elif draft.kind is Kind.TURN_ENDED:
                self.turn_open = False
                self._turn_taken.set()
                self._turn_ended.set()
                over += self._asked
                self._asked.clear()
            elif self.turn_open and (request_id := _asks(draft)):
                self._asked.append(request_id)
        return over

    async def _leave_unanswered(self, request_ids: Iterable[str]) -> None:
        """Answer what a turn left open, which its end has cancelled.

        Only background work still waits then (the CLI withdraws the rest), and would for ever.
        """
        for request_id in request_ids:
            if request := self.waiting(request_id):
                with contextlib.suppress(ProcessGone):
                    await self.write(answers.encode_unanswered(request))

    def _on_unreadable(self, head: bytes) -> None:
        """What must not be waited for because a line was too long."""
        if request_id := failures.asks_in(head):
            self._background(self._refuse(request_id, "the request is too large"))
        elif failures.ends_turn(head):
            self._broken = "Claude Code ended its turn with a message too large to read."
            self._child.kill()

    async def _hand_over(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        if self._early is not None:
            self._early += drafts
        else:
            await self._listener.on_drafts(drafts)

    # --- control messages ----------------------------------------------------------------------

    async def _on_control(self, control: ClaudeControl) -> None:
        if control.kind == "unsupported":
            message = f"agentstream does not support {control.error or 'this request'}"
            # Not awaited: it may have to wait until the process reads, and that for this reader.
            self._background(self._refuse(control.request_id, message))
            return
        answer = self._controls.get(control.request_id)
        if answer is None or answer.done():
            return
        if control.ok:
            if control.request_id == self._initialize_id:
                early, self._early = self._early, None
                await self._hand_over(early or ())
            answer.set_result(control.payload)
        else:
            answer.set_exception(AgentFailed(control.error or "no reason given"))

    async def _refuse(self, request_id: str, message: str) -> None:
        with contextlib.suppress(ProcessGone):
            await self.write(answers.encode_refusal(request_id, message))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _asks(draft: Draft) -> str:
    """The id of the request that the draft makes; empty for other drafts."""
    match draft.kind:
        case Kind.PERMISSION_REQUESTED:
            return draft.event.permission_requested.request_id
        case Kind.QUESTION_REQUESTED:
            return draft.event.question_requested.request_id
        case Kind.FORM_REQUESTED:
            return draft.event.form_requested.request_id
        case _:
            return ""
