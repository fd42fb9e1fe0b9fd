"""What the model writes."""

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Kind
from tests.unit.adapters.claude.claude_lines import (
    assistant,
    block_delta,
    block_start,
    completed,
    deltas,
    events,
    fed,
    feed,
    init,
    interrupted,
    message_start,
    result,
    streamed,
    text_block,
    text_delta,
    the_item,
    tool_result,
    tool_use,
)

TEXT = {"type": "text", "text": ""}
THINKING = {"type": "thinking", "thinking": "", "signature": ""}


def test_text_deltas_are_passed_on_as_they_come() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "Hello "),
        text_delta(0, "there"),
        assistant("m1", text_block("Hello there")),
        result(),
    )

    assert [d.text for d in deltas(drafts)] == ["Hello ", "there"]
    assert not any(e.synthetic for e in events(drafts, Kind.ITEM_DELTA))
    item = the_item(drafts, "message:m1")
    assert item.native_item_id == "m1"
    assert item.status == item_pb2.ITEM_STATUS_COMPLETED
    assert item.content[0].text.text == "Hello there"


def test_blocks_of_a_message_are_parts_of_one_item() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, THINKING),
        block_delta(0, type="thinking_delta", thinking="Hm."),
        block_delta(0, type="signature_delta", signature="c2ln"),
        assistant("m1", {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}),
        block_start(1, {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}),
        assistant("m1", tool_use("t1", command="ls")),
        block_start(2, TEXT),
        text_delta(2, "Done."),
        assistant("m1", text_block("Done.")),
        result(),
    )

    assert [(d.content_index, d.kind, d.text) for d in deltas(drafts)] == [
        (0, event_pb2.DELTA_KIND_REASONING, "Hm."),
        (1, event_pb2.DELTA_KIND_TEXT, "Done."),
    ]
    reasoning, text = the_item(drafts, "message:m1").content
    assert reasoning.reasoning.visibility == item_pb2.REASONING_VISIBILITY_FULL
    assert text.text.text == "Done."
    assert the_item(drafts, "call:t1").parent_id == "message:m1"


def test_a_message_completes_when_the_next_of_its_thread_begins() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, assistant("m1", text_block("One.")))

    drafts = fed(normalizer, message_start("m2"))

    assert [item.item_id for item in completed(drafts)] == ["message:m1"]


def test_text_without_deltas_gets_one_synthetic_delta_at_once() -> None:
    drafts = feed(assistant("m1", text_block("Whole."), thread="task"))

    (delta,) = events(drafts, Kind.ITEM_DELTA)
    assert delta.synthetic
    assert delta.source == event_pb2.EVENT_SOURCE_DAEMON
    assert delta.item_delta.text == "Whole."


def test_deltas_that_turn_out_wrong_are_replaced() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "Helo"),
        assistant("m1", text_block("Hello")),
    )

    _, fix = deltas(drafts)
    assert (fix.text, fix.operation) == ("Hello", event_pb2.DELTA_OPERATION_REPLACE)


def test_a_missing_end_of_the_deltas_is_appended() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "Hel"),
        assistant("m1", text_block("Hello")),
    )

    _, fix = deltas(drafts)
    assert (fix.text, fix.operation) == ("lo", event_pb2.DELTA_OPERATION_APPEND)


def test_half_a_surrogate_pair_waits_for_the_other_half() -> None:
    lines = (
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "x").replace(b'"x"', b'"a\\ud83d"'),
        text_delta(0, "x").replace(b'"x"', b'"\\ude00b"'),
        text_delta(0, "x").replace(b'"x"', b'"\\ud83d"'),
        text_delta(0, "c"),
    )

    drafts = feed(*lines)

    assert [d.text for d in deltas(drafts)] == ["a", "\U0001f600b", "\ufffdc"]
    # The line that only had the half is found in the native messages of what it became part of.
    assert drafts[-1].raw == lines[-2:]


def test_redacted_thinking_is_an_empty_reasoning_part() -> None:
    drafts = feed(assistant("m1", {"type": "redacted_thinking", "data": "ZW5j"}), result())

    (part,) = the_item(drafts, "message:m1").content
    assert part.reasoning.visibility == item_pb2.REASONING_VISIBILITY_REDACTED
    assert part.reasoning.text == ""
    assert deltas(drafts) == []


def test_arguments_stream_on_the_call_and_complete_verbatim() -> None:
    final = assistant("m1", {"type": "tool_use", "id": "t1", "name": "Bash"}).replace(
        b'"name":"Bash"', b'"name":"Bash","input":{"command": "ls",  "n":1.0}'
    )
    drafts = feed(
        message_start("m1"),
        block_start(0, {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}),
        block_delta(0, type="input_json_delta", partial_json=""),
        block_delta(0, type="input_json_delta", partial_json='{"command"'),
        final,
    )

    started = events(drafts, Kind.ITEM_STARTED)[1].item_started.item
    assert started.content[0].tool_call.name == "Bash"
    assert started.content[0].tool_call.arguments_json == ""
    (delta,) = deltas(drafts)
    assert (delta.item_id, delta.kind) == ("call:t1", event_pb2.DELTA_KIND_TOOL_ARGUMENTS)
    call = the_item(drafts, "call:t1").content[0].tool_call
    assert call.arguments_json == '{"command": "ls",  "n":1.0}'
    assert call.call_id == "t1"


def test_a_message_with_only_a_call_is_still_the_calls_parent() -> None:
    drafts = feed(assistant("m1", tool_use("t1")), result())

    assert events(drafts, Kind.ITEM_STARTED)[0].item_started.item.item_id == "message:m1"
    assert list(the_item(drafts, "message:m1").content) == []


def test_trap_3_orphan_deltas_of_a_cut_stream_are_superseded_by_the_retry() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "This will be cut "),
        assistant("m2", text_block("Whole after the retry.")),
        result(),
    )

    cut = the_item(drafts, "message:m1")
    assert cut.status == item_pb2.ITEM_STATUS_FAILED
    assert cut.superseded_by == "message:m2"
    assert cut.content[0].text.text == "This will be cut "
    assert the_item(drafts, "message:m2").status == item_pb2.ITEM_STATUS_COMPLETED


def test_trap_3_what_supersedes_is_started_before_it_is_named() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "cut"),
        message_start("m2"),
        message_start("m3"),
        block_start(0, TEXT),
    )

    order = [
        draft.event.item_started.item.item_id
        if draft.kind is Kind.ITEM_STARTED
        else draft.event.item_completed.item.superseded_by
        for draft in drafts
        if draft.kind is not Kind.ITEM_DELTA
    ]
    assert order == ["message:m1", "message:m3", "message:m3"]


def test_trap_3_blocks_that_were_finished_before_the_cut_are_not_taken_back() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        assistant("m1", text_block("Kept.")),
        block_start(1, TEXT),
        text_delta(1, "lost"),
        message_start("m2"),
        assistant("m2", text_block("On.")),
        result(),
    )

    cut = the_item(drafts, "message:m1")
    assert cut.status == item_pb2.ITEM_STATUS_FAILED
    assert cut.superseded_by == ""
    assert [part.text.text for part in cut.content] == ["Kept.", "lost"]


def test_a_call_that_was_cut_off_is_failed_without_arguments() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}),
        block_delta(0, type="input_json_delta", partial_json='{"comm'),
        result(),
    )

    call = the_item(drafts, "call:t1")
    assert call.status == item_pb2.ITEM_STATUS_FAILED
    assert call.content[0].tool_call.arguments_json == ""


def test_a_stream_that_never_began_a_block_leaves_no_item() -> None:
    drafts = feed(
        message_start("m1"),
        streamed({"type": "message_stop"}),
        message_start("m2"),
        block_start(0, TEXT),
        text_delta(0, "OK"),
        assistant("m2", text_block("OK")),
        result(),
    )

    assert [item.item_id for item in completed(drafts)] == ["message:m2"]


def test_text_that_was_interrupted_is_a_failed_item() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "The quick"),
        assistant("m1", text_block("The quick")),
        interrupted(),
    )

    assert the_item(drafts, "message:m1").status == item_pb2.ITEM_STATUS_FAILED


def test_a_message_whose_tool_had_run_is_whole_when_the_next_call_is_interrupted() -> None:
    drafts = feed(assistant("m1", tool_use("t1")), tool_result("t1"), interrupted())

    assert the_item(drafts, "message:m1").status == item_pb2.ITEM_STATUS_COMPLETED


def test_a_newer_cli_says_itself_that_a_message_was_aborted() -> None:
    drafts = feed(assistant("m1", text_block("The"), aborted=True), message_start("m2"))

    assert the_item(drafts, "message:m1").status == item_pb2.ITEM_STATUS_FAILED


def test_a_sub_agents_messages_stand_under_its_call() -> None:
    drafts = feed(
        assistant("m1", tool_use("task", "Task", prompt="look")),
        assistant("s1", tool_use("t2"), thread="task"),
        tool_result("t2", thread="task"),
        assistant("s2", text_block("Report."), thread="task"),
        tool_result("task", "Report."),
        assistant("m2", text_block("Thanks.")),
        result(),
    )

    assert the_item(drafts, "message:s1").parent_id == "call:task"
    assert the_item(drafts, "call:t2").parent_id == "message:s1"
    assert the_item(drafts, "message:s2").parent_id == "call:task"
    order = [item.item_id for item in completed(drafts)]
    assert order.index("message:s2") < order.index("result:task") < order.index("message:m1")


def test_interleaved_threads_keep_their_messages_apart() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "Main "),
        assistant("s1", text_block("Sub."), thread="task"),
        text_delta(0, "goes on."),
        assistant("m1", text_block("Main goes on.")),
        result(),
    )

    assert the_item(drafts, "message:m1").content[0].text.text == "Main goes on."
    assert the_item(drafts, "message:m1").status == item_pb2.ITEM_STATUS_COMPLETED


def test_a_transcript_may_begin_in_the_middle_of_a_message() -> None:
    drafts = feed(text_delta(3, "tail"), assistant("m1", text_block("tail")), result())

    assert [d.text for d in deltas(drafts)] == ["tail"]
    (item,) = completed(drafts)
    assert item.native_item_id == "m1"


def test_blocks_and_deltas_of_unknown_types_are_kept() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, {"type": "hologram", "data": 1}),
        block_delta(0, type="hologram_delta", data=2),
        assistant("m1", {"type": "hologram", "data": 3}),
        streamed({"type": "message_hum"}),
        result(),
    )

    unknown = [i for i in completed(drafts) if i.kind == item_pb2.ITEM_KIND_UNKNOWN]
    assert [item.content[0].json.label for item in unknown] == [
        "content_block_delta/hologram_delta",
        "stream_event/message_hum",
    ]
    assert the_item(drafts, "message:m1").content[0].json.json == '{"type":"hologram","data":3}'


def test_tools_that_run_at_the_provider_are_calls_with_results() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "u"}]}

    drafts = feed(assistant("m1", search), assistant("m1", found), result())

    assert the_item(drafts, "call:s1").content[0].tool_call.name == "web_search"
    assert the_item(drafts, "result:s1").parent_id == "call:s1"


def test_completed_messages_name_the_lines_they_came_from() -> None:
    lines = (
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "A"),
        assistant("m1", text_block("A")),
        assistant("m1", tool_use("t1", command="x" * 1000)),
        assistant("m1", text_block("B")),
    )
    normalizer = ClaudeNormalizer()
    fed(normalizer, *lines)

    (draft,) = [d for d in normalizer.finish() if d.kind is Kind.ITEM_COMPLETED]

    assert draft.raw == (lines[3], lines[5])


def test_the_end_of_the_output_completes_what_is_whole_and_fails_what_is_not() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, init(), assistant("m1", tool_use("task")))
    fed(normalizer, message_start("m2"), block_start(0, TEXT), text_delta(0, "cut"))

    drafts = normalizer.finish()

    assert [item.item_id for item in completed(drafts)] == ["message:m2"]
    assert completed(drafts)[0].status == item_pb2.ITEM_STATUS_FAILED
    assert all(draft.raw for draft in drafts)


def test_a_retry_under_the_same_id_supersedes_another_item() -> None:
    drafts = feed(
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "cut"),
        message_start("m1"),
        block_start(0, TEXT),
        text_delta(0, "whole"),
        assistant("m1", text_block("whole")),
        result(),
    )

    cut, whole = completed(drafts)
    assert cut.superseded_by == whole.item_id != cut.item_id
    assert cut.native_item_id == whole.native_item_id == "m1"
    assert whole.content[0].text.text == "whole"
