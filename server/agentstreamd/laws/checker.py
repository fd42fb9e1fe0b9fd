"""The checker of a session's events."""

from collections import deque
from collections.abc import Callable, Iterable

from agentstream.v1 import event_pb2
from agentstreamd.laws.form import check_form
from agentstreamd.laws.items import ItemLaws
from agentstreamd.laws.requests import RequestLaws
from agentstreamd.laws.violation import FORM, Violation

MAX_VIOLATIONS = 1000
"""So many violations are kept; later ones are counted only."""

_EVENT_ID_WINDOW = 65536
"""An event_id is compared with those of so many events before it."""

_Handler = Callable[[event_pb2.Event], None]


class LawChecker:
    """Checks the events of one session, from its first on, in order.

    It shares no code with what makes streams. It keeps ids, never contents: its memory grows with
    the number of items, calls and requests only.

    Attributes:
        violations: What was found, at most `MAX_VIOLATIONS`.
        violation_count: How many were found.
    """

    def __init__(self, *, raw: bool | None = None) -> None:
        """`raw` says whether native messages were asked for; None when that is not known."""
        self.violations: list[Violation] = []
        self.violation_count = 0
        self._raw = raw
        self._sequence = 0
        self._session_id = ""
        self._ended = False
        self._turn_id = ""
        self._turns: set[str] = set()
        self._time = (0, 0)
        self._event_ids: set[str] = set()
        self._recent_event_ids: deque[str] = deque()
        self._items = ItemLaws(self._report)
        self._requests = RequestLaws(self._report, self._items.parent)
        self._handlers: dict[str, _Handler] = {
            "turn_started": self._turn_started,
            "turn_ended": self._turn_ended,
            "session_ended": self._session_ended,
            "item_started": self._items.started,
            "item_delta": self._items.delta,
            "item_completed": self._items.completed,
        }
        for kind in ("permission", "question", "form"):
            self._handlers[f"{kind}_requested"] = _of_kind(self._requests.requested, kind)
            self._handlers[f"{kind}_resolved"] = _of_kind(self._requests.resolved, kind)

    def feed(self, event: event_pb2.Event) -> list[Violation]:
        """Take the next event and return what it breaks."""
        before = len(self.violations)
        kind = event.WhichOneof("payload") or ""
        self._check_place(event, kind)
        check_form(event, self._raw, self._report)
        self._check_turn_id(event, kind)
        if handler := self._handlers.get(kind):
            handler(event)
        return self.violations[before:]

    def finish(self, *, complete: bool) -> list[Violation]:
        """The stream is at its end; return what is missing.

        With `complete` the session is at rest: it has ended, or no turn runs.
        """
        before = len(self.violations)
        if complete:
            if self._sequence == 0:
                self._report(2, "the stream is empty")
            if self._turn_id:
                self._report(3, f"turn {self._turn_id} did not end")
            self._items.finish()
        return self.violations[before:]

    def _report(self, law: int, sentence: str) -> None:
        self.violation_count += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(law, self._sequence, sentence))

    def _check_place(self, event: event_pb2.Event, kind: str) -> None:
        previous, self._sequence = self._sequence, event.sequence
        if event.sequence != previous + 1:
            self._report(1, f"sequence {event.sequence} follows {previous}")
        if self._ended:
            self._report(2, f"{kind} comes after session_ended")
        if (kind == "session_started") != (not self._session_id):
            if kind == "session_started":
                self._report(2, "session_started comes again")
            else:
                self._report(2, f"the first event is {kind}, not session_started")
        self._check_session_id(event)
        self._check_event_id(event)
        if not event.HasField("time"):
            self._report(FORM, "the event has no time")
            return
        time = (event.time.seconds, event.time.nanos)
        if time < self._time:
            self._report(FORM, "the event's time is before that of the event before it")
        self._time = time

    def _check_session_id(self, event: event_pb2.Event) -> None:
        if not event.session_id:
            self._report(FORM, "the event has no session_id")
        elif self._session_id and event.session_id != self._session_id:
            self._report(FORM, f"session_id is {event.session_id}, before {self._session_id}")
        # A stream without session ids is still told from one that has not begun.
        self._session_id = self._session_id or event.session_id or "-"

    def _check_event_id(self, event: event_pb2.Event) -> None:
        if not event.event_id:
            return
        if event.event_id in self._event_ids:
            self._report(FORM, f"event_id {event.event_id} comes twice")
            return
        self._event_ids.add(event.event_id)
        self._recent_event_ids.append(event.event_id)
        if len(self._recent_event_ids) > _EVENT_ID_WINDOW:
            self._event_ids.remove(self._recent_event_ids.popleft())

    def _check_turn_id(self, event: event_pb2.Event, kind: str) -> None:
        turn_id = event.turn_id
        if kind in ("session_started", "session_ended"):
            if turn_id:
                self._report(3, f"{kind} has a turn_id")
        elif kind in ("turn_started", "turn_ended"):
            if not turn_id:
                self._report(3, f"{kind} has no turn_id")
        elif turn_id and turn_id != self._turn_id:
            running = f"turn {self._turn_id} runs" if self._turn_id else "no turn runs"
            self._report(3, f"{kind} is of turn {turn_id}, but {running}")

    def _turn_started(self, event: event_pb2.Event) -> None:
        if self._turn_id:
            self._report(3, f"turn {event.turn_id} starts while turn {self._turn_id} runs")
        if event.turn_id in self._turns:
            self._report(3, f"turn {event.turn_id} starts again")
        self._turns.add(event.turn_id)
        self._turn_id = event.turn_id

    def _turn_ended(self, event: event_pb2.Event) -> None:
        if event.turn_id != self._turn_id:
            running = f"turn {self._turn_id} runs" if self._turn_id else "no turn runs"
            self._report(3, f"turn {event.turn_id} ends, but {running}")
        self._items.turn_ended(event.turn_id)
        self._requests.turn_ended(event.turn_id)
        self._turn_id = ""

    def _session_ended(self, event: event_pb2.Event) -> None:
        if self._turn_id:
            self._report(3, f"the session ended while turn {self._turn_id} ran")
            self._turn_id = ""
        self._items.session_ended()
        self._requests.session_ended()
        self._ended = True


def _of_kind(check: Callable[[str, event_pb2.Event], None], kind: str) -> _Handler:
    return lambda event: check(kind, event)


def check(
    events: Iterable[event_pb2.Event], *, complete: bool, raw: bool | None = None
) -> list[Violation]:
    """Check a session's events, from its first on, and return what they break.

    Args:
        events: The events, in order.
        complete: The session is at rest at the end of `events`: it has ended, or no turn runs.
        raw: Whether native messages were asked for; None when that is not known.
    """
    checker = LawChecker(raw=raw)
    for event in events:
        checker.feed(event)
    checker.finish(complete=complete)
    return checker.violations
