"""Whatever an adapter says, in whatever order, the keeper's stream keeps the laws."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from agentstream.v1 import agent_pb2, event_pb2, interaction_pb2, item_pb2
from agentstreamd.events.log import Record
from agentstreamd.laws import check
from agentstreamd.model import (
    Draft,
    Kind,
    completed,
    delta,
    event,
    reasoning_part,
    started,
    status_item,
    text_part,
    tool_call_item,
    tool_result_item,
    unparsed,
)
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.stamp import Stamper

IDS = ["a", "b", "c", "a~2"]
CALLS = ["k", "l"]
Step = Callable[[StreamKeeper], None]


def new_keeper() -> tuple[StreamKeeper, list[event_pb2.Event]]:
    seen: list[event_pb2.Event] = []
    stamper = Stamper("s", "uid", store_raw=True)

    def listen(stamped: event_pb2.Event, record: Record) -> None:
        seen.append(event_pb2.Event.FromString(record.event))

    stamper.listener = listen
    ids: Iterator[int] = count(1)
    keeper = StreamKeeper(stamper, new_turn_id=lambda: f"agent-turn-{next(ids)}")
    keeper.stamper.set_time(1)
    keeper.start_session(
        event_pb2.SessionStarted(
            agent="mock", working_directory="/", permission_mode=agent_pb2.PERMISSION_MODE_DEFAULT
        )
    )
    return keeper, seen


def message(item_id: str, parent_id: str, texts: list[str]) -> item_pb2.Item:
    return item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_MESSAGE,
        role=item_pb2.ITEM_ROLE_ASSISTANT,
        content=[
            text_part(text) if index % 2 else reasoning_part(text)
            for index, text in enumerate(texts)
        ],
    )


@st.composite
def items(draw: st.DrawFn) -> item_pb2.Item:
    item_id = draw(st.sampled_from(IDS))
    parent_id = draw(st.sampled_from(["", *IDS, "nowhere"]))
    which = draw(st.sampled_from(["message", "call", "result", "status"]))
    if which == "call":
        return tool_call_item(
            item_id,
            name="Bash",
            arguments_json="{}",
            call_id=draw(st.sampled_from(CALLS)),
            parent_id=parent_id if parent_id != item_id else "",
        )
    if which == "result":
        return tool_result_item(
            item_id,
            call_id=draw(st.sampled_from([*CALLS, "unheard"])),
            output="out",
            parent_id=parent_id if parent_id != item_id else "",
        )
    if which == "status":
        return status_item(item_id, "note", "x")
    texts = draw(st.lists(st.sampled_from(["", "x", "xy", "z"]), max_size=3))
    return message(item_id, parent_id if parent_id != item_id else "", texts)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    raw = (b'{"native":1}',)
    match draw(st.integers(0, 9)):
        case 0 | 1:
            return started(draw(items()), raw)
        case 2 | 3:
            return completed(draw(items()), raw, failed=draw(st.booleans()))
        case 4 | 5:
            return delta(
                draw(st.sampled_from(IDS)),
                draw(st.integers(0, 3)),
                draw(st.sampled_from([event_pb2.DELTA_KIND_TEXT, event_pb2.DELTA_KIND_REASONING])),
                draw(st.sampled_from(["x", "y", ""])),
                raw,
            )
        case 6:
            made = event()
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_AGENT
            return Draft(Kind.TURN_STARTED, made, raw)
        case 7:
            made = event()
            made.turn_ended.status = draw(
                st.sampled_from(
                    [event_pb2.TURN_STATUS_COMPLETED, event_pb2.TURN_STATUS_INTERRUPTED]
                )
            )
            return Draft(Kind.TURN_ENDED, made, raw)
        case 8:
            made = event()
            made.permission_requested.CopyFrom(
                interaction_pb2.PermissionRequest(
                    request_id=draw(st.sampled_from(["p", "q"])),
                    kind=interaction_pb2.PERMISSION_KIND_TOOL,
                    tool_name="Bash",
                    arguments_json="{}",
                    parent_id=draw(st.sampled_from(["", "a", "elsewhere"])),
                    allowed_decisions=[interaction_pb2.PERMISSION_DECISION_REJECT],
                )
            )
            return Draft(Kind.PERMISSION_REQUESTED, made, raw)
        case _:
            if draw(st.booleans()):
                return unparsed(b"garbage", "not JSON")
            made = event()
            made.permission_resolved.CopyFrom(
                interaction_pb2.PermissionResolved(
                    request_id=draw(st.sampled_from(["p", "q"])),
                    outcome=interaction_pb2.REQUEST_OUTCOME_CANCELLED,
                    resolved_by=interaction_pb2.RESOLVED_BY_AGENT,
                )
            )
            return Draft(Kind.PERMISSION_RESOLVED, made, raw)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    made: list[Step] = []
    for number in range(draw(st.integers(0, 30))):
        if draw(st.integers(0, 7)):
            draft = draw(drafts())
            made.append(partial(apply, drafts=[draft]))
        else:
            made.append(partial(client_turn, number=number))
    return made


def apply(keeper: StreamKeeper, drafts: list[Draft]) -> None:
    keeper.apply(drafts)


def client_turn(keeper: StreamKeeper, number: int) -> None:
    if keeper.turn_id:
        for request_id in list(keeper.pending):
            keeper.resolve(
                request_id,
                interaction_pb2.REQUEST_OUTCOME_REJECTED,
                interaction_pb2.RESOLVED_BY_CLIENT,
                answer=interaction_pb2.PermissionAnswer(
                    decision=interaction_pb2.PERMISSION_DECISION_REJECT
                ),
            )
        return
    prompt = item_pb2.Item(
        item_id=f"user-{number}",
        kind=item_pb2.ITEM_KIND_MESSAGE,
        role=item_pb2.ITEM_ROLE_USER,
        content=[text_part("hello")],
    )
    keeper.begin_turn(f"turn-{number}", event_pb2.TURN_TRIGGER_CLIENT, prompt)


def end(keeper: StreamKeeper) -> None:
    draft = Draft(Kind.SESSION_ENDED, event(synthetic=True))
    draft.event.session_ended.reason = event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT
    draft.event.session_ended.ended_by = event_pb2.SESSION_ENDER_CLIENT
    keeper.end_session(draft)


@settings(max_examples=400, deadline=None)
@given(steps())
def test_any_drafts_in_any_order_give_a_stream_that_keeps_the_laws(made: list[Step]) -> None:
    keeper, seen = new_keeper()
    for step in made:
        step(keeper)
    end(keeper)
    assert check(seen, complete=True) == []


@settings(max_examples=200, deadline=None)
@given(steps(), st.integers(0, 60))
def test_a_stream_cut_anywhere_can_be_closed_by_a_keeper_that_reads_it_back(
    made: list[Step], cut: int
) -> None:
    keeper, seen = new_keeper()
    for step in made:
        step(keeper)
    kept = seen[: max(cut, 1)]
    second, more = new_keeper()
    more.clear()
    for past in kept:
        second.restore(past)
    if not second.ended:
        if second.turn_id:
            second.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
        second.close_all("restarted")
        end(second)
    assert check([*kept, *more], complete=True) == []
