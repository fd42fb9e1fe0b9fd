"""Every variant of ThreadItem, and every kind of delta."""

import json
from typing import Any

import pytest

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.model import Kind
from tests.unit.adapters.codex.codex_lines import done, feed, items, kinds, line, started

PNG = "iVBORw0KGgo="


def both(item: dict[str, Any], **finally_: Any) -> list[item_pb2.Item]:
    return items(feed(started(item), done({**item, **finally_})))


def test_a_message_streams_and_keeps_its_phase() -> None:
    head = {"type": "agentMessage", "id": "m", "text": "", "phase": None}
    drafts = feed(
        started(head),
        line("item/agentMessage/delta", itemId="m", delta="Hel"),
        line("item/agentMessage/delta", itemId="m", delta="lo"),
        done({**head, "text": "Hello", "phase": "final_answer"}),
    )
    assert kinds(drafts) == [
        Kind.ITEM_STARTED,
        Kind.ITEM_DELTA,
        Kind.ITEM_DELTA,
        Kind.ITEM_COMPLETED,
    ]
    assert json.loads(drafts[-1].event.metadata_json) == {"phase": "final_answer"}
    [item] = items(drafts)
    assert (item.item_id, item.native_item_id) == ("m", "m")
    assert item.content[0].text.text == "Hello"


def test_reasoning_parts_have_their_place_by_first_appearance() -> None:
    head = {"type": "reasoning", "id": "r", "summary": [], "content": []}
    drafts = feed(
        started(head),
        line("item/reasoning/textDelta", itemId="r", delta="raw", contentIndex=0),
        line("item/reasoning/summaryPartAdded", itemId="r", summaryIndex=0),
        line("item/reasoning/summaryTextDelta", itemId="r", delta="sum", summaryIndex=0),
        done({**head, "summary": ["sum", "more"], "content": ["raw"]}),
    )
    deltas = [d.event.item_delta for d in drafts if d.kind is Kind.ITEM_DELTA]
    assert [(d.content_index, d.text) for d in deltas] == [(0, "raw"), (1, "sum")]
    assert all(d.kind == event_pb2.DELTA_KIND_REASONING for d in deltas)
    [item] = items(drafts)
    summary = item_pb2.REASONING_VISIBILITY_SUMMARY
    assert [(p.reasoning.text, p.reasoning.visibility) for p in item.content] == [
        ("raw", item_pb2.REASONING_VISIBILITY_FULL),
        ("sum", summary),
        ("more", summary),
    ]


def test_encrypted_reasoning_is_redacted() -> None:
    [item] = both({"type": "reasoning", "id": "r", "summary": [], "content": []})
    assert item.content[0].reasoning.visibility == item_pb2.REASONING_VISIBILITY_REDACTED


def test_a_plan_is_a_message_that_says_so() -> None:
    drafts = feed(
        started({"type": "plan", "id": "p", "text": ""}),
        line("item/plan/delta", itemId="p", delta="# Plan"),
        done({"type": "plan", "id": "p", "text": "# Plan"}),
    )
    assert json.loads(drafts[-1].event.metadata_json) == {"plan": True}
    assert items(drafts)[0].role == item_pb2.ITEM_ROLE_ASSISTANT


def test_a_command_is_a_call_and_its_result() -> None:
    item = {
        "type": "commandExecution",
        "id": "c",
        "command": "ls",
        "cwd": "/w",
        "status": "inProgress",
        "aggregatedOutput": None,
        "exitCode": None,
    }
    drafts = feed(
        started(item),
        line("item/commandExecution/outputDelta", itemId="c", delta="a\n"),
        line("item/commandExecution/terminalInteraction", itemId="c", processId="1", stdin="y\n"),
        done({**item, "status": "failed", "aggregatedOutput": "a\nb\n", "exitCode": 2}),
    )
    call, typed, result = items(drafts)
    assert json.loads(call.content[0].tool_call.arguments_json) == {"command": "ls", "cwd": "/w"}
    assert typed.content[0].status.label == "terminal_input"
    assert (result.item_id, result.parent_id, result.native_item_id) == ("c/result", "c", "c")
    assert result.status == item_pb2.ITEM_STATUS_FAILED
    part = result.content[0].tool_result
    assert (part.output, part.exit_code, part.is_error) == ("a\nb\n", 2, True)


@pytest.mark.parametrize(
    ("status", "failed"), [("completed", False), ("failed", True), ("declined", True)]
)
def test_only_a_completed_tool_succeeded(status: str, failed: bool) -> None:
    item = {"type": "commandExecution", "id": "c", "command": "ls", "status": "inProgress"}
    _, result = both(item, status=status)
    assert result.content[0].tool_result.is_error is failed


@pytest.mark.parametrize(
    ("kind", "diff", "action", "shown"),
    [
        ("add", "a\nb\n", item_pb2.FILE_ACTION_WRITE, "@@ -0,0 +1,2 @@\n+a\n+b\n"),
        ("add", "", item_pb2.FILE_ACTION_WRITE, ""),
        (
            "delete",
            "a",
            item_pb2.FILE_ACTION_DELETE,
            "@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n",
        ),
        ("update", "@@ -1 +1 @@\n-a\n+b\n", item_pb2.FILE_ACTION_PATCH, "@@ -1 +1 @@\n-a\n+b\n"),
    ],
)
def test_a_change_of_a_file_has_a_diff(kind: str, diff: str, action: int, shown: str) -> None:
    change = {"path": "/w/f", "kind": {"type": kind}, "diff": diff}
    item = {"type": "fileChange", "id": "f", "changes": [change], "status": "inProgress"}
    for made in both(item, status="completed"):
        file = made.content[1].file_ref
        assert (file.path, file.action, file.diff) == ("/w/f", action, shown)


def test_a_moved_file_says_where_to() -> None:
    kind = {"type": "update", "move_path": "/w/new"}
    changes = [{"path": "/w/old", "kind": kind, "diff": ""}]
    item = {"type": "fileChange", "id": "f", "changes": changes, "status": "inProgress"}
    file = both(item, status="completed")[0].content[1].file_ref
    assert (file.action, file.new_path) == (item_pb2.FILE_ACTION_MOVE, "/w/new")


def test_a_patch_while_it_is_written_is_a_snapshot() -> None:
    changes = [{"path": "f", "kind": {"type": "add"}, "diff": "a"}]
    [item] = items(feed(line("item/fileChange/patchUpdated", itemId="f", changes=changes)))
    assert item.content[0].status.key == "patch:f"


def test_arguments_and_structured_results_of_mcp_tools_are_verbatim() -> None:
    arguments = '{"n": 12345678901234567890, "x": 1.0, "b": 1, "a": 2}'
    head = (
        '{"method":"item/%s","params":{"threadId":"root","turnId":"T1","item":{"type":"mcpToolCall",'
        '"id":"m","server":"s","tool":"t","status":"%s","arguments":'
        + arguments
        + ',"result":%s}}}'
    )
    structured = '{"z": 1.50, "y": [1e3]}'
    picture = json.dumps({"type": "image", "mimeType": "image/png", "data": PNG})
    result = (
        '{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"},'
        + picture
        + '],"structuredContent":'
        + structured
        + "}"
    )
    call, answer = items(
        feed(
            (head % ("started", "inProgress", "null")).encode(),
            (head % ("completed", "completed", result)).encode(),
        )
    )
    assert call.content[0].tool_call.name == "s/t"
    assert call.content[0].tool_call.arguments_json == arguments
    assert answer.content[0].tool_result.output == "one\ntwo"
    assert answer.content[1].image.media_type == "image/png"
    assert answer.content[2].json.json == structured


def test_a_failed_mcp_tool_says_why() -> None:
    item = {"type": "mcpToolCall", "id": "m", "server": "s", "tool": "t", "arguments": {}}
    _, result = both(item, status="failed", error={"message": "user rejected MCP tool call"})
    assert result.content[0].tool_result.is_error
    assert result.content[0].tool_result.output == "user rejected MCP tool call"


def test_a_dynamic_tool() -> None:
    item = {"type": "dynamicToolCall", "id": "d", "namespace": "n", "tool": "t", "arguments": {}}
    content = [
        {"type": "inputText", "text": "out"},
        {"type": "inputImage", "imageUrl": f"data:image/png;base64,{PNG}"},
        {"type": "inputAudio", "audioUrl": "x"},
    ]
    call, result = both(item, status="completed", success=False, contentItems=content)
    assert call.content[0].tool_call.name == "n/t"
    assert result.content[0].tool_result.output == "out"
    assert result.content[0].tool_result.is_error
    assert [p.WhichOneof("part") for p in result.content] == ["tool_result", "image", "json"]


def test_a_web_search_says_what_it_looked_for_when_it_is_done() -> None:
    item = {"type": "webSearch", "id": "w", "query": "", "action": None, "results": None}
    call, result = both(item, query="cats", action={"type": "search"}, results=[{"url": "u"}])
    arguments = json.loads(call.content[0].tool_call.arguments_json)
    assert arguments == {"query": "cats", "action": {"type": "search"}}
    assert result.content[1].json.json == '[{"url": "u"}]'


def test_an_image_that_is_looked_at() -> None:
    call, result = both({"type": "imageView", "id": "i", "path": "/w/a.png"})
    assert call.content[1].file_ref.action == item_pb2.FILE_ACTION_READ
    assert not result.content[0].tool_result.is_error


def test_an_image_that_is_made() -> None:
    item = {"type": "imageGeneration", "id": "g", "status": "inProgress", "failure": None}
    _, result = both(item, status="completed", revisedPrompt="a cat", result=PNG)
    assert result.content[1].image.media_type == "image/png"
    _, failed = both(item, status="failed", failure={"code": "blocked"})
    assert failed.content[0].tool_result.is_error


def test_the_output_of_a_function() -> None:
    output = [{"type": "input_text", "text": "out"}]
    call, result = both({"type": "functionCallOutput", "id": "f", "name": "n", "output": output})
    assert call.content[0].tool_call.name == "n"
    assert result.content[0].tool_result.output == "out"


@pytest.mark.parametrize(
    ("item", "label"),
    [
        ({"type": "contextCompaction", "id": "s"}, "compacted"),
        ({"type": "enteredReviewMode", "id": "s", "review": "changes"}, "review_started"),
        ({"type": "exitedReviewMode", "id": "s", "review": "Fine."}, "review_finished"),
        ({"type": "sleep", "id": "s", "durationMs": 1500}, "slept"),
        (
            {
                "type": "subAgentActivity",
                "id": "s",
                "kind": "started",
                "agentThreadId": "c",
                "agentPath": "/a",
            },
            "sub_agent",
        ),
    ],
)
def test_items_that_are_status(item: dict[str, Any], label: str) -> None:
    [made] = both(item)
    assert made.kind == item_pb2.ITEM_KIND_STATUS
    assert made.content[0].status.label == label


def test_a_hook_is_one_item_from_start_to_end() -> None:
    def run(status: str) -> dict[str, str]:
        return {"id": "pre:0", "eventName": "preToolUse", "status": status}

    # The same hook runs for two calls at once.
    drafts = feed(
        line("hook/started", run=run("running")),
        line("hook/started", run=run("running")),
        line("hook/completed", run=run("completed")),
        line("hook/completed", run=run("failed")),
        line("hook/completed", run=run("completed")),
    )
    assert kinds(drafts[:4]) == [Kind.ITEM_STARTED] * 2 + [Kind.ITEM_COMPLETED] * 2
    begun = [d.event.item_started.item.item_id for d in drafts[:2]]
    ended = items(drafts)
    assert [item.item_id for item in ended[:2]] == begun
    assert [item.status == item_pb2.ITEM_STATUS_FAILED for item in ended] == [False, True, False]
    assert ended[0].content[0].status.detail == "pre tool use hook completed"
    assert ended[2].item_id not in begun


def test_a_call_says_what_its_command_does_and_its_result_only_the_outcome() -> None:
    item = {
        "type": "commandExecution",
        "id": "c",
        "command": "bash -lc 'cat x'",
        "commandActions": [{"type": "read", "path": "x"}],
    }
    drafts = feed(started({**item, "status": "inProgress"}), done({**item, "status": "declined"}))
    said = [d.event.metadata_json for d in drafts if d.kind is Kind.ITEM_COMPLETED]
    assert [json.loads(one) for one in said] == [
        {"commandActions": item["commandActions"]},
        {"status": "declined"},
    ]


def test_what_hooks_say_is_of_the_system() -> None:
    fragments = [{"text": "one", "hookRunId": "h"}, {"text": "two", "hookRunId": "h"}]
    [item] = both({"type": "hookPrompt", "id": "h", "fragments": fragments})
    assert item.kind == item_pb2.ITEM_KIND_SYSTEM
    assert item.content[0].text.text == "one\ntwo"


def test_an_item_of_a_type_that_is_not_known_is_kept_verbatim() -> None:
    native = done({"type": "novelty", "id": "n", "x": 1.0})
    [item] = items(feed(started({"type": "novelty", "id": "n"}), native))
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
    assert item.content[0].json.json.encode() == native


def test_a_notification_that_is_not_known_is_kept_verbatim() -> None:
    native = line("novel/thing", x=1)
    [item] = items(feed(native))
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
    assert item.content[0].json.json.encode() == native


def test_a_command_that_outlives_its_turn_ends_as_a_status_item() -> None:
    item = {"type": "commandExecution", "id": "c", "command": "sleep 9", "status": "inProgress"}
    turn = {"id": "T1", "status": "interrupted"}
    drafts = feed(
        started(item),
        line("turn/completed", turn=turn),
        line("item/commandExecution/outputDelta", itemId="c", delta="late"),
        done({**item, "status": "failed", "exitCode": -1, "aggregatedOutput": "late"}),
    )
    late = items(drafts)[-1]
    assert late.content[0].status.label == "late_output"
    assert "exit code -1" in late.content[0].status.detail
    assert (late.parent_id, late.content[2].text.text) == ("c", "late")
