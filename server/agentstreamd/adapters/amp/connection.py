"""One running process of Amp: its lines both ways, its questions, its end."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentstream.v1 import error_pb2
from agentstreamd.adapters.amp import asks, failures
from agentstreamd.adapters.amp.asks import Ask
from agentstreamd.adapters.amp.client_side import INTERRUPT
from agentstreamd.adapters.amp.failures import Failure
from agentstreamd.adapters.amp.normalizer import AmpNormalizer
from agentstreamd.adapters.base import AgentExit
from agentstreamd.model import Draft, Kind, unparsed
from agentstreamd.process import ChildProcess, ExitStatus, Line, LineFramer, ProcessGone, plain_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds, and how large they may be, in bytes.

    Attributes:
        start_seconds: From the start of the process until its first message.
        call_seconds: For the call that a permission is asked for, to be seen before the question.
        cut_seconds: Until a tool that is cut has its result, before the process is signalled.
        polite_seconds: When ending: until the process has ended by itself. Then TERM and KILL.
        term_seconds: From TERM to KILL.
        sweep_seconds: From TERM to KILL of what the process leaves running.
        drain_seconds: After the end of the process: until its last output is in the stream.
        line_bytes: Longest line that is taken; a longer one becomes `agent_unparsed`.
    """

    start_seconds: float = 60.0
    call_seconds: float = 0.3
    cut_seconds: float = 1.5
    polite_seconds: float = 8.0
    term_seconds: float = 2.0
    sweep_seconds: float = 1.0
    drain_seconds: float = 15.0
    line_bytes: int = 64 * 2**20


class StartFailed(Exception):
    """The process ended, or went silent, before its first message; it is gone."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Listener:
    """What a connection tells its driver. A base to derive from."""

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """Drafts for the stream, in order; waits while the stream can't take more."""
        raise NotImplementedError

    def on_exit(self, connection: "Connection", exit: AgentExit) -> None:
        """The process, which had begun to speak, is gone; all its drafts were handed over."""
        raise NotImplementedError


class Connection:
    """A process and what is known of it. Make it, then `start` it once."""

    def __init__(
        self,
        child: ChildProcess,
        normalizer: AmpNormalizer,
        listener: Listener,
        limits: Limits,
        *,
        allows_all: bool,
        cuts_turns: bool,
    ) -> None:
        self.allows_all = allows_all
        self._cuts_turns = cuts_turns
        self._child = child
        self._normalizer = normalizer
        self._listener = listener
        self._limits = limits
        self._spoken = asyncio.Event()
        self._news = asyncio.Condition()
        self._order = asyncio.Lock()
        self._early_text = bytearray()
        self._expected = False
        self._broken = ""
        self._failed_start = False
        self._reader: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[ExitStatus] | None = None

    @property
    def usable(self) -> bool:
        """The process takes messages, as far as it is known."""
        return (
            self._child.exit_status is None
            and not self._expected
            and not self._normalizer.finished
            and not self._broken
        )

    async def start(self, prompt: bytes) -> None:
        """Hand over the first message and wait until the process speaks.

        It says nothing before it has a message. Raises `StartFailed`; the process is then gone.
        """
        self._reader = asyncio.create_task(self._read())
        speaking = asyncio.create_task(self._spoken.wait())
        try:
            with contextlib.suppress(ProcessGone):
                await self.prompt(prompt)
            waiting: set[asyncio.Task[bool] | asyncio.Task[None]] = {speaking, self._reader}
            done, _ = await asyncio.wait(
                waiting,
                timeout=self._limits.start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except BaseException:
            self._child.kill()
            raise
        finally:
            speaking.cancel()
        if self._spoken.is_set():
            return
        self._failed_start = True
        status = await self._child.stop()
        await self.ended()
        how = str(status) if done else f"no message in {self._limits.start_seconds:g} s"
        said = plain_text(bytes(self._early_text))
        raise StartFailed(failures.start_failure(how, said, self._child.stderr.text()))

    async def prompt(self, line: bytes) -> None:
        """Write a message that starts a turn. Raises ProcessGone: it did not arrive."""
        self._normalizer.sent(line)
        await self._child.stdin.write(line + b"\n")

    async def ask(self, request_id: str, ask: Ask) -> None:
        """Put a question of the permission program into the stream.

        The call it is about may still be on its way here; it is waited for, a little: a sub-agent's
        never comes.
        """
        tools = self._normalizer.tools
        await self._until(
            lambda: bool(tools.asking(ask.tool, ask.tool_use_id, ask.arguments)),
            self._limits.call_seconds,
        )
        await self._feed([asks.encode_ask(request_id, ask)])

    async def withdraw(self, request_id: str) -> None:
        """Nobody waits for the answer to a question any more."""
        await self._feed([asks.encode_withdrawn(request_id)])

    async def interrupt(self) -> None:
        """Stop the running turn, and with it the process: Amp has no other way to stop.

        A message without content cuts the turn and leaves the process, but then the model is asked
        again at once, and may go on working. It is used to cut a running tool, since the model then
        learns that it was; a tool that only the signal ends is later said not to have run at all.
        """
        if not self._normalizer.turns.running and self._spoken.is_set():
            return
        if self._cuts_turns and self._normalizer.tools.calls and self.usable:
            with contextlib.suppress(ProcessGone):
                self._normalizer.sent(INTERRUPT)
                await self._child.stdin.write(INTERRUPT + b"\n")
                await self._until(
                    lambda: not self._normalizer.tools.calls, self._limits.cut_seconds
                )
        self._expected = True
        with contextlib.suppress(ProcessGone):
            self._child.send_signal(signal.SIGINT)
        self._finish()

    async def stop(self) -> None:
        """End the process and all that it started, its last output being in the stream after.

        Bounded in time, idempotent.
        """
        self._expected = True
        await self._child.stop(self._ask_to_end)
        if self._reader is None:
            return
        done, _ = await asyncio.wait({self._reader}, timeout=self._limits.drain_seconds)
        if not done:
            _log.error("%s: its last output could not be put into the stream in time", self._child)
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def ended(self) -> None:
        """Wait until the process is gone and its exit was reported; bounded."""
        if self._ending is not None:
            await asyncio.wait({self._ending})
        if self._reader is not None and not self._reader.done():
            await asyncio.wait({self._reader}, timeout=self._limits.drain_seconds)

    async def _ask_to_end(self) -> None:
        if self._normalizer.turns.running:
            # Closed input would end it only after the turn.
            self._child.send_signal(signal.SIGINT)
        self._child.close_stdin()

    def _finish(self) -> None:
        """The process ends by itself once its input is closed; it may take its time."""
        if self._ending is None:
            self._child.close_stdin()
            self._ending = asyncio.create_task(self._child.stop(self._child.wait))

    # --- reading -------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            framer = LineFramer(self._limits.line_bytes, skip_empty=True)
            while chunk := await self._child.stdout.read():
                await self._feed(framer.feed(chunk))
            await self._feed(framer.finish())
            await self._child.end_within(self._limits.polite_seconds)
        except Exception:
            _log.exception("%s: its output could not be put into the stream", self._child)
            self._broken = "Amp's output could not be put into the stream."
            self._child.kill()
            await self._child.wait_gone()
        finally:
            if self._spoken.is_set():
                self._listener.on_exit(self, self._exit())
            async with self._news:
                self._news.notify_all()

    async def _feed(self, lines: Iterable[Line]) -> None:
        async with self._order:
            drafts: list[Draft] = []
            for line in lines:
                if isinstance(line, bytes):
                    if not self._spoken.is_set() and not self._speaks(line):
                        continue
                    drafts += self._normalizer.feed(line)
                else:
                    drafts.append(self._too_long(line.head, line.length))
            if drafts:
                await self._listener.on_drafts(drafts)
        if self._normalizer.finished or any(d.kind is Kind.SESSION_ENDED for d in drafts):
            self._finish()
        async with self._news:
            self._news.notify_all()

    def _speaks(self, line: bytes) -> bool:
        """Whether this is the first message. Text before it is kept for the failure to start."""
        if line.lstrip().startswith(b"{") and not self._failed_start:
            self._spoken.set()
            return True
        if len(self._early_text) < 16 * 1024:
            self._early_text += line + b"\n"
        if line.startswith(b"No API key found"):
            self._child.kill()  # it waits for a person to log in
        return False

    def _too_long(self, head: bytes, length: int) -> Draft:
        if b'"stop_reason":"end_turn"' in head or b'"type":"result"' in head:
            self._broken = "Amp ended its turn with a message too large to read."
        else:
            # Where a line says how the turn goes on can't be told from its beginning.
            self._broken = "Amp wrote a message too large to read."
        self._child.kill()
        return unparsed(
            head, f"the line is longer than {self._limits.line_bytes} bytes", size_bytes=length
        )

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(
                    lambda: condition() or self._reader is None or self._reader.done()
                )

    def _exit(self) -> AgentExit:
        stderr = self._child.stderr
        status = self._child.exit_status or ExitStatus(signal=signal.SIGKILL)
        # After its last message it exits, with 0 or (a turn that was cut) 1.
        done = self._normalizer.finished and status.signal is None
        failure = failures.exit_failure(str(status), stderr.text())
        if self._broken:
            failure = Failure(error_pb2.ERROR_CODE_AGENT_PROTOCOL, self._broken)
        expected = (self._expected or done) and not self._broken
        return AgentExit(
            expected=expected,
            exit_code=status.code,
            signal=status.signal,
            stderr_head=stderr.head(),
            stderr_tail=stderr.tail(),
            message=f"Amp has ended ({status})." if expected else failure.message,
            code=failure.code,
        )
