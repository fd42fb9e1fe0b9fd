"""Tools of OpenCode, and what passes by: todo lists, retries, compaction, changed files."""

import json

import pytest

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.model import Draft, Kind
from tests.unit.adapters.opencode.opencode_events import (
    begun,
    deltas,
    event,
    feed,
    items,
    of,
    part,
    permission,
    tool,
    user,
)


def result(drafts: list[Draft]) -> item_pb2.Item:
    [found] = [i for i in items(drafts) if i.kind == item_pb2.ITEM_KIND_TOOL_RESULT]
    return found


def test_a_tool_is_a_call_and_its_result() -> None:
    ran = {"command": "ls", "description": "List"}
    _, drafts = begun(
        tool("pending"),
        tool("running", input=ran),
        tool("completed", input=ran, output="a\n", title="ls", metadata={"exit": 0, "x": 1}),
    )
    call, returned = items(drafts)
    assert (call.item_id, call.parent_id) == ("prt_t", "msg_a")
    assert call.content[0].tool_call.arguments_json == json.dumps(ran)
    assert returned.parent_id == "prt_t"
    said = returned.content[0].tool_result
    assert (said.call_id, said.output, said.exit_code) == ("call_1", "a\n", 0)
    assert returned.status == item_pb2.ITEM_STATUS_COMPLETED
    metadata = [d.event.metadata_json for d in drafts if d.kind is Kind.ITEM_COMPLETED][-1]
    assert json.loads(metadata) == {"title": "ls", "metadata": {"x": 1}}


@pytest.mark.parametrize("code", [3, None])
def test_a_command_that_failed_or_was_killed_is_a_failed_result(code: int | None) -> None:
    _, drafts = begun(tool("running"), tool("completed", output="x", metadata={"exit": code}))
    returned = result(drafts)
    assert returned.status == item_pb2.ITEM_STATUS_FAILED
    said = returned.content[0].tool_result
    assert said.is_error
    assert (said.exit_code if said.HasField("exit_code") else None) == code


def test_what_a_tool_says_beyond_its_output_is_told_once() -> None:
    display = {"type": "file", "text": "the whole file", "totalLines": 9, "truncated": False}
    metadata = {"truncated": False, "loaded": [], "preview": "the", "display": display}
    _, drafts = begun(tool("completed", "read", metadata=metadata, time={"start": 1, "end": 5}))
    [told] = [d.event.metadata_json for d in drafts if d.event.metadata_json]
    assert json.loads(told) == {
        "time": {"start": 1, "end": 5},
        "metadata": {"display": {"type": "file", "totalLines": 9}},
    }


def test_arguments_stay_verbatim() -> None:
    native = tool("running").replace(
        b'"input": {}', b'"input": {"n": 1.50, "big": 12345678901234567890}'
    )
    _, drafts = begun(native)
    assert items(drafts)[0].content[0].tool_call.arguments_json == (
        '{"n": 1.50, "big": 12345678901234567890}'
    )


def test_output_that_comes_whole_each_time_is_passed_on_in_pieces() -> None:
    said = ("", "a\n", "a\nb\n", "a\nb\n")
    _, drafts = begun(*(tool("running", metadata={"output": text}) for text in said))
    assert deltas(drafts) == ["a\n", "b\n"]
    kinds = {e.item_delta.kind for e in of(drafts, Kind.ITEM_DELTA)}
    assert kinds == {event_pb2.DELTA_KIND_TOOL_OUTPUT}


def test_a_preview_that_moves_on_continues_where_it_overlaps() -> None:
    first, moved = "x" * 300 + "END", "x" * 280 + "END more"
    _, drafts = begun(*(tool("running", metadata={"output": text}) for text in (first, moved)))
    assert deltas(drafts) == [first, " more"]


def test_a_tool_first_seen_complete_has_all_its_steps() -> None:
    _, drafts = begun(tool("completed", output="x"))
    kinds = [d.kind for d in drafts if d.kind in (Kind.ITEM_STARTED, Kind.ITEM_COMPLETED)]
    assert kinds[1:] == [
        Kind.ITEM_STARTED,
        Kind.ITEM_COMPLETED,
        Kind.ITEM_STARTED,
        Kind.ITEM_COMPLETED,
    ]


def test_a_call_that_can_not_be_carried_out_keeps_its_name_and_fails() -> None:
    _, drafts = begun(
        tool("pending", "nothing"),
        tool("running", "invalid", input={"tool": "nothing", "error": "no such tool"}),
        tool("completed", "invalid", output="The arguments are invalid"),
    )
    call, returned = items(drafts)
    assert call.content[0].tool_call.name == "nothing"
    assert returned.content[0].tool_result.is_error


def test_a_tool_that_fails_says_why() -> None:
    _, drafts = begun(tool("running"), tool("error", error="Tool execution aborted"))
    returned = result(drafts)
    assert returned.status == item_pb2.ITEM_STATUS_FAILED
    assert returned.content[0].tool_result.output == "Tool execution aborted"


def test_an_edit_names_the_file_with_its_diff() -> None:
    changed = {"filePath": "/w/a", "oldString": "1", "newString": "2"}
    done = tool("completed", "edit", input=changed, output="ok", metadata={"diff": "-1\n+2"})
    _, drafts = begun(done)
    file = result(drafts).content[1].file_ref
    assert (file.path, file.diff, file.action) == ("/w/a", "-1\n+2", item_pb2.FILE_ACTION_PATCH)


def test_a_written_file_has_the_diff_that_its_permission_showed() -> None:
    written = {"filePath": "/w/a", "content": "x"}
    asked = permission(permission="edit", metadata={"filepath": "/w/a", "diff": "+x"})
    _, drafts = begun(
        tool("running", "write", input=written),
        asked,
        tool("completed", "write", input=written, output="ok"),
    )
    assert result(drafts).content[1].file_ref.diff == "+x"


def test_a_patch_names_all_its_files() -> None:
    files = [
        {"filePath": "/w/a", "type": "add", "patch": "+a"},
        {"filePath": "/w/b", "type": "delete", "patch": "-b"},
    ]
    _, drafts = begun(tool("completed", "apply_patch", output="ok", metadata={"files": files}))
    named = [p.file_ref for p in result(drafts).content[1:]]
    assert [(f.path, f.action) for f in named] == [
        ("/w/a", item_pb2.FILE_ACTION_WRITE),
        ("/w/b", item_pb2.FILE_ACTION_DELETE),
    ]


def test_a_picture_comes_back() -> None:
    attachment = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,aGk="}
    _, drafts = begun(tool("completed", "read", output="", attachments=[attachment]))
    assert result(drafts).content[1].image.data == b"hi"


def test_what_passes_by_is_status() -> None:
    retry = {"type": "retry", "attempt": 2, "message": "too many requests", "next": 5}
    _, drafts = begun(
        event("todo.updated", todos=[{"content": "a", "status": "pending"}]),
        event("session.status", status=retry),
        part("compaction", "prt_c", auto=True),
        event("session.compacted"),
        part("patch", "prt_p", hash="x", files=["/w/a"]),
        part("subtask", "prt_k", description="Sub", prompt="p", agent="general"),
        part("retry", "prt_r", attempt=1, error={"data": {"message": "x"}}),
        part("step-start", "prt_0"),
        part("snapshot", "prt_00", snapshot="x"),
    )
    said = [i.content[0].status for i in items(drafts)]
    assert [(s.label, s.key) for s in said] == [
        ("todo", "todo"),
        ("compacting", "compaction"),
        ("compacted", "compaction"),
        ("files_changed", ""),
        ("subtask", ""),
        ("retrying", "retry"),
    ]
    natives = [i.native_item_id for i in items(drafts)]
    assert natives == ["", "prt_c", "", "prt_p", "prt_k", "prt_r"], "parts have ids of their own"
    [error] = of(drafts, Kind.ERROR)
    assert (error.error.attempt, error.error.will_retry) == (2, True)
    assert json.loads(error.metadata_json) == {"next": 5}


def test_the_diff_of_a_turn_is_said_when_it_changes() -> None:
    diffs = [{"file": "a", "patch": "+x", "status": "added"}]
    normalizer, _ = begun()
    drafts = feed(normalizer, user(summary={"diffs": diffs}), user(summary={"diffs": diffs}))
    [item] = items(drafts)
    assert item.content[0].status.key == "diff"
    assert item.content[0].status.detail == "1 file changed"
    assert item.content[1].file_ref.diff == "+x"
    [none] = items(feed(normalizer, user(summary={"diffs": []})))
    assert none.content[0].status.detail == "0 files changed"


def test_the_diff_of_an_earlier_turn_that_comes_again_is_not_the_latest() -> None:
    first = user("msg_1", summary={"diffs": [{"file": "a", "patch": "+a", "status": "added"}]})
    second = user("msg_2", summary={"diffs": [{"file": "b", "patch": "+b", "status": "added"}]})
    _, drafts = begun(first, second, first)
    assert [item.content[1].file_ref.path for item in items(drafts)] == ["a", "b"]
    told = [json.loads(d.event.metadata_json) for d in drafts if d.event.metadata_json]
    assert told == [{"messageID": "msg_1"}, {"messageID": "msg_2"}]


def test_what_is_taken_back_and_that_it_is_over_is_said_once_each() -> None:
    back = {"id": "ses_root", "revert": {"messageID": "msg_u", "diff": "-x"}}
    over = {"id": "ses_root"}
    infos = (back, back, over, over)
    _, drafts = begun(*(event("session.updated", info=info) for info in infos))
    said = [i.content[0].status for i in items(drafts)]
    assert [(s.label, s.key) for s in said] == [("reverted", "revert"), ("revert_over", "revert")]
    assert json.loads(items(drafts)[0].content[1].json.json) == back["revert"]


@pytest.mark.parametrize(
    ("kind", "properties", "label", "detail"),
    [
        ("message.removed", {"messageID": "msg_x"}, "message_removed", "msg_x"),
        (
            "message.part.removed",
            {"messageID": "msg_x", "partID": "prt_x"},
            "part_removed",
            "prt_x",
        ),
    ],
)
def test_what_is_taken_out_of_the_conversation_is_said(
    kind: str, properties: dict[str, str], label: str, detail: str
) -> None:
    _, drafts = begun(event(kind, **properties))
    [item] = items(drafts)
    assert (item.content[0].status.label, item.content[0].status.detail) == (label, detail)
    assert not item.parent_id


def test_a_session_says_what_it_is() -> None:
    info = {
        "id": "ses_root",
        "version": "1.2.3",
        "title": "New session - 2026-12-01T02:09:50.174Z",
        "model": {"id": "main", "providerID": "fake"},
        "agent": "build",
        "directory": "/repo",
    }
    _, drafts = begun(event("session.created", info=info), event("session.updated", info=info))
    [started] = of(drafts, Kind.SESSION_STARTED)
    assert started.native_session_id == "ses_root"
    assert started.session_started.agent_version == "1.2.3"
    assert started.session_started.model == "fake/main"
    updated = of(drafts, Kind.SESSION_UPDATED)[-1]
    assert updated.session_updated.mode == "build"
    assert not updated.session_updated.HasField("title"), "it has none yet"


def test_noise_says_nothing() -> None:
    kinds = ("plugin.added", "server.heartbeat", "file.edited", "session.diff", "catalog.updated")
    normalizer, _ = begun()
    assert feed(normalizer, *(event(kind) for kind in kinds)) == []
