"""Results of tools, the files they touch, to-do lists and plans."""

import base64
import json

import pytest

from agentstream.v1 import item_pb2
from agentstreamd.adapters.claude.tools import REJECTED_OUTPUT
from agentstreamd.model import Draft
from tests.unit.adapters.claude.claude_lines import (
    Json,
    assistant,
    completed,
    feed,
    statuses,
    text_block,
    the_item,
    tool_result,
    tool_use,
)

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


def called(name: str, arguments: Json, result: bytes) -> list[Draft]:
    return feed(assistant("m1", tool_use("t1", name, **arguments)), result)


def files(drafts: list[Draft], item_id: str) -> list[item_pb2.FileRefPart]:
    return [p.file_ref for p in the_item(drafts, item_id).content if p.HasField("file_ref")]


def test_a_result_stands_under_its_call() -> None:
    structured = {"stdout": "a", "stderr": "", "interrupted": False}

    drafts = called("Bash", {"command": "ls"}, tool_result("t1", "a", structured))

    item = the_item(drafts, "result:t1")
    assert item.parent_id == "call:t1"
    assert item.native_item_id == "t1"
    assert item.role == item_pb2.ITEM_ROLE_TOOL
    output, data = item.content
    assert output.tool_result.call_id == "t1"
    assert output.tool_result.output == "a"
    assert json.loads(data.json.json) == structured
    assert data.json.label == "tool_use_result"


def test_a_failed_command_says_its_exit_code() -> None:
    result = tool_result("t1", "Exit code 7\nno such host", "Error: Exit code 7", is_error=True)

    drafts = called("Bash", {"command": "curl x"}, result)

    item = the_item(drafts, "result:t1")
    assert item.status == item_pb2.ITEM_STATUS_FAILED
    assert item.content[0].tool_result.is_error
    assert item.content[0].tool_result.exit_code == 7


def test_text_blocks_and_images_of_a_result_are_parts() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content: list[Json] = [
        {"type": "text", "text": "one"},
        {"type": "image", "source": image},
        {"type": "text", "text": "two"},
    ]

    drafts = called("mcp__cam__shot", {}, tool_result("t1", content, content))

    output, picture = the_item(drafts, "result:t1").content
    assert output.tool_result.output == "one\ntwo"
    assert picture.image.media_type == "image/png"
    assert picture.image.data == b"\x89PNG pixel"


def test_an_image_is_not_said_twice() -> None:
    source = {"type": "base64", "data": PIXEL, "media_type": "image/png"}
    structured = {"type": "image", "file": {"base64": PIXEL, "type": "image/png"}}

    drafts = called(
        "Read",
        {"file_path": "/w/p.png"},
        tool_result("t1", [{"type": "image", "source": source}], structured),
    )

    kinds = [part.WhichOneof("part") for part in the_item(drafts, "result:t1").content]
    assert kinds == ["tool_result", "image", "file_ref"]


def test_an_image_that_cannot_be_decoded_stays_as_it_is() -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}

    drafts = called("Read", {}, tool_result("t1", [block]))

    assert json.loads(the_item(drafts, "result:t1").content[1].json.json) == block


def test_an_edit_has_the_diff_the_cli_gives() -> None:
    structured = {
        "filePath": "/w/a.txt",
        "oldString": "beta",
        "newString": "BETA",
        "structuredPatch": [
            {
                "oldStart": 1,
                "oldLines": 3,
                "newStart": 1,
                "newLines": 3,
                "lines": [" alpha", "-beta", "+BETA", " gamma"],
            }
        ],
    }
    arguments = {"file_path": "/w/a.txt", "old_string": "beta", "new_string": "BETA"}

    drafts = called("Edit", arguments, tool_result("t1", "updated", structured))

    (file,) = files(drafts, "result:t1")
    assert file.path == "/w/a.txt"
    assert file.action == item_pb2.FILE_ACTION_PATCH
    assert file.diff == "@@ -1,3 +1,3 @@\n alpha\n-beta\n+BETA\n gamma\n"
    (named,) = files(drafts, "call:t1")
    assert (named.path, named.diff) == ("/w/a.txt", "")


def test_a_created_file_has_a_diff_of_added_lines() -> None:
    structured = {"type": "create", "filePath": "/w/n", "content": "a\nb\n", "structuredPatch": []}

    drafts = called(
        "Write", {"file_path": "/w/n", "content": "a\nb\n"}, tool_result("t1", "ok", structured)
    )

    (file,) = files(drafts, "result:t1")
    assert file.action == item_pb2.FILE_ACTION_WRITE
    assert file.diff == "@@ -0,0 +1,2 @@\n+a\n+b\n"


def test_an_edit_without_structured_result_has_the_diff_of_its_arguments() -> None:
    # As in sub-agents, whose results come without it.
    edits = [
        {"old_string": "a\nb", "new_string": "a\nc"},
        {"old_string": "x", "new_string": "y"},
    ]

    drafts = called("MultiEdit", {"file_path": "/w/f", "edits": edits}, tool_result("t1"))

    (file,) = files(drafts, "result:t1")
    assert file.diff == "@@ -1,2 +1,2 @@\n a\n-b\n+c\n@@ -1 +1 @@\n-x\n+y\n"


def test_a_git_diff_is_taken_where_there_is_no_patch() -> None:
    structured = {"filePath": "/w/f", "structuredPatch": [], "gitDiff": {"patch": "@@ -1 +1 @@\n"}}

    drafts = called("Edit", {"file_path": "/w/f"}, tool_result("t1", "ok", structured))

    assert files(drafts, "result:t1")[0].diff == "@@ -1 +1 @@\n"


def test_huge_edits_are_not_compared_line_by_line() -> None:
    old, new = "a\n" * 3000, "b\n" * 3000

    drafts = called(
        "Edit", {"file_path": "/w/f", "old_string": old, "new_string": new}, tool_result("t1")
    )

    diff = files(drafts, "result:t1")[0].diff
    assert diff.startswith("@@ -1,3000 +1,3000 @@\n-a\n")
    assert diff.count("\n") == 6001


def test_a_read_file_is_named() -> None:
    drafts = called("Read", {"file_path": "/w/a"}, tool_result("t1", "1\thello"))

    (file,) = files(drafts, "result:t1")
    assert (file.path, file.action, file.diff) == ("/w/a", item_pb2.FILE_ACTION_READ, "")


def test_a_failed_edit_changed_no_file() -> None:
    drafts = called("Edit", {"file_path": "/w/a"}, tool_result("t1", "no", is_error=True))

    assert files(drafts, "result:t1") == []


@pytest.mark.parametrize(
    ("native", "shown"),
    [
        ("<tool_use_error>String not found.</tool_use_error>", "String not found."),
        ("<persisted-output>\nOutput too large\n</persisted-output>", "Output too large"),
        (
            "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. "
            "if it was a file edit, the new_string was NOT written to the file). STOP what you "
            "are doing and wait for the user to tell you how to proceed.",
            REJECTED_OUTPUT,
        ),
        (
            "The user doesn't want to proceed with this tool use. To tell you how to proceed, the "
            "user said:\nuse tabs",
            "use tabs",
        ),
        ("Not <tool_use_error> as a wrapper", "Not <tool_use_error> as a wrapper"),
    ],
)
def test_trap_10_wrappers_and_canned_texts_are_not_for_people(native: str, shown: str) -> None:
    drafts = called("Edit", {}, tool_result("t1", native, is_error=True))

    assert the_item(drafts, "result:t1").content[0].tool_result.output == shown


def test_a_structured_result_that_repeats_the_output_is_left_out() -> None:
    mcp = [{"type": "text", "text": "pong"}]

    drafts = called("mcp__d__ping", {}, tool_result("t1", mcp, mcp))

    assert len(the_item(drafts, "result:t1").content) == 1


def test_a_to_do_list_is_a_snapshot_under_one_key() -> None:
    todos = [
        {"content": "Do A", "status": "completed", "activeForm": "Doing A"},
        {"content": "Do B", "status": "in_progress", "activeForm": "Doing B"},
    ]

    drafts = called("TodoWrite", {"todos": todos}, tool_result("t1", "ok", {"newTodos": todos}))

    (status,) = statuses(drafts)
    assert (status.label, status.key) == ("todo", "todo")
    assert status.detail == "1 of 2 done: Doing B"
    item = the_item(drafts, "todo:t1")
    assert json.loads(item.content[1].json.json) == {"todos": todos}


def test_a_to_do_list_that_was_refused_is_not_shown() -> None:
    drafts = called("TodoWrite", {"todos": []}, tool_result("t1", "no", is_error=True))

    assert statuses(drafts) == []


def test_tasks_add_up_to_a_list() -> None:
    drafts = feed(
        assistant("m1", tool_use("t1", "TaskCreate", subject="Do A", activeForm="Doing A")),
        tool_result("t1", "Task #1 created", {"task": {"id": "1", "subject": "Do A"}}),
        assistant("m2", tool_use("t2", "TaskCreate", subject="Do B")),
        tool_result("t2", "Task #2 created", {"task": {"id": "2", "subject": "Do B"}}),
        assistant("m3", tool_use("t3", "TaskUpdate", taskId="1", status="in_progress")),
        tool_result("t3", "Updated task #1 status", {"success": True}),
        assistant("m4", tool_use("t4", "TaskList")),
        tool_result("t4", "#1", {"tasks": [{"id": "1", "status": "in_progress"}]}),
        assistant("m5", tool_use("t5", "TaskUpdate", taskId="2", status="deleted")),
        tool_result("t5", "Deleted", {"success": True}),
    )

    assert [status.detail for status in statuses(drafts)] == [
        "0 of 1 done",
        "0 of 2 done",
        "0 of 2 done: Doing A",
        "0 of 1 done: Doing A",
    ]
    assert json.loads(the_item(drafts, "todo:t3").content[1].json.json)["todos"] == [
        {"id": "1", "content": "Do A", "status": "in_progress", "activeForm": "Doing A"},
        {"id": "2", "content": "Do B", "status": "pending"},
    ]


def test_a_sub_agents_to_do_list_is_its_own() -> None:
    drafts = feed(
        assistant("s1", tool_use("t1", "TodoWrite", todos=[]), thread="task"),
        tool_result("t1", thread="task"),
    )

    assert statuses(drafts)[0].key == "todo:task"


def test_a_proposed_plan_is_a_status_with_the_plan() -> None:
    drafts = feed(assistant("m1", tool_use("t1", "ExitPlanMode", plan="1. Look\n2. Leap")))

    (status,) = statuses(drafts)
    assert status.key == "plan"
    assert the_item(drafts, "plan:t1").content[1].text.text == "1. Look\n2. Leap"


def test_what_a_sub_agent_reports_is_shown_without_what_is_meant_for_the_model() -> None:
    said = [text_block("One file."), text_block("agentId: a1 (use SendMessage to continue)")]
    report = {"status": "completed", "agentId": "a1", "content": said[:1]}

    drafts = feed(assistant("m1", tool_use("t1", "Task")), tool_result("t1", said, report))
    assert the_item(drafts, "result:t1").content[0].tool_result.output == "One file."

    launched = {"status": "async_launched", "agentId": "a1"}
    drafts = feed(assistant("m1", tool_use("t1", "Task")), tool_result("t1", said, launched))
    assert "agentId" in the_item(drafts, "result:t1").content[0].tool_result.output


def test_a_rejected_call_is_not_said_twice() -> None:
    canned = "The user doesn't want to proceed with this tool use. The tool use was rejected."
    drafts = feed(
        assistant("m1", tool_use("t1")),
        tool_result("t1", canned, "User rejected tool use", is_error=True),
    )

    (part,) = the_item(drafts, "result:t1").content
    assert part.tool_result.output == REJECTED_OUTPUT


def test_a_call_without_a_name_has_a_made_up_one() -> None:
    drafts = feed(assistant("m1", {"type": "tool_use", "id": "t1", "input": {}}))
    assert the_item(drafts, "call:t1").content[0].tool_call.name == "unnamed"


def test_a_result_of_no_call_is_not_known() -> None:
    (item,) = completed(feed(tool_result("")))
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
