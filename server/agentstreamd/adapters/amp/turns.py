"""Turns: prompts and their echoes, and how a turn ends. Amp has neither turn ids nor turn ends.

A turn ends with the assistant's message that calls no tool, or with an error. The CLI echoes each
prompt when it takes it up.
"""

from collections import deque
from dataclasses import dataclass

from msgspec import Raw

from agentstream.v1 import error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.amp import native
from agentstreamd.model import Draft, Kind, event

_LIMIT = 2**53


@dataclass(frozen=True, slots=True)
class _Sent:
    text: str
    interrupts: bool


class Turns:
    """Follows the turns of one CLI process.

    Attributes:
        running: A turn is open.
        spoken: The assistant has said something in it.
        error: What went wrong in it so far, said by an `error` line of the simple dialect.
        interrupted: We have cut the turn by a message without content.
    """

    def __init__(self) -> None:
        self.running = False
        self.spoken = False
        self.error: error_pb2.Error | None = None
        self.interrupted = False
        self._unechoed: deque[_Sent] = deque()
        self._unclaimed: str | None = None
        self._usage: session_pb2.Usage | None = None

    def on_sent(self, text: str, *, empty: bool) -> None:
        """A message was written to the CLI; an empty one interrupts, any other is a prompt."""
        if empty:
            self.interrupted = True
        elif self.running and self._unclaimed == text:
            self._unclaimed = None  # a transcript, whose echo tells when the prompt was sent
            return
        else:
            self._begin()
        self._unechoed.append(_Sent(text, empty))

    def on_echo(self, text: str, *, has_content: bool, raw: tuple[bytes, ...]) -> tuple[bool, bool]:
        """A prompt is echoed. Returns whether it is ours, and whether its text is to be shown.

        One that is ours is recognized by its text; when only that differs, it is shown so that
        nothing is lost. An empty echo in a running turn is that of an interrupting message.
        """
        for sent in self._unechoed:
            if sent.text.split() == text.split():
                self._unechoed.remove(sent)
                return True, False
        if self._unechoed and not self._unechoed[0].interrupts:
            self._unechoed.popleft()
            return True, has_content
        return (not has_content and self.running), has_content

    def begin(
        self, trigger: event_pb2.TurnTrigger.ValueType, raw: tuple[bytes, ...], text: str | None
    ) -> list[Draft]:
        """A turn that nobody here began. One that is still open was cut by it."""
        drafts = self.end(event_pb2.TURN_STATUS_INTERRUPTED, raw) if self.running else []
        self._begin()
        self._unclaimed = text
        made = event()
        made.turn_started.trigger = trigger
        return [*drafts, Draft(Kind.TURN_STARTED, made, raw)]

    def end(
        self,
        status: event_pb2.TurnStatus.ValueType,
        raw: tuple[bytes, ...],
        *,
        stop_reason: str = "",
        error: error_pb2.Error | None = None,
    ) -> list[Draft]:
        """The running turn has ended; nothing when none runs."""
        if not self.running:
            return []
        self.running = False
        made = event()
        ended = made.turn_ended
        ended.status = status
        ended.stop_reason = stop_reason
        if self._usage is not None:
            ended.usage.CopyFrom(self._usage)
        if error is not None:
            ended.error.CopyFrom(error)
        self._unclaimed = None
        self.interrupted = False
        return [Draft(Kind.TURN_ENDED, made, raw)]

    def use(self, usage: Raw | None) -> None:
        """Add what one call of the model used."""
        said = native.fields(usage)
        if not said:
            return
        fresh, written = _count(said.get("input_tokens")), _count(said.get("output_tokens"))
        stored = _count(said.get("cache_creation_input_tokens"))
        cached = _count(said.get("cache_read_input_tokens"))
        total = self._usage or session_pb2.Usage()
        total.input_tokens += fresh + stored + cached
        total.output_tokens += written
        total.cache_read_tokens += cached
        total.cache_write_tokens += stored
        self._usage = total

    def _begin(self) -> None:
        self.running = True
        self.spoken = False
        self.error = None
        self.interrupted = False
        self._usage = None
        self._unclaimed = None


def _count(raw: Raw | None) -> int:
    value = native.plain(raw)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value < _LIMIT else 0
