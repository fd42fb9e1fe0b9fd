"""What the stream keeper makes of a session's own events: starts, updates, turns, requests."""

from collections.abc import Callable

import pytest

from agentstream.v1 import event_pb2, interaction_pb2, session_pb2
from agentstreamd.model import Draft, Kind, event, started
from agentstreamd.sessions.requests import Pending
from agentstreamd.sessions.settings import Settings
from agentstreamd.sessions.usage import add_usage
from tests.support.scripted_adapter import (
    permission,
    session_started,
    session_updated,
    turn_started,
    withdrawn,
)
from tests.unit.sessions.keeping import RAW, Stream, assistant


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_what_the_agent_says_late_of_its_start_becomes_an_update(stream: Stream) -> None:
    draft = session_started(model="m", agent_version="9")
    draft.event.native_session_id = "n"
    stream.feed(draft)
    (updated,) = stream.since
    assert (updated.session_updated.model, updated.session_updated.native_session_id) == ("m", "n")
    assert updated.native_session_id == "n"
    stream.feed(session_started(model="m", agent_version="9"))
    assert len(stream.since) == 1
    stream.end()


def test_an_update_has_only_what_changed(stream: Stream) -> None:
    stream.feed(session_updated(model="a", title="T"), session_updated(model="b", title="T"))
    assert not stream.since[1].session_updated.HasField("title")
    stream.feed(session_updated(model="b"))
    assert len(stream.since) == 2
    stream.end()


def test_settings_can_be_emptied() -> None:
    settings = Settings()
    assert settings.changes(event_pb2.SessionUpdated(title="T")) is not None
    emptied = settings.changes(event_pb2.SessionUpdated(title=""))
    assert emptied is not None
    assert emptied.HasField("title")
    queue = event_pb2.SessionUpdated(queue=event_pb2.MessageQueue())
    assert settings.changes(queue) is not None
    assert settings.changes(queue) is None


def test_a_turn_that_the_agent_begins_while_one_runs_is_the_running_one(stream: Stream) -> None:
    stream.feed(turn_started())
    assert stream.story == []
    stream.end()


def test_the_end_of_no_turn_is_told(stream: Stream) -> None:
    stream.end_turn()
    stream.end_turn()
    assert stream.story[0] == "turn_ended"
    assert stream.since[-1].item_completed.item.content[0].status.label == "turn_ended"
    stream.end()


def test_nothing_follows_the_end(stream: Stream) -> None:
    stream.end()
    before = len(stream.events)
    stream.feed(started(assistant("a"), RAW), turn_started())
    stream.keeper.update(event_pb2.SessionUpdated(title="T"))
    accepted = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    assert not stream.keeper.resolve("p", accepted, interaction_pb2.RESOLVED_BY_CLIENT)
    assert len(stream.events) == before


def test_usage_adds_up_and_stays_unknown_where_nobody_says() -> None:
    total = session_pb2.Usage()
    add_usage(total, session_pb2.Usage(input_tokens=1, cost_micro_usd=0))
    add_usage(total, session_pb2.Usage(input_tokens=2))
    assert total == session_pb2.Usage(input_tokens=3, cost_micro_usd=0)


# Requests


def test_a_request_that_is_repeated_is_asked_once(stream: Stream) -> None:
    stream.feed(permission("p"), permission("p"))
    assert stream.story == ["permission_requested"]
    stream.end()


def test_an_id_of_a_request_that_comes_again_gets_a_suffix(stream: Stream) -> None:
    stream.feed(permission("p"), withdrawn("p"), permission("p"), withdrawn("p"))
    ids = [one.permission_requested.request_id for one in stream.since[::2]]
    assert ids == ["p", "p~2"]
    assert stream.since[3].permission_resolved.request_id == "p~2"
    stream.end()


def test_a_resolution_of_what_is_not_pending_is_left_out(stream: Stream) -> None:
    stream.feed(withdrawn("p"), permission("p"), withdrawn("p"), withdrawn("p"))
    assert stream.story == ["permission_requested", "permission_resolved"]
    stream.end()


def test_a_request_under_an_item_that_is_not_there_gets_one(stream: Stream) -> None:
    stream.feed(permission("p", parent_id="nowhere"))
    assert stream.story == ["+nowhere*", "permission_requested"]
    stream.end()


def test_the_end_of_its_turn_cancels_a_request(stream: Stream) -> None:
    stream.feed(permission("p"))
    stream.end_turn()
    assert stream.story == ["permission_requested", "permission_resolved*", "turn_ended"]
    resolved = stream.since[1].permission_resolved
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    stream.end()


def test_a_request_outside_a_turn_outlives_turns() -> None:
    stream = Stream(turn=False)
    stream.feed(permission("p"), turn_started())
    stream.end_turn()
    assert list(stream.keeper.pending) == ["p"]
    stream.end()


def test_requests_expire_after_the_timeout_unless_they_say_when() -> None:
    stream = Stream(timeout_ns=1000)
    own = permission("own")
    own.event.permission_requested.expire_time.FromNanoseconds(5000)
    stream.feed(permission("p"), own)
    expiries = [o.permission_requested.expire_time.ToNanoseconds() for o in stream.since]
    assert expiries == [1001, 5000]
    stream.end()


@pytest.mark.parametrize("kind", ["permission", "question", "form"])
def test_a_pending_request_is_shown_as_it_was_asked(stream: Stream, kind: str) -> None:
    made = event()
    request = getattr(made, f"{kind}_requested")
    request.request_id = "r"
    if kind == "permission":
        request.CopyFrom(permission("r").event.permission_requested)
    if kind == "question":
        request.questions.add(question_id="q", text="?", free_text=True)
    stream.feed(Draft(Kind[f"{kind.upper()}_REQUESTED"], made, RAW))
    describe: Callable[[Pending], interaction_pb2.PendingRequest] = Pending.describe
    shown = describe(stream.keeper.pending["r"])
    assert getattr(shown, kind) == getattr(stream.since[0], f"{kind}_requested")
    assert (shown.sequence, shown.turn_id) == (stream.since[0].sequence, "turn1")
    stream.end()


# Going on


def test_a_keeper_goes_on_where_another_stopped(stream: Stream) -> None:
    stream.feed(session_updated(model="m"), permission("p"), started(assistant("a"), RAW))
    second = Stream(turn=False)
    for past in stream.events:
        second.keeper.restore(past)
    second.events = list(stream.events)
    assert second.keeper.turn_id == stream.keeper.turn_id
    assert list(second.keeper.pending) == ["p"]
    assert second.keeper.settings.model == "m"
    assert not second.keeper.quiescent
    second.feed(withdrawn("p"))
    second.end()


def test_time_does_not_go_back(stream: Stream) -> None:
    stream.keeper.stamper.set_time(1000)
    stream.feed(session_updated(model="a"))
    stream.keeper.stamper.set_time(10)
    stream.feed(session_updated(model="b"))
    assert [one.time.ToNanoseconds() for one in stream.since] == [1000, 1000]
    stream.end()
