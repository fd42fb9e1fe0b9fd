"""When a turn begins and ends, how it ended, and what it used.

OpenCode says neither well: idle comes before the last message of a failed turn and then again, more
events follow it, and some failures have no message at all. So a turn ends when the session was idle
*and* all its messages are complete; whatever comes after belongs to no turn.
"""

from dataclasses import dataclass, field

from agentstream.v1 import error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.opencode.errors import (
    ABORTED,
    details_of,
    error_draft,
    error_of,
    is_stack_of,
)
from agentstreamd.adapters.opencode.native import JsonObject, dict_in, int_in, number_in
from agentstreamd.adapters.opencode.threads import Message
from agentstreamd.model import Draft, Kind, event

_MICRO = 1_000_000
_LARGEST_COST = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Guards:
    """What a turn may do at most before it is stopped, as failed.

    Attributes:
        unfinished_steps: Steps in a row whose model stream ended without saying why. OpenCode calls
            the model again at once, for ever.
        retries: Attempts to reach the model in a row. OpenCode goes on for ever, every 30 s.
    """

    unfinished_steps: int = 5
    retries: int = 10


@dataclass(slots=True)
class Turns:
    """The turns of the root thread.

    Attributes:
        guards: When to stop a turn that does not end.
        open: A turn runs.
        taken: The server works on it, as far as it said.
        idle: The session was idle since; the turn ends when its messages are complete.
        native_id: The native id of the user's message that began it.
        failure: Why we stop it; empty message when we don't.
        must_abort: A guard wants the turn stopped; the driver does it.
    """

    guards: Guards = field(default_factory=Guards)
    open: bool = False
    taken: bool = False
    idle: bool = False
    native_id: str = ""
    failure: error_pb2.Error | None = None
    must_abort: bool = False
    _aborting: bool = False
    _rejected: bool = False
    _error: error_pb2.Error | None = None
    _answers: dict[str, Message] = field(default_factory=dict)
    _reported: list[str] = field(default_factory=list)
    _reported_before: list[str] = field(default_factory=list)
    _steps: set[str] = field(default_factory=set)
    _unfinished: dict[str, int] = field(default_factory=dict)
    _tokens: dict[str, int] = field(default_factory=dict)
    _cost: float = 0.0

    def prompted(self, native_id: str) -> None:
        """A prompt of ours is on its way; the session has begun the turn."""
        if not self.open:
            self._reset()
            self.open = True
            self.native_id = native_id

    def withdrawn(self) -> None:
        """The prompt did not arrive: there is no turn."""
        self.open = False

    def aborting(self) -> None:
        """Somebody stops the turn."""
        self._aborting = self.open

    def begin(
        self,
        raw: tuple[bytes, ...],
        native_id: str = "",
        trigger: event_pb2.TurnTrigger.ValueType = event_pb2.TURN_TRIGGER_UNSPECIFIED,
    ) -> list[Draft]:
        """The server works on a turn; it is a new one unless one runs."""
        if self.open:
            self.taken = True
            self.native_id = self.native_id or native_id
            return []
        self._reset()
        self.open = self.taken = True
        self.native_id = native_id
        made = event()
        made.turn_started.trigger = trigger
        made.turn_started.native_turn_id = native_id
        return [Draft(Kind.TURN_STARTED, made, raw)]

    def on_message(self, message: Message) -> None:
        """An assistant's message of the root thread has news."""
        if message.message_id not in self._answers:
            self._answers[message.message_id] = message
            self._error = None  # it went on after the error
            self._rejected = False

    def on_step(self, part_id: str, part: JsonObject, thread: str) -> list[Draft]:
        """A step of the model has ended, in this thread."""
        if part_id in self._steps or not self.open:
            return []
        self._steps.add(part_id)
        tokens = dict_in(part, "tokens")
        cache = dict_in(tokens, "cache")
        for name, value in (
            ("input", int_in(tokens, "input")),
            ("output", int_in(tokens, "output")),
            ("reasoning", int_in(tokens, "reasoning")),
            ("read", int_in(cache, "read")),
            ("write", int_in(cache, "write")),
        ):
            if value is not None:
                self._tokens[name] = self._tokens.get(name, 0) + value
        cost = number_in(part, "cost") or 0.0
        self._cost += cost if 0 <= cost < _LARGEST_COST else 0.0
        broke_off = self._unfinished.get(thread, 0) + 1 if part.get("reason") == "unknown" else 0
        self._unfinished[thread] = broke_off
        if broke_off < self.guards.unfinished_steps:
            return []
        return self.fail(
            f"The model's answer broke off {broke_off} times in a row.",
            error_pb2.ERROR_CODE_PROVIDER_FAILED,
        )

    def on_retry(self, attempt: int, said: error_pb2.Error) -> list[Draft]:
        """The server tries to reach the model again."""
        if not self.open or attempt <= self.guards.retries:
            return []
        return self.fail(f"{said.message} ({attempt} attempts)", said.code)

    def fail(self, message: str, code: error_pb2.ErrorCode.ValueType) -> list[Draft]:
        """Stop the turn, as failed; once."""
        if self.failure is not None or not self.open:
            return []
        self.failure = error_pb2.Error(message=message, code=code)
        self.must_abort = True
        return [error_draft(self.failure, synthetic=True)]

    def on_error(self, native: JsonObject, raw: tuple[bytes, ...]) -> list[Draft]:
        """The server reports an error of the session; maybe the end of the turn, maybe not."""
        if native.get("name") == ABORTED:
            self._aborting = self._aborting or self.open
            return []
        # It may come so late that the next turn has begun.
        if is_stack_of(native, [*self._reported_before, *self._reported]):
            return []
        error = error_of(native)
        self._error = error
        if error.message in self._reported:
            return []
        self._reported.append(error.message)
        return [error_draft(error, raw, told=details_of(native))]

    def on_child_error(
        self, native: JsonObject, raw: tuple[bytes, ...], whose: JsonObject
    ) -> list[Draft]:
        """The server reports an error of a sub-agent, which says nothing of the turn."""
        if native.get("name") == ABORTED or is_stack_of(native, self._reported):
            return []
        error = error_of(native)
        self._reported.append(error.message)
        return [error_draft(error, raw, told={**details_of(native), **whose})]

    def on_rejection(self) -> None:
        """A request was rejected: the turn may end there, without the model having the word."""
        self._rejected = True

    @property
    def has_error(self) -> bool:
        """The server reported an error after which nothing went on."""
        return self._error is not None

    @property
    def waits_for_message(self) -> bool:
        """The session is idle, but a message of the turn is not complete."""
        return self.open and self.idle

    def on_idle(self, raw: tuple[bytes, ...]) -> list[Draft]:
        """The session is idle. What is left over from a turn before is not taken for an end."""
        if not self.open or not self.taken:
            return []
        self.idle = True
        return self.end_if_done(raw)

    def end_if_done(self, raw: tuple[bytes, ...]) -> list[Draft]:
        """End the turn if the session was idle and all messages are complete."""
        if not self.waits_for_message or not all(m.completed for m in self._answers.values()):
            return []
        return self.end(raw)

    def end(self, raw: tuple[bytes, ...]) -> list[Draft]:
        """End the turn as what is known of it says."""
        if not self.open:
            return []
        self.open = False
        made = event()
        ended = made.turn_ended
        ended.native_turn_id = self.native_id
        ended.status, error = self._outcome()
        if error is not None:
            ended.error.CopyFrom(error)
        last = self._last
        if last is not None:
            ended.stop_reason = last.finish
        usage = self._usage()
        if usage is not None:
            ended.usage.CopyFrom(usage)
        return [Draft(Kind.TURN_ENDED, made, raw)]

    @property
    def _last(self) -> Message | None:
        return next(reversed(self._answers.values()), None)

    def _outcome(self) -> tuple[event_pb2.TurnStatus.ValueType, error_pb2.Error | None]:
        last = self._last
        error = self._error
        if self.failure is not None:
            return event_pb2.TURN_STATUS_FAILED, self.failure
        if last is not None and last.error is not None and last.error.get("name") != ABORTED:
            return event_pb2.TURN_STATUS_FAILED, error_of(last.error)
        aborted = last is not None and last.error is not None
        stopped = self._aborting or self._rejected
        if aborted or (stopped and (last is None or last.finish in ("", "tool-calls"))):
            return event_pb2.TURN_STATUS_INTERRUPTED, None
        if error is not None:
            return event_pb2.TURN_STATUS_FAILED, error
        if last is None or last.finish:
            return event_pb2.TURN_STATUS_COMPLETED, None
        # An abort while it waits to try the model again leaves no other trace.
        return event_pb2.TURN_STATUS_INTERRUPTED, None

    def _usage(self) -> session_pb2.Usage | None:
        tokens = self._tokens
        if not tokens:
            return None
        read, written = tokens.get("read", 0), tokens.get("write", 0)
        reasoning = tokens.get("reasoning", 0)
        usage = session_pb2.Usage(
            # The server counts what came from a cache, and what is reasoning, apart.
            input_tokens=tokens.get("input", 0) + read + written,
            output_tokens=tokens.get("output", 0) + reasoning,
            cache_read_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=reasoning,
        )
        if self._cost > 0:  # models whose price is not known cost nothing, says the server
            usage.cost_micro_usd = round(self._cost * _MICRO)
        return usage

    def _reset(self) -> None:
        self.taken = self.idle = self.must_abort = self._aborting = self._rejected = False
        self.native_id = ""
        self.failure = self._error = None
        self._answers = {}
        self._reported_before, self._reported = self._reported, []
        self._steps = set()
        self._unfinished = {}
        self._tokens = {}
        self._cost = 0.0
