"""What the stream keeper makes of items that an agent reports in odd ways."""

import pytest

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.model import (
    completed,
    delta,
    reasoning_part,
    started,
    status_item,
    tool_call_item,
    tool_result_item,
    whole,
)
from agentstreamd.sessions.item_keeper import HELD_DRAFTS
from agentstreamd.sessions.items import Remembered
from tests.unit.sessions.keeping import RAW, Stream, assistant

TEXT = event_pb2.DELTA_KIND_TEXT
OUTPUT = event_pb2.DELTA_KIND_TOOL_OUTPUT


@pytest.fixture
def stream() -> Stream:
    return Stream()


def call(item_id: str = "c", call_id: str = "k", parent_id: str = "") -> item_pb2.Item:
    return tool_call_item(
        item_id, name="Bash", arguments_json="{}", call_id=call_id, parent_id=parent_id
    )


def result(item_id: str = "r", call_id: str = "k", output: str = "out") -> item_pb2.Item:
    return tool_result_item(item_id, call_id=call_id, output=output)


# Gaps


def test_a_completion_without_a_start_gets_one(stream: Stream) -> None:
    stream.feed(completed(assistant("a", "hi"), RAW))
    assert stream.story == ["+a*", "a:hi*", "-a"]
    stream.end()


def test_a_delta_without_a_start_gets_one_of_its_kind(stream: Stream) -> None:
    stream.feed(delta("a", 0, TEXT, "hi", RAW))
    stream.feed(delta("r", 0, OUTPUT, "out", RAW))
    stream.feed(delta("c", 0, event_pb2.DELTA_KIND_TOOL_ARGUMENTS, "{", RAW))
    kinds = [one.item_started.item.kind for one in stream.since if one.HasField("item_started")]
    assert kinds == [
        item_pb2.ITEM_KIND_MESSAGE,
        item_pb2.ITEM_KIND_TOOL_RESULT,
        item_pb2.ITEM_KIND_TOOL_CALL,
    ]
    stream.end()


def test_text_without_deltas_gets_one(stream: Stream) -> None:
    item = assistant("a", "text")
    item.content.insert(0, reasoning_part("thought"))
    stream.feed(started(assistant("a"), RAW), completed(item, RAW))
    assert stream.story == ["+a", "a:thought*", "a:text*", "-a"]
    stream.end()


def test_deltas_that_stop_short_are_completed(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "hel", RAW))
    stream.feed(completed(assistant("a", "hello"), RAW))
    assert stream.story == ["+a", "a:hel", "a:lo*", "-a"]
    stream.end()


def test_deltas_that_turn_out_wrong_are_replaced(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "help", RAW))
    stream.feed(completed(assistant("a", "hello"), RAW))
    assert stream.story == ["+a", "a:help", "a=hello*", "-a"]
    stream.end()


def test_deltas_that_are_right_are_left_alone(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "hello", RAW))
    stream.feed(completed(assistant("a", "hello"), RAW))
    assert stream.story == ["+a", "a:hello", "-a"]
    stream.end()


def test_a_result_without_a_call_gets_one(stream: Stream) -> None:
    stream.feed(*whole(result(call_id="unheard"), RAW))
    assert stream.story == ["+call:unheard*", "-call:unheard*", "+r", "-r"]
    stream.end()


def test_a_delta_that_its_item_can_not_have_is_told(stream: Stream) -> None:
    stream.feed(started(status_item("s", "note"), RAW), delta("s", 0, TEXT, "huh", RAW))
    assert "+unexpected_delta:s" in stream.story
    stream.end()


# Ends


def test_the_end_of_a_turn_completes_what_is_open_with_what_it_has(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "hal", RAW))
    stream.feed(*whole(call(), RAW))
    stream.end_turn()
    assert stream.completed("a").content[0].text.text == "hal"
    assert stream.story[-4:] == [
        "-a!*",
        "+c:no-result*",
        "-c:no-result!*",
        "turn_ended",
    ]
    stream.end()


def test_a_call_that_was_cut_off_has_no_half_arguments(stream: Stream) -> None:
    stream.feed(
        started(tool_call_item("c", name="Bash", arguments_json="", call_id="k"), RAW),
        delta("c", 0, event_pb2.DELTA_KIND_TOOL_ARGUMENTS, '{"comm', RAW),
    )
    stream.end_turn()
    assert stream.completed("c").content[0].tool_call.arguments_json == ""
    stream.end()


def test_a_result_that_was_cut_off_has_what_came(stream: Stream) -> None:
    stream.feed(*whole(call(), RAW), started(result(output=""), RAW))
    stream.feed(delta("r", 0, OUTPUT, "half", RAW))
    stream.end_turn()
    cut = stream.completed("r").content[0].tool_result
    assert (cut.output, cut.is_error, cut.call_id) == ("half", True, "k")
    stream.end()


def test_what_began_outside_a_turn_outlives_turns(stream: Stream) -> None:
    stream.end_turn()
    stream.feed(started(assistant("a"), RAW))
    stream.keeper.begin_turn("t2", event_pb2.TURN_TRIGGER_CLIENT, assistant("u", "x"))
    stream.feed(delta("a", 0, TEXT, "still here", RAW))
    stream.end_turn()
    stream.feed(completed(assistant("a", "still here"), RAW))
    of_a = [one for one in stream.events if one.item_delta.item_id == "a"]
    assert of_a[0].turn_id == ""
    stream.end()


# Too late


def test_a_result_after_its_turn_becomes_a_status(stream: Stream) -> None:
    stream.feed(*whole(call(), RAW))
    stream.end_turn()
    before = len(stream.events)
    stream.feed(*whole(result(output="late but whole"), RAW))
    told = [one for one in stream.events[before:] if one.HasField("item_completed")]
    assert len(told) == 1
    item = told[0].item_completed.item
    assert item.content[0].status.label == "late_output"
    assert item.content[1].text.text == "late but whole"
    assert not told[0].turn_id
    stream.end()


def test_text_after_its_turn_becomes_a_status_once(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW))
    stream.end_turn()
    before = len(stream.events)
    stream.feed(delta("a", 0, TEXT, "la", RAW), delta("a", 0, TEXT, "te", RAW))
    stream.feed(completed(assistant("a", "late"), RAW))
    told = [
        one.item_completed.item.content[1].text.text
        for one in stream.events[before:]
        if one.HasField("item_completed")
    ]
    assert told == ["la", "late"]
    stream.end()


def test_a_completion_that_comes_twice_is_told_once_more(stream: Stream) -> None:
    stream.feed(*whole(assistant("a", "one"), RAW), completed(assistant("a", "two"), RAW))
    assert stream.story[-2:] == ["+late_output:a", "-late_output:a"]
    stream.end()


# Parents


def test_what_comes_before_its_parent_waits_for_it(stream: Stream) -> None:
    stream.feed(*whole(assistant("child", "hi", parent_id="p"), RAW))
    assert stream.story == []
    stream.feed(*whole(call("p"), RAW))
    assert stream.story == ["+p", "+child", "child:hi*", "-child", "-p"]
    assert stream.completed("child").parent_id == "p"
    stream.end()


def test_children_of_children_wait_too(stream: Stream) -> None:
    stream.feed(*whole(assistant("grandchild", parent_id="child"), RAW))
    stream.feed(*whole(assistant("child", parent_id="p"), RAW))
    assert stream.story == []
    stream.feed(*whole(call("p"), RAW))
    starts = [word for word in stream.story if word.startswith("+")]
    assert starts == ["+p", "+child", "+grandchild"]
    stream.end()


def test_a_parent_that_never_comes_is_made_up_at_the_end(stream: Stream) -> None:
    stream.feed(*whole(assistant("child", "hi", parent_id="p"), RAW))
    stream.end_turn()
    assert stream.story == ["+p*", "+child", "child:hi*", "-child", "-p!*", "turn_ended"]
    stream.end()


def test_only_so_much_waits_for_a_parent(stream: Stream) -> None:
    for number in range(HELD_DRAFTS // 2):
        stream.feed(*whole(status_item(f"s{number}", "note", parent_id="p"), RAW))
    assert stream.story == []
    stream.feed(*whole(status_item("one more", "note", parent_id="p"), RAW))
    assert stream.story[0] == "+p*"
    assert len([word for word in stream.story if word.startswith("-")]) == HELD_DRAFTS // 2 + 1
    stream.end()


def test_parents_that_wait_for_each_other_are_released(stream: Stream) -> None:
    stream.feed(*whole(assistant("a", parent_id="b"), RAW))
    stream.feed(*whole(assistant("b", parent_id="a"), RAW))
    stream.end_turn()
    stream.end()


def test_a_parent_that_comes_after_it_was_made_up_takes_its_place(stream: Stream) -> None:
    for number in range(HELD_DRAFTS // 2 + 1):
        stream.feed(*whole(status_item(f"s{number}", "note", parent_id="p"), RAW))
    stream.feed(*whole(call("p"), RAW))
    assert stream.completed("p").superseded_by == "p~2"
    assert stream.completed("p~2").kind == item_pb2.ITEM_KIND_TOOL_CALL
    stream.end()


# Ids


def test_an_id_that_comes_again_gets_a_suffix_and_is_meant_from_then_on(stream: Stream) -> None:
    stream.feed(*whole(assistant("a", "one"), RAW))
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "two", RAW))
    stream.feed(completed(assistant("a", "two"), RAW))
    stream.feed(*whole(assistant("b", parent_id="a"), RAW))
    assert stream.completed("a~2").content[0].text.text == "two"
    assert stream.completed("b").parent_id == "a~2"
    stream.feed(*whole(assistant("a", "three"), RAW))
    assert stream.completed("a~3").content[0].text.text == "three"
    stream.end()


def test_a_call_id_that_comes_again_gets_a_suffix(stream: Stream) -> None:
    stream.feed(*whole(call("c1"), RAW), *whole(result("r1"), RAW))
    stream.feed(*whole(call("c2"), RAW), *whole(result("r2"), RAW))
    assert stream.completed("c2").content[0].tool_call.call_id == "k~2"
    assert stream.completed("r2").content[0].tool_result.call_id == "k~2"
    stream.end()


def test_a_start_that_is_repeated_is_left_out(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), started(assistant("a"), RAW))
    assert stream.story == ["+a"]
    stream.end()


def test_a_start_of_another_kind_supersedes_the_open_item(stream: Stream) -> None:
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "x", RAW))
    stream.feed(started(call("a"), RAW))
    assert stream.story == ["+a", "a:x", "+a~2", "-a!*"]
    assert stream.completed("a").superseded_by == "a~2"
    stream.end()


def test_a_completion_that_contradicts_what_was_streamed_supersedes_it(stream: Stream) -> None:
    item = assistant("a")
    item.content.append(reasoning_part("thought"))
    stream.feed(started(assistant("a"), RAW), delta("a", 0, TEXT, "text", RAW))
    stream.feed(completed(item, RAW))
    assert stream.completed("a").superseded_by == "a~2"
    assert stream.completed("a~2").content[0].reasoning.text == "thought"
    stream.end()


def test_a_successor_that_is_not_there_is_not_named(stream: Stream) -> None:
    item = assistant("a", "x")
    item.superseded_by = "nowhere"
    stream.feed(completed(item, RAW, failed=True))
    assert stream.completed("a").superseded_by == ""
    stream.end()


def test_the_oldest_ids_are_forgotten_first() -> None:
    remembered: Remembered[str, int] = Remembered(2)
    for number, name in enumerate("abc"):
        remembered.put(name, number)
    assert "a" not in remembered
    assert [remembered.get(name) for name in "abc"] == [None, 1, 2]
    assert len(remembered) == 2
