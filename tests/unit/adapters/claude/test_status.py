"""What passes by, what is not known, and what is ignored on purpose."""

import json

import pytest

from agentstream.v1 import item_pb2
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Kind
from tests.unit.adapters.claude.claude_lines import (
    Json,
    assistant,
    completed,
    events,
    fed,
    feed,
    init,
    line,
    statuses,
    synthetic,
    system,
    the_item,
    tool_use,
    user,
)


def test_a_task_is_a_snapshot_under_its_call() -> None:
    drafts = feed(
        system("task_started", task_id="b", tool_use_id="t1", description="Look"),
        system("task_progress", task_id="b", tool_use_id="t1", description="Running ls"),
        system("task_updated", task_id="b", patch={"status": "completed"}),
        system("task_notification", task_id="b", tool_use_id="t1", status="failed", summary="Look"),
    )

    assert {status.key for status in statuses(drafts)} == {"task:b"}
    assert [status.label for status in statuses(drafts)] == [
        "task_started",
        "task_progress",
        "task_updated",
        "task_ended",
    ]
    assert {item.parent_id for item in completed(drafts)} == {"call:t1"}
    assert statuses(drafts)[2].detail == "completed"
    assert statuses(drafts)[-1].detail == "Look: failed"
    assert completed(drafts)[-1].status == item_pb2.ITEM_STATUS_FAILED
    assert json.loads(completed(drafts)[2].content[1].json.json) == {
        "task_id": "b",
        "patch": {"status": "completed"},
    }


def test_a_sub_agent_that_ended_leaves_no_message_open() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, assistant("s1", tool_use("t2"), thread="t1"))

    drafts = fed(normalizer, system("task_notification", task_id="b", tool_use_id="t1"))

    assert the_item(drafts, "message:s1").status == item_pb2.ITEM_STATUS_COMPLETED


def test_compaction_is_shown_from_beginning_to_end() -> None:
    metadata = {"trigger": "manual", "pre_tokens": 120, "post_tokens": 30}
    drafts = feed(
        system("status", status="compacting"),
        system("status", status=None, compact_result="success"),
        system("compact_boundary", compact_metadata=metadata),
        user("The summary.", isSynthetic=True, isReplay=False, uuid="u1"),
        user("<local-command-stdout>Compacted </local-command-stdout>", isReplay=True, uuid="u2"),
    )

    assert [(s.label, s.key) for s in statuses(drafts)] == [
        ("compacting", "compaction"),
        ("compacted", "compaction"),
    ]
    assert statuses(drafts)[1].detail == (
        "The conversation was compacted (manual) from 120 tokens to 30."
    )
    summary, output = the_item(drafts, "system:u1"), the_item(drafts, "system:u2")
    assert summary.kind == output.kind == item_pb2.ITEM_KIND_SYSTEM
    assert summary.content[0].text.text == "The summary."
    assert output.content[0].text.text == "Compacted"


def test_a_compaction_that_failed_says_why() -> None:
    drafts = feed(
        system("status", status=None, compact_result="failed", compact_error="Not enough.")
    )

    assert (statuses(drafts)[0].label, statuses(drafts)[0].detail) == (
        "compaction_failed",
        "Not enough.",
    )
    assert completed(drafts)[0].status == item_pb2.ITEM_STATUS_FAILED


def test_a_hook_that_fails_is_a_failed_status() -> None:
    drafts = feed(
        system("hook_started", hook_id="h", hook_name="PreToolUse:Bash"),
        system(
            "hook_response",
            hook_id="h",
            hook_name="PreToolUse:Bash",
            outcome="error",
            stderr="blocked",
        ),
    )

    assert {status.key for status in statuses(drafts)} == {"hook:h"}
    assert statuses(drafts)[1].detail == "PreToolUse:Bash: error"
    assert completed(drafts)[1].status == item_pb2.ITEM_STATUS_FAILED


def test_progress_of_a_tool_stands_under_the_real_call() -> None:
    native = line(
        type="tool_progress",
        tool_use_id="bash-progress-0",
        tool_name="Bash",
        parent_tool_use_id="t1",
        elapsed_time_seconds=33,
    )

    (item,) = completed(feed(native))

    assert item.parent_id == "call:t1"
    assert item.content[0].status.detail == "Bash: 33 s"
    assert item.content[0].status.key == "tool_progress:t1"


@pytest.mark.parametrize(
    ("native", "label"),
    [
        (line(type="rate_limit_event", rate_limit_info={"status": "allowed"}), "rate_limit"),
        (line(type="prompt_suggestion", suggestion="Run it"), "prompt_suggestion"),
        (line(type="tool_use_summary", summary="Read 3 files"), "tool_use_summary"),
        (line(type="auth_status", isAuthenticating=True), "auth_status"),
        (system("informational", content="Note."), "notice"),
        (system("background_tasks_changed", tasks=[]), "background_tasks"),
        (system("conversation_reset"), "conversation_reset"),
        (system("status", status="pondering"), "status"),
    ],
)
def test_known_lines_are_statuses(native: bytes, label: str) -> None:
    drafts = feed(native)

    assert [status.label for status in statuses(drafts)] == [label]


@pytest.mark.parametrize(
    "native",
    [
        system("thinking_tokens", estimated_tokens=3),
        system("session_state_changed", state="idle"),
        system("status", status="requesting"),
        system("status", status=None, compact_result="success"),
        line(type="keep_alive"),
        line(type="command_lifecycle", command_uuid="u", state="queued"),
        line(type="control_response", response={"subtype": "success", "request_id": "r"}),
        line(type="stream_event", event={"type": "ping"}),
        line(type="stream_event", event={"type": "content_block_stop", "index": 0}),
        line(type="stream_event", event={"type": "message_stop"}),
        b"  ",
    ],
)
def test_what_is_ignored_on_purpose_makes_no_event(native: bytes) -> None:
    assert feed(native) == []


@pytest.mark.parametrize(
    ("native", "label"),
    [
        (line(type="hologram", x=[1]), "hologram"),
        (system("hologram"), "system/hologram"),
        (line(no_type=1), "line"),
        (line(type=["odd"]), "line"),
        (line(type="assistant", message="odd"), "assistant"),
        (line(type="user"), "user"),
        (line(type="stream_event", event=7), "stream_event"),
        (line(type="control_request", request={"subtype": "can_use_tool"}), "control_request"),
        (line(type="control_response", response=None), "control_response"),
    ],
)
def test_what_is_not_known_is_kept_verbatim(native: bytes, label: str) -> None:
    drafts = feed(native)

    (item,) = completed(drafts)
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
    assert item.content[0].json.label == label
    assert item.content[0].json.json == native.decode()
    assert {draft.raw for draft in drafts} == {(native,)}


@pytest.mark.parametrize("native", [b"Error: crashed", b"[1]", b"{", b"\xff"])
def test_what_is_no_message_is_unparsed(native: bytes) -> None:
    (draft,) = feed(native)

    assert draft.kind is Kind.AGENT_UNPARSED
    assert draft.raw == (native,)


def test_the_prompt_of_a_sub_agent_stands_under_its_call() -> None:
    drafts = feed(user([{"type": "text", "text": "Look."}], thread="task", uuid="u1"))

    item = the_item(drafts, "user:u1")
    assert (item.role, item.parent_id) == (item_pb2.ITEM_ROLE_USER, "call:task")


def test_images_of_a_users_message_are_parts() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}

    drafts = feed(user([{"type": "image", "source": source}], uuid="u1"))

    assert the_item(drafts, "user:u1").content[0].image.data == b"\x89PNG"


def test_output_of_a_command_between_turns_is_outside_them() -> None:
    drafts = feed(
        user(
            "<local-command-stdout>Set model to claude-haiku-4-5</local-command-stdout>",
            isReplay=True,
        )
    )

    assert completed(drafts)[0].content[0].text.text == "Set model to claude-haiku-4-5"
    assert events(drafts, Kind.TURN_STARTED) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "assistant", "message": {"id": 5, "content": [5, None, {"type": []}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result"}]}},
        {"type": "user", "message": {"content": {"type": "text"}}, "isReplay": "yes"},
        {"type": "result"},
        {"type": "result", "usage": [], "modelUsage": {"m": 1}, "total_cost_usd": "1"},
        {"type": "result", "permission_denials": [1, {}], "errors": {"a": 1}, "is_error": 1},
        {"type": "system", "subtype": "init", "tools": [1], "mcp_servers": [1, {}]},
        {"type": "system", "subtype": "api_retry", "attempt": 1e300, "retry_delay_ms": -1},
        {"type": "system", "subtype": "compact_boundary", "compact_metadata": []},
        {"type": "system", "subtype": "task_notification", "tool_use_id": 5},
        {"type": "control_request", "request_id": "r", "request": []},
        {
            "type": "control_request",
            "request_id": "r",
            "request": {"subtype": "can_use_tool", "input": [], "permission_suggestions": {}},
        },
        {
            "type": "control_request",
            "request_id": "r",
            "request": {
                "subtype": "can_use_tool",
                "tool_name": "Edit",
                "input": {"file_path": "/a", "old_string": 5, "edits": 3},
                "permission_suggestions": [{"type": "addRules", "rules": 5, "behavior": "allow"}],
            },
        },
        {"type": "stream_event", "event": {"type": "content_block_start"}},
        {"type": "stream_event", "event": {"type": "content_block_delta", "index": 99}},
    ],
)
def test_odd_input_is_never_more_than_odd(odd: Json) -> None:
    normalizer = ClaudeNormalizer()
    native = line(**odd)

    drafts = fed(normalizer, init(), synthetic("x", error=[]), native, native)
    drafts += normalizer.finish()

    assert events(drafts, Kind.AGENT_UNPARSED) == []
    assert all(draft.event.SerializeToString() for draft in drafts)
