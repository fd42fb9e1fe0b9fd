"""The turns of a session's thread, and what they used. Pure."""

from dataclasses import dataclass, field

from agentstream.v1 import error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.codex.errors import of_turn_error
from agentstreamd.adapters.codex.native import (
    JsonObject,
    as_object,
    dump_text,
    known,
    text_in,
    whole_in,
)
from agentstreamd.model import Draft, Kind, event

Raw = tuple[bytes, ...]

_FIELDS = {
    "inputTokens": "input_tokens",
    "cachedInputTokens": "cache_read_tokens",
    "cacheWriteInputTokens": "cache_write_tokens",
    "outputTokens": "output_tokens",
    "reasoningOutputTokens": "reasoning_tokens",
}
_STATUSES = {
    "completed": event_pb2.TURN_STATUS_COMPLETED,
    "interrupted": event_pb2.TURN_STATUS_INTERRUPTED,
}
_REMEMBERED = 256

Figures = dict[str, int]


@dataclass(slots=True)
class _Meter:
    """A thread's tokens: what it used before the running turn, and so far."""

    before: Figures
    now: Figures


@dataclass(slots=True)
class Turns:
    """The turns of the session's own thread.

    Attributes:
        hears_client: All that is written to the server is told here, so that what nobody asked for
            is known to be the agent's own doing.
        running: The native id of the running turn; empty when none runs.
    """

    hears_client: bool = True
    running: str = ""
    _requested: dict[str, None] = field(default_factory=dict)
    _outstanding: dict[str, None] = field(default_factory=dict)
    _answered: dict[str, None] = field(default_factory=dict)
    _compacting: bool = False
    _meters: dict[str, _Meter] = field(default_factory=dict)
    _error_said: bool = False
    _context: JsonObject = field(default_factory=dict)

    # What the client's side tells

    def on_sent(self, request_id: str) -> None:
        """A `turn/start` was written."""
        if request_id not in self._answered:
            self._outstanding[request_id] = None

    def on_compact_sent(self) -> None:
        """A `thread/compact/start` was written: the next turn is its."""
        self._compacting = True

    def on_response(self, request_id: str, result: JsonObject) -> None:
        """A response came; that to `turn/start` or `review/start` names a turn."""
        self._outstanding.pop(request_id, None)
        _remember(self._answered, request_id)
        turn_id = text_in(as_object(result.get("turn")), "id")
        if turn_id:
            _remember(self._requested, turn_id)

    # What the server tells

    def start(self, turn: JsonObject, raw: Raw) -> list[Draft]:
        """The session's thread begins a turn."""
        turn_id = text_in(turn, "id")
        if self.running == turn_id:
            return []
        self.running = turn_id
        self._error_said = False
        made = event()
        made.turn_started.native_turn_id = turn_id
        if turn_id in self._requested or self._outstanding:
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_CLIENT
        elif self._compacting:
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_COMPACTION
        elif self.hears_client or text_in(turn, "rootTurnId") not in ("", turn_id):
            # A turn that goes on with a goal names the turn that began it as its root.
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_AGENT
        self._compacting = False
        return [Draft(Kind.TURN_STARTED, made, raw)]

    def end(self, turn: JsonObject, raw: Raw) -> list[Draft]:
        """The session's thread ends a turn.

        One that Codex began by itself may end when a message of ours is on its way, for which the
        session has begun a turn: that one goes on.
        """
        turn_id = text_in(turn, "id")
        self.running = ""
        more, self._context = known(turn, "durationMs") | self._context, {}
        if self._outstanding and turn_id not in self._requested:
            return []
        drafts: list[Draft] = []
        made = event(metadata_json=dump_text(more) if more else "")
        ended = made.turn_ended
        ended.native_turn_id = turn_id
        ended.status = _STATUSES.get(text_in(turn, "status"), event_pb2.TURN_STATUS_FAILED)
        if ended.status == event_pb2.TURN_STATUS_FAILED:
            error = of_turn_error(as_object(turn.get("error")))
            ended.error.CopyFrom(error)
            if not self._error_said:
                drafts.append(_error(error, raw))
        usage = self._take_usage()
        if usage is not None:
            ended.usage.CopyFrom(usage)
        return [*drafts, Draft(Kind.TURN_ENDED, made, raw)]

    def error(self, params: JsonObject, raw: Raw, *, is_root: bool) -> list[Draft]:
        """Something went wrong. The last error of a turn comes again when the turn ends."""
        will_retry = params.get("willRetry") is True
        error = of_turn_error(as_object(params.get("error")), will_retry=will_retry)
        if is_root and not will_retry:
            self._error_said = True
        return [_error(error, raw)]

    def on_usage(self, thread_id: str, params: JsonObject, *, is_root: bool) -> None:
        """A thread's cumulative figures, and how full the context of the session's own is."""
        said = as_object(params.get("tokenUsage"))
        if is_root:
            self._context = known(said, "modelContextWindow")
            if (tokens := whole_in(as_object(said.get("last")), "totalTokens")) is not None:
                self._context["contextTokens"] = tokens
        now, last = _figures(said.get("total")), _figures(said.get("last"))
        meter = self._meters.get(thread_id)
        if meter is None:
            # A resumed thread, and one that was forked, counts from its beginning. What it says
            # while no turn runs, as when it is resumed, is all of earlier turns.
            own = last if self.running else {}
            before = {name: max(0, count - own.get(name, 0)) for name, count in now.items()}
            self._meters[thread_id] = _Meter(before, now)
        else:
            meter.now = now

    def _take_usage(self) -> session_pb2.Usage | None:
        used: Figures = {}
        for meter in self._meters.values():
            for name, count in meter.now.items():
                used[name] = used.get(name, 0) + max(0, count - meter.before.get(name, 0))
            meter.before = meter.now
        if not used:
            return None
        usage = session_pb2.Usage()
        for native, name in _FIELDS.items():
            if native in used:
                setattr(usage, name, used[native])
        return usage


def _figures(said: object) -> Figures:
    figures = as_object(said)
    counts = {name: whole_in(figures, name) for name in _FIELDS}
    return {name: count for name, count in counts.items() if count is not None and count >= 0}


def _error(error: error_pb2.Error, raw: Raw) -> Draft:
    made = event()
    made.error.CopyFrom(error)
    return Draft(Kind.ERROR, made, raw)


def _remember(kept: dict[str, None], name: str) -> None:
    kept[name] = None
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
