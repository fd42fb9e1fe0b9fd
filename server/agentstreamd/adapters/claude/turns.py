"""Turns: which of the CLI's turns are ours, which it began by itself, and how each ended."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentstream.v1 import error_pb2, event_pb2
from agentstreamd.adapters.claude import errors
from agentstreamd.adapters.claude.errors import text_in
from agentstreamd.adapters.claude.native import verbatim
from agentstreamd.adapters.claude.usage import UsageMeter
from agentstreamd.model import Draft, Kind, event

_SAID_OF_A_TURN = (
    "num_turns",
    "duration_ms",
    "duration_api_ms",
    "ttft_ms",
    "terminal_reason",
    "origin",
    "structured_output",
)

_ECHOES = 256
"""So many prompts are remembered for their echo: a CLI may be told not to echo them."""


@dataclass(frozen=True, slots=True)
class _Sent:
    uuid: str
    text: str


class Turns:
    """Follows the turns of one CLI process.

    The CLI has no turn ids. A turn begins with `init` and ends with `result`; one that the CLI
    begins by itself (a background task ended) has an `origin` in its result. Our prompt may come
    while such a turn is under way and then waits in the CLI: the stream has both as one turn, which
    ends with the result of our prompt. That a prompt was taken up shows in its echo.
    """

    def __init__(self) -> None:
        self.api_error: tuple[str, str] | None = None
        self.api_error_raw: tuple[bytes, ...] = ()
        self.refused = False
        self._running = False
        self._notified = False
        self._waiting: list[_Sent] = []
        self._unechoed: deque[_Sent] = deque(maxlen=_ECHOES)
        self._taken = False
        self._meter = UsageMeter()
        self._raw: tuple[bytes, ...] = ()

    # Prompts of ours

    def on_prompt(self, uuid: str, text: str) -> None:
        """A prompt was written to the CLI."""
        sent = _Sent(uuid, text)
        self._waiting.append(sent)
        self._unechoed.append(sent)

    def on_withdrawn(self, uuid: str) -> None:
        """A prompt that waited was withdrawn."""
        self._waiting = [sent for sent in self._waiting if not uuid or sent.uuid != uuid]

    def on_taken(self, uuid: str) -> None:
        """The CLI says that it has taken up the prompt; an echo of it may follow."""
        self._take([sent for sent in self._waiting if uuid and sent.uuid == uuid])

    def on_echo(self, uuid: str, text: str) -> bool:
        """The CLI echoes a prompt it has taken up; whether it is one of ours.

        Prompts that waited together come as one, their texts joined, under the last one's id.
        """
        named = [s for s in self._unechoed if s.uuid and s.uuid == uuid]
        echoed = named or [s for s in self._unechoed if s.text == text][:1]
        if not any(sent.text == text for sent in echoed):
            lines = text.split("\n")
            parts = [s for s in self._unechoed if s.text and _within(s.text.split("\n"), lines)]
            if not named and "\n".join(s.text for s in parts) != text:
                return False
            echoed = [*named, *parts]
        for sent in (sent for sent in [*self._unechoed] if sent in echoed):
            self._unechoed.remove(sent)
        self._take([sent for sent in self._waiting if sent in echoed])
        return True

    def _take(self, prompts: list[_Sent]) -> None:
        if prompts:
            self._taken = True
            self._waiting = [sent for sent in self._waiting if sent not in prompts]

    # Beginning

    def on_notification(self) -> None:
        """A background task has ended: if a turn begins now, this is why."""
        if not self._running:
            self._notified = True

    def begin(self, raw: tuple[bytes, ...], *, surely: bool = False) -> list[Draft]:
        """The CLI is in a turn (from now on); the keeper drops it where one is open already.

        `surely`: a turn begins now, also where the end of the last one was missed.
        """
        if self._running and not surely:
            return []
        self._running = True
        made = event()
        if self._waiting or self._taken:
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_CLIENT
        elif self._notified:
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_AGENT
        else:
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_UNSPECIFIED
        self._notified = False
        return [Draft(Kind.TURN_STARTED, made, raw)]

    # Ending

    def goes_on(self, result: Mapping[str, Any]) -> bool:
        """The result ends a turn that the CLI began by itself, while a prompt of ours still waits
        in the CLI.

        An interrupt ends our turn all the same: who interrupts must not wait for the next result.
        """
        for uuid in _uuids(result):
            self.on_taken(uuid)
        spontaneous = isinstance(result.get("origin"), Mapping)
        return spontaneous and bool(self._waiting) and not self._taken and not aborted(result)

    def pass_over(self, result: Mapping[str, Any], native: bytes) -> list[Draft]:
        """Take note of a result after which the turn goes on; the turn's end has its usage."""
        self._meter.take(result, carry=True)
        self._raw += (native,)
        drafts = []
        if status_of(result) == event_pb2.TURN_STATUS_FAILED:
            error = errors.of_result(result, self.api_error, refused=self.refused)
            drafts.append(error_draft(error, (native,)))
        self._begin_anew()
        return drafts

    def end(self, result: Mapping[str, Any], native: bytes) -> list[Draft]:
        """`turn_ended`, after the turn's `error` where it failed."""
        raw = (*self._raw, native)
        made = event(metadata_json=_metadata(native))
        ended = made.turn_ended
        ended.status = status_of(result)
        usage = self._meter.take(result)
        if usage is not None:
            ended.usage.CopyFrom(usage)
        reason = text_in(result, "terminal_reason")
        ended.stop_reason = text_in(result, "stop_reason") or reason.replace("completed", "")
        drafts = []
        if ended.status == event_pb2.TURN_STATUS_FAILED:
            error = errors.of_result(result, self.api_error, refused=self.refused)
            ended.error.CopyFrom(error)
            drafts.append(error_draft(error, raw))
        drafts.append(Draft(Kind.TURN_ENDED, made, raw))
        self._raw = ()
        if not self._taken and not isinstance(result.get("origin"), Mapping):
            # Some results come without an echo: the first that waits was the one.
            del self._waiting[:1]
        self._begin_anew()
        return drafts

    def finish(self) -> list[Draft]:
        """The CLI is gone: say the error that its result would have said."""
        if self.api_error is None:
            return []
        error = errors.of_result({}, self.api_error, refused=self.refused)
        self.api_error = None
        return [error_draft(error, self.api_error_raw)]

    def _begin_anew(self) -> None:
        self.api_error = None
        self.refused = False
        self._running = False
        self._notified = False
        self._taken = False


def error_draft(error: error_pb2.Error, raw: tuple[bytes, ...]) -> Draft:
    """An `error` event."""
    made = event()
    made.error.CopyFrom(error)
    return Draft(Kind.ERROR, made, raw)


def aborted(result: Mapping[str, Any]) -> bool:
    """Somebody stopped the turn."""
    return text_in(result, "terminal_reason").startswith("aborted")


def status_of(result: Mapping[str, Any]) -> event_pb2.TurnStatus.ValueType:
    """How a turn ended. An API error is `success` with `is_error`; a turn that a prompt of priority
    `now` has cut off is `success` without.
    """
    if aborted(result):
        return event_pb2.TURN_STATUS_INTERRUPTED
    if result.get("is_error") or text_in(result, "subtype").startswith("error"):
        return event_pb2.TURN_STATUS_FAILED
    return event_pb2.TURN_STATUS_COMPLETED


def _metadata(native: bytes) -> str:
    members = verbatim(native)
    said = {
        name: members[name]
        for name in _SAID_OF_A_TURN
        if name in members and bytes(members[name]) != b"null"
    }
    return msgspec.json.encode(said).decode("utf-8", "replace") if said else ""


def _uuids(result: Mapping[str, Any]) -> list[str]:
    """Prompts that a newer CLI says it has answered."""
    many = result.get("user_message_uuids")
    each = [*many] if isinstance(many, list) else []
    return [uuid for uuid in (*each, result.get("user_message_uuid")) if isinstance(uuid, str)]


def _within(part: list[str], lines: list[str]) -> bool:
    """`part` is a run of consecutive `lines`."""
    return any(lines[i : i + len(part)] == part for i in range(len(lines) - len(part) + 1))
