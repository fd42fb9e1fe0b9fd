import pytest
from google.protobuf import timestamp_pb2

from agentstream.cli.render import View
from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, item_pb2, session_pb2
from tests.unit.cli.events import (
    REASONING,
    REPLACE,
    call,
    completed,
    delta,
    drawn,
    make_screen,
    message,
    result,
    started,
)

DIFF = "--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n keep\n--- old comment\n+-- new comment\n"


def diff_part(path: str = "x.sql", diff: str = DIFF) -> item_pb2.ContentPart:
    file = item_pb2.FileRefPart(path=path, action=item_pb2.FILE_ACTION_PATCH, diff=diff)
    return item_pb2.ContentPart(file_ref=file)


def test_streamed_text_is_written_once() -> None:
    item = message("m", "Hello world")
    output = drawn(started(item), delta("m", "Hello "), delta("m", "world"), completed(item))
    assert output == "Hello world\n"


def test_text_is_written_as_it_comes_not_when_it_is_complete() -> None:
    screen, file = make_screen()
    view = View(screen)
    view.show(delta("m", "Hello "))
    assert file.getvalue() == "Hello "


def test_a_message_without_deltas_is_written_when_it_is_complete() -> None:
    assert drawn(completed(message("m", "Hello"))) == "Hello\n"


def test_what_grows_beside_a_streamed_item_is_written_whole_and_not_mixed_in() -> None:
    output = drawn(
        delta("a", "first "),
        delta("b", "second"),
        delta("a", "half"),
        completed(message("a", "first half")),
        completed(message("b", "second")),
    )
    assert output == "first half\n\nsecond\n"


def test_reasoning_and_text_of_a_message_stand_apart() -> None:
    output = drawn(delta("m", "Hm", REASONING), delta("m", "Yes", index=1))
    assert output == "✻ Hm\n\nYes\n"


def test_a_replaced_part_is_written_again_and_said_to_be() -> None:
    output = drawn(delta("m", "Wrong"), delta("m", "Right", operation=REPLACE))
    assert output == "Wrong\n↻ corrected:\n\nRight\n"


def test_a_failed_item_says_so() -> None:
    item = message("m", "Half")
    item.status = item_pb2.ITEM_STATUS_FAILED
    assert "(not finished)" in drawn(completed(item))
    item.superseded_by = "n"
    assert "(taken back" in drawn(completed(item))


def test_a_call_its_result_and_its_diff() -> None:
    output = drawn(
        completed(call("c", "Edit", '{"file_path": "x.sql"}')),
        completed(result("c", "done", diff_part())),
    )
    assert output.splitlines() == [
        "⏺ Edit  x.sql",
        "  ⎿ done",
        "  patch x.sql  +1 -1",
        "    @@ -1,2 +1,2 @@",
        "     keep",
        "    --- old comment",
        "    +-- new comment",
    ]


def test_the_same_diff_is_not_drawn_twice() -> None:
    item = call("c", "Edit")
    item.content.append(diff_part())
    output = drawn(completed(item), completed(result("c", "done", diff_part())))
    assert output.count("patch x.sql") == 1


def test_long_output_is_cut_and_says_how_much() -> None:
    output = drawn(completed(result("c", "\n".join(f"line {n}" for n in range(20)))))
    assert "line 7" in output
    assert "line 8" not in output
    assert "12 more lines" in output


def test_the_work_of_a_sub_agent_is_set_off_by_its_depth() -> None:
    output = drawn(
        completed(message("m", "Delegating")),
        completed(call("task", "Task", '{"description": "look"}', parent_id="m")),
        completed(message("sub", "Looking", parent_id="task")),
        completed(call("c", "Grep", '{"pattern": "x"}', parent_id="sub")),
        completed(result("c", "found")),
        completed(result("task", "It is there")),
    )
    assert [line for line in output.splitlines() if line.strip()] == [
        "Delegating",
        "⏺ Task  look",
        "│ Looking",
        "│ ⏺ Grep  x",
        "│   ⎿ found",
        "  ⎿ It is there",
    ]


def test_what_an_agent_writes_cannot_control_the_terminal() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\rover\x08\u202etxt"
    output = drawn(completed(result("c", evil)), delta("m", evil), completed(call("d", evil)))
    assert not {"\x1b", "\x07", "\x08", "\r", "\u202e"} & set(output)
    assert "red" in output


def test_a_permission_shows_what_is_hidden_in_a_command() -> None:
    request = interaction_pb2.PermissionRequest(
        kind=interaction_pb2.PERMISSION_KIND_COMMAND, command="ls\x1b[8m; rm -rf /\x1b[0m", cwd="/w"
    )
    output = drawn(event_pb2.Event(permission_requested=request))
    assert r"$ ls\x1b[8m; rm -rf /\x1b[0m" in output
    assert "in /w" in output


def test_a_turn_ends_with_usage_cost_and_time() -> None:
    began = event_pb2.Event(time=timestamp_pb2.Timestamp(seconds=100))
    began.turn_started.trigger = event_pb2.TURN_TRIGGER_CLIENT
    ended = event_pb2.Event(time=timestamp_pb2.Timestamp(seconds=165))
    ended.turn_ended.status = event_pb2.TURN_STATUS_COMPLETED
    ended.turn_ended.usage.CopyFrom(
        session_pb2.Usage(
            input_tokens=12_345, cache_read_tokens=2000, output_tokens=67, cost_micro_usd=12_300
        )
    )
    assert "✓ completed · 12.3k in (2.0k cached), 67 out, $0.0123 · 1 min 5 s" in drawn(
        began, ended
    )


def test_an_error_that_failed_the_turn_is_said_once() -> None:
    error = error_pb2.Error(message="no credit", code=error_pb2.ERROR_CODE_QUOTA_EXCEEDED)
    ended = event_pb2.TurnEnded(status=event_pb2.TURN_STATUS_FAILED, error=error)
    output = drawn(event_pb2.Event(error=error), event_pb2.Event(turn_ended=ended))
    assert output.count("no credit") == 1
    assert "no credit" in drawn(event_pb2.Event(turn_ended=ended))


def test_a_session_that_could_not_start_shows_what_the_agent_said() -> None:
    ended = event_pb2.SessionEnded(
        reason=event_pb2.SESSION_END_REASON_START_FAILED, stderr_head="missing library\n"
    )
    output = drawn(event_pb2.Event(session_ended=ended))
    assert "start failed" in output
    assert "missing library" in output


def test_text_only_is_what_the_assistant_says_at_the_top() -> None:
    output = drawn(
        event_pb2.Event(session_started=event_pb2.SessionStarted(agent="mock")),
        completed(message("u", "question", user=True)),
        delta("m", "thinking", REASONING),
        delta("m", "answer", index=1),
        completed(message("m", "", "answer")),
        completed(call("c", "Task")),
        completed(message("s", "sub", parent_id="c")),
        completed(result("c", "output")),
        text_only=True,
    )
    assert output == "answer\n"


@pytest.mark.parametrize(
    "field", [field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["payload"].fields]
)
def test_every_kind_of_event_can_be_drawn_when_empty(field: str) -> None:
    event = event_pb2.Event()
    getattr(event, field).SetInParent()
    drawn(event)


@pytest.mark.parametrize("kind", item_pb2.ItemKind.values())
@pytest.mark.parametrize(
    "field", [field.name for field in item_pb2.ContentPart.DESCRIPTOR.oneofs_by_name["part"].fields]
)
def test_every_part_can_be_drawn_in_every_item(
    kind: item_pb2.ItemKind.ValueType, field: str
) -> None:
    part = item_pb2.ContentPart()
    getattr(part, field).SetInParent()
    drawn(completed(item_pb2.Item(item_id="i", kind=kind, content=[part])))
