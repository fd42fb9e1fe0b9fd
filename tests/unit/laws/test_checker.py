from collections.abc import Callable

import pytest

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2
from agentstreamd.laws import MAX_VIOLATIONS, LawChecker, check
from tests.unit.laws.streams import DAEMON, Event, find, lawful, renumber

Break = Callable[[list[Event]], object]


def started(item_id: str) -> Callable[[Event], bool]:
    return lambda event: event.item_started.item.item_id == item_id


def completed(item_id: str) -> Callable[[Event], bool]:
    return lambda event: event.item_completed.item.item_id == item_id


def start_of(events: list[Event], item_id: str) -> Event:
    return find(events, "item_started", started(item_id))


def end_of(events: list[Event], item_id: str) -> Event:
    return find(events, "item_completed", completed(item_id))


def first(events: list[Event], payload: str) -> Event:
    return find(events, payload, lambda _: True)


def without(events: list[Event], event: Event) -> None:
    events.remove(event)
    renumber(events)


def again(events: list[Event], event: Event) -> None:
    copy = Event()
    copy.CopyFrom(event)
    events.insert(events.index(event) + 1, copy)
    renumber(events)


def before(events: list[Event], event: Event, other: Event) -> None:
    events.remove(event)
    events.insert(events.index(other), event)
    renumber(events)


def edit(event: Event, path: str, value: object) -> Event:
    *parents, name = path.split(".")
    target: object = event
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    return event


def part_of(events: list[Event], item_id: str, index: int = 0) -> item_pb2.ContentPart:
    return end_of(events, item_id).item_completed.item.content[index]


def gap(events: list[Event]) -> None:
    for event in events[3:]:
        event.sequence += 1


def starts_outside(events: list[Event]) -> None:
    start_of(events, "message").turn_id = ""


def second_turn_inside(events: list[Event]) -> None:
    event = Event()
    event.CopyFrom(first(events, "turn_started"))
    event.turn_id = "turn-9"
    events.insert(5, event)
    renumber(events)


def other_call_with_same_id(events: list[Event]) -> None:
    call = end_of(events, "call")
    for original in (start_of(events, "call"), call):
        other = Event()
        other.CopyFrom(original)
        getattr(other, other.WhichOneof("payload") or "").item.item_id = "call-again"
        events.insert(events.index(call) + 1, other)
    moved = [one for one in events if "call-again" in str(one)]
    before(events, moved[1], moved[0])


def unanswered_call(events: list[Event]) -> None:
    for event in list(events):
        if "result" in (
            event.item_started.item.item_id,
            event.item_delta.item_id,
            event.item_completed.item.item_id,
        ):
            events.remove(event)
    renumber(events)


def cut(events: list[Event], payload: str) -> None:
    del events[events.index(first(events, payload)) :]


def oversized(events: list[Event]) -> None:
    first(events, "error").error.message = "x" * 1024 * 1024


BREAKS: list[tuple[int, str, Break]] = [
    (1, "a sequence is left out", gap),
    (1, "it begins at two", lambda e: [edit(one, "sequence", one.sequence + 1) for one in e]),
    (1, "a sequence comes twice", lambda e: edit(e[4], "sequence", 4)),
    (2, "it begins with something else", lambda e: without(e, e[0])),
    (2, "it starts twice", lambda e: again(e, e[0])),
    (2, "it goes on after its end", lambda e: again(e, e[-1])),
    (2, "it is empty", lambda e: e.clear()),
    (3, "turns overlap", second_turn_inside),
    (3, "a turn does not end", lambda e: cut(e, "turn_ended")),
    (3, "a turn is open when the session ends", lambda e: without(e, e[-2])),
    (3, "a turn ends twice", lambda e: again(e, first(e, "turn_ended"))),
    (3, "a turn's id comes again", lambda e: [edit(x, "turn_id", "turn-1") for x in e[-4:-1]]),
    (3, "a turn has no id", lambda e: edit(first(e, "turn_started"), "turn_id", "")),
    (3, "the session's end is in a turn", lambda e: edit(e[-1], "turn_id", "turn-2")),
    (3, "an item changes its turn", starts_outside),
    (3, "an item of no turn gets one", lambda e: edit(end_of(e, "background"), "turn_id", "x")),
    (3, "something is of a turn that is over", lambda e: edit(e[-2], "turn_id", "turn-1")),
    (
        3,
        "a request outside a turn is resolved in one",
        lambda e: edit(first(e, "permission_requested"), "turn_id", ""),
    ),
    (4, "an item starts twice", lambda e: again(e, start_of(e, "message"))),
    (4, "an item does not start", lambda e: without(e, start_of(e, "result"))),
    (4, "an item completes twice", lambda e: again(e, end_of(e, "message"))),
    (4, "an item does not complete", lambda e: without(e, end_of(e, "user"))),
    (4, "an item is open at the session's end", lambda e: without(e, end_of(e, "background"))),
    (4, "a delta comes too early", lambda e: before(e, e[9], start_of(e, "message"))),
    (4, "a delta comes too late", lambda e: before(e, end_of(e, "message"), e[12])),
    (
        4,
        "an item starts as completed",
        lambda e: edit(
            start_of(e, "message"), "item_started.item.status", item_pb2.ITEM_STATUS_COMPLETED
        ),
    ),
    (
        4,
        "an item completes in progress",
        lambda e: edit(
            end_of(e, "message"), "item_completed.item.status", item_pb2.ITEM_STATUS_IN_PROGRESS
        ),
    ),
    (
        4,
        "an item changes its role",
        lambda e: edit(end_of(e, "user"), "item_completed.item.role", item_pb2.ITEM_ROLE_SYSTEM),
    ),
    (
        4,
        "an item is superseded by nothing",
        lambda e: edit(end_of(e, "taken-back"), "item_completed.item.superseded_by", "nobody"),
    ),
    (
        4,
        "a superseded item did not fail",
        lambda e: edit(
            end_of(e, "taken-back"), "item_completed.item.status", item_pb2.ITEM_STATUS_COMPLETED
        ),
    ),
    (5, "a delta is lost", lambda e: without(e, e[9])),
    (5, "a delta is wrong", lambda e: edit(e[13], "item_delta.text", "Hellx 😀")),
    (5, "a delta comes twice", lambda e: again(e, e[9])),
    (5, "there are no deltas", lambda e: without(e, e[6])),
    (5, "a delta of a long text is wrong", lambda e: edit(e[12], "item_delta.text", "x")),
    (5, "a replacing delta is the agent's", lambda e: edit(e[13], "synthetic", False)),
    (
        5,
        "a delta is for a part that is not there",
        lambda e: edit(e[6], "item_delta.content_index", 3),
    ),
    (
        5,
        "deltas are of another kind than their part",
        lambda e: edit(e[6], "item_delta.kind", event_pb2.DELTA_KIND_REASONING),
    ),
    (
        6,
        "a parent is unknown",
        lambda e: edit(start_of(e, "call"), "item_started.item.parent_id", "x"),
    ),
    (
        6,
        "a parent comes later",
        lambda e: edit(start_of(e, "message"), "item_started.item.parent_id", "result"),
    ),
    (
        6,
        "a request's parent is unknown",
        lambda e: edit(first(e, "permission_requested"), "permission_requested.parent_id", "x"),
    ),
    (6, "a result has no call", lambda e: edit_part(e, "result", "tool_result.call_id", "x")),
    (6, "a call_id comes again", other_call_with_same_id),
    (6, "a call has no result", unanswered_call),
    (7, "a request is not resolved", lambda e: without(e, first(e, "question_resolved"))),
    (7, "a request is resolved twice", lambda e: again(e, first(e, "question_resolved"))),
    (7, "a request is asked twice", lambda e: again(e, first(e, "form_requested"))),
    (7, "an unknown request is resolved", lambda e: without(e, first(e, "form_requested"))),
    (
        7,
        "a client's resolution has no answer",
        lambda e: first(e, "permission_resolved").permission_resolved.ClearField("answer"),
    ),
    (
        7,
        "outcome and answer differ",
        lambda e: edit(
            first(e, "permission_resolved"),
            "permission_resolved.outcome",
            interaction_pb2.REQUEST_OUTCOME_REJECTED,
        ),
    ),
    (
        7,
        "an answer is not allowed",
        lambda e: edit(
            first(e, "permission_resolved"),
            "permission_resolved.answer.decision",
            interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
        ),
    ),
    (8, "the agent made something up", lambda e: edit(first(e, "error"), "synthetic", True)),
    (
        8,
        "a client's answer is synthetic",
        lambda e: edit(first(e, "permission_resolved"), "synthetic", True),
    ),
    (
        8,
        "the daemon's resolution is the agent's",
        lambda e: [
            edit(first(e, "form_resolved"), "synthetic", False),
            edit(first(e, "form_resolved"), "source", event_pb2.EVENT_SOURCE_AGENT),
        ],
    ),
    (9, "an event of the agent has no raw", lambda e: first(e, "error").ClearField("raw")),
    (9, "a native message is empty", lambda e: first(e, "error").raw.add()),
    (0, "an event_id comes twice", lambda e: edit(e[5], "event_id", e[4].event_id)),
    (0, "an event_id is missing", lambda e: edit(e[5], "event_id", "")),
    (0, "a session_id changes", lambda e: edit(e[5], "session_id", "other")),
    (0, "time goes back", lambda e: e[5].time.FromNanoseconds(0)),
    (0, "a time is missing", lambda e: e[5].ClearField("time")),
    (0, "a payload is missing", lambda e: first(e, "error").ClearField("error")),
    (0, "a source is unspecified", lambda e: edit(first(e, "error"), "source", 0)),
    (0, "an enum is unspecified", lambda e: edit(first(e, "turn_ended"), "turn_ended.status", 0)),
    (0, "an enum is unknown", lambda e: edit(first(e, "error"), "error.code", 999)),
    (0, "arguments are no JSON", lambda e: edit_part(e, "call", "tool_call.arguments_json", "{")),
    (0, "arguments are missing", lambda e: edit_part(e, "call", "tool_call.arguments_json", "")),
    (0, "metadata is no JSON", lambda e: edit(e[5], "metadata_json", "{")),
    (0, "metadata is no object", lambda e: edit(e[5], "metadata_json", "[]")),
    (0, "metadata has NaN", lambda e: edit(e[5], "metadata_json", '{"a":NaN}')),
    (
        0,
        "a schema is no JSON",
        lambda e: edit(first(e, "form_requested"), "form_requested.schema_json", "{"),
    ),
    (0, "an event is too large", oversized),
    (
        0,
        "a status label is a sentence",
        lambda e: edit_part(e, "background", "status.label", "It is done"),
    ),
    (0, "a tool call has no call", lambda e: part_of(e, "call").Clear()),
    (0, "a digest is none", lambda e: edit_part(e, "message", "external.sha256", "X", index=2)),
    (0, "a session update is empty", lambda e: first(e, "session_updated").session_updated.Clear()),
    (
        0,
        "a failed turn has no error",
        lambda e: edit(first(e, "turn_ended"), "turn_ended.status", event_pb2.TURN_STATUS_FAILED),
    ),
    (
        0,
        "a secret is disclosed",
        lambda e: edit_first_answer(first(e, "question_resolved")),
    ),
]


def edit_part(
    events: list[Event], item_id: str, path: str, value: object, *, index: int = 0
) -> None:
    *parents, name = path.split(".")
    target: object = part_of(events, item_id, index)
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)


def edit_first_answer(event: Event) -> None:
    event.question_resolved.answer.answered.answers[0].text = "hunter2"


def test_a_stream_that_keeps_the_laws_breaks_none() -> None:
    assert check(lawful(), complete=True, raw=True) == []


@pytest.mark.parametrize(
    ("law", "broken"),
    [(law, broken) for law, _, broken in BREAKS],
    ids=[one for _, one, _ in BREAKS],
)
def test_a_broken_law_is_found(law: int, broken: Break) -> None:
    events = lawful()
    broken(events)
    assert law in {one.law for one in check(events, complete=True, raw=True)}


@pytest.mark.parametrize("length", range(1, len(lawful()) + 1))
def test_a_stream_that_is_not_complete_may_stop_anywhere(length: int) -> None:
    assert check(lawful()[:length], complete=False) == []


def test_a_session_may_rest_between_turns() -> None:
    events = lawful()
    rest = events[: events.index(first(events, "turn_ended")) + 1]
    assert check(rest, complete=True) == []


def test_raw_that_was_not_asked_for_is_found() -> None:
    assert {one.law for one in check(lawful(), complete=True, raw=False)} == {9}


def test_raw_is_not_looked_at_where_it_is_not_known_whether_it_was_asked_for() -> None:
    events = lawful()
    first(events, "error").ClearField("raw")
    assert check(events, complete=True) == []


def test_raw_does_not_count_for_the_size_of_an_event() -> None:
    events = lawful()
    first(events, "error").raw.add(text="x" * 2 * 1024 * 1024)
    assert check(events, complete=True, raw=True) == []


def test_a_failed_call_may_have_arguments_that_were_cut_off() -> None:
    events = lawful()
    edit_part(events, "call", "tool_call.arguments_json", '{"com')
    end_of(events, "call").item_completed.item.status = item_pb2.ITEM_STATUS_FAILED
    assert check(events, complete=True) == []


def test_a_call_that_was_made_up_may_have_no_arguments() -> None:
    events = lawful()
    edit_part(events, "call", "tool_call.arguments_json", "")
    end_of(events, "call").synthetic = True
    end_of(events, "call").source = DAEMON
    assert check(events, complete=True) == []


def test_json_with_huge_numbers_is_json() -> None:
    events = lawful()
    edit_part(events, "call", "tool_call.arguments_json", "1" * 5000)
    assert check(events, complete=True) == []


def test_a_violation_tells_law_sequence_and_what_is_wrong() -> None:
    events = lawful()
    without(events, first(events, "question_resolved"))
    ended = first(events, "turn_ended")
    (violation,) = check(events, complete=True)
    sentence = "request question was not resolved when turn turn-1 ended"
    assert str(violation) == f"law 7, sequence {ended.sequence}: {sentence}"


def test_the_checker_reports_a_violation_with_the_event_that_shows_it() -> None:
    events = lawful()
    first(events, "error").synthetic = True
    checker = LawChecker()
    found = {event.sequence: checker.feed(event) for event in events}
    assert [sequence for sequence, violations in found.items() if violations] == [
        first(events, "error").sequence
    ]


def test_the_violations_that_are_kept_are_bounded() -> None:
    checker = LawChecker()
    event = lawful()[3]
    for _ in range(MAX_VIOLATIONS):
        checker.feed(event)
    assert len(checker.violations) == MAX_VIOLATIONS
    assert checker.violation_count > MAX_VIOLATIONS
