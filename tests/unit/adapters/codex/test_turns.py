"""Turns, usage, errors, what supersedes what, sub-agents' threads."""

import json
from typing import Any

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, item_pb2
from agentstreamd.adapters.codex.ignored import ignored
from agentstreamd.adapters.codex.normalizer import CodexNormalizer
from agentstreamd.model import Draft, Kind
from tests.unit.adapters.codex.codex_lines import (
    CHILD,
    ROOT,
    done,
    feed,
    items,
    kinds,
    line,
    normalizer,
    request,
    response,
    started,
    turn_completed,
    turn_started,
)


def usage(total: int, last: int, **more: Any) -> bytes:
    def figures(count: int) -> dict[str, int]:
        return {"inputTokens": count, "outputTokens": count // 10, "cachedInputTokens": 1}

    said = {"total": figures(total), "last": figures(last)}
    return line("thread/tokenUsage/updated", turnId="T1", tokenUsage=said, **more)


def ended(drafts: list[Draft]) -> list[event_pb2.TurnEnded]:
    return [d.event.turn_ended for d in drafts if d.kind is Kind.TURN_ENDED]


def triggers(drafts: list[Draft]) -> list[int]:
    return [d.event.turn_started.trigger for d in drafts if d.kind is Kind.TURN_STARTED]


# --- turns ---------------------------------------------------------------------------------------


def test_a_turn_is_the_clients_where_it_was_asked_for() -> None:
    target = normalizer()
    target.sent(request(3, "turn/start", threadId=ROOT, input=[]))
    drafts = feed(response(3, turn={"id": "T1"}), turn_started(), turn_completed(), to=target)
    assert triggers(drafts) == [event_pb2.TURN_TRIGGER_CLIENT]
    assert [e.native_turn_id for e in ended(drafts)] == ["T1"]


def test_a_turn_that_nobody_asked_for_is_the_agents() -> None:
    drafts = feed(turn_started("goal"), turn_completed("goal"))
    assert triggers(drafts) == [event_pb2.TURN_TRIGGER_AGENT]


def test_whose_turn_it_is_is_left_open_where_a_recording_cannot_tell() -> None:
    target = CodexNormalizer(ROOT, hears_client=False)
    of_goal = line("turn/started", turn={"id": "T2", "rootTurnId": "T1"})
    drafts = feed(turn_started(), turn_completed(), of_goal, to=target)
    assert triggers(drafts) == [
        event_pb2.TURN_TRIGGER_UNSPECIFIED,
        event_pb2.TURN_TRIGGER_AGENT,
    ]


def test_the_turn_after_a_request_to_compact_is_of_compaction() -> None:
    target = normalizer()
    target.sent(request(4, "thread/compact/start", threadId=ROOT))
    assert triggers(feed(response(4), turn_started(), to=target)) == [
        event_pb2.TURN_TRIGGER_COMPACTION
    ]


def test_the_end_of_a_goals_turn_does_not_end_a_message_that_is_on_its_way() -> None:
    target = normalizer()
    feed(turn_started("goal"), to=target)
    target.sent(request(3, "turn/start", threadId=ROOT, input=[]))
    assert ended(feed(turn_completed("goal"), to=target)) == []
    drafts = feed(
        response(3, turn={"id": "T1"}), turn_started("T1"), turn_completed("T1"), to=target
    )
    assert len(ended(drafts)) == 1


def test_a_review_ends_although_its_turn_began_under_another_id() -> None:
    target = normalizer()
    drafts = feed(
        response(5, turn={"id": "R"}),
        turn_started("other"),
        started({"type": "agentMessage", "id": "m", "text": ""}),
        turn_completed("R"),
        to=target,
    )
    assert [e.native_turn_id for e in ended(drafts)] == ["R"]
    assert target.turns.running == ""


def test_an_echo_of_a_prompt_is_dropped_once() -> None:
    target = normalizer()
    text = {"type": "text", "text": "hi", "text_elements": []}
    params = {"threadId": ROOT, "input": [text], "clientUserMessageId": "mine"}
    target.sent(request(3, "turn/start", **params))
    echo = {"type": "userMessage", "id": "u", "clientId": "mine", "content": [text]}
    assert feed(started(echo), done(echo), to=target) == []
    [other] = items(feed(done({**echo, "id": "v", "clientId": None}), to=target))
    assert other.role == item_pb2.ITEM_ROLE_USER


def test_usage_is_the_difference_of_cumulative_figures_children_included() -> None:
    target = normalizer()
    spawn = {"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent"}
    drafts = feed(
        turn_started(),
        usage(1100, 100),  # a resumed thread: 1000 are of before
        started(spawn),
        done({**spawn, "status": "completed", "receiverThreadIds": [CHILD]}),
        usage(50, 50, threadId=CHILD),
        usage(1300, 200),
        turn_completed(),
        turn_started("T2"),
        usage(1310, 10),
        turn_completed("T2"),
        to=target,
    )
    assert [e.usage.input_tokens for e in ended(drafts)] == [350, 10]


def test_the_end_of_a_turn_says_how_long_it_took_and_how_full_the_context_is() -> None:
    tokens = {"total": {"totalTokens": 900}, "last": {"totalTokens": 300}}
    drafts = feed(
        turn_started(),
        line("thread/tokenUsage/updated", tokenUsage={**tokens, "modelContextWindow": 1000}),
        line("turn/completed", turn={"id": "T1", "status": "completed", "durationMs": 7}),
        turn_started("T2"),
        turn_completed("T2"),
    )
    said = [d.event.metadata_json for d in drafts if d.kind is Kind.TURN_ENDED]
    assert json.loads(said[0]) == {
        "durationMs": 7,
        "modelContextWindow": 1000,
        "contextTokens": 300,
    }
    assert said[1] == ""


# --- errors --------------------------------------------------------------------------------------

FATAL = {"message": "no", "codexErrorInfo": "contextWindowExceeded", "additionalDetails": None}


def test_a_fatal_error_is_said_once_although_codex_says_it_twice() -> None:
    drafts = feed(
        turn_started(),
        line("error", error=FATAL, willRetry=False, turnId="T1"),
        turn_completed(status="failed", error=FATAL),
    )
    errors = [d.event.error for d in drafts if d.kind is Kind.ERROR]
    assert [e.code for e in errors] == [error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED]
    [end] = ended(drafts)
    assert end.status == event_pb2.TURN_STATUS_FAILED
    assert end.error == errors[0]


def test_an_error_that_only_the_end_of_the_turn_says_is_said() -> None:
    drafts = feed(turn_started(), turn_completed(status="failed", error=FATAL))
    assert kinds(drafts) == [Kind.TURN_STARTED, Kind.ERROR, Kind.TURN_ENDED]


def test_an_error_in_the_providers_own_json_is_a_sentence() -> None:
    body = '{"error": {"message": "no such tool", "type": "invalid_request_error"}}'
    drafts = feed(line("error", error={"message": body, "codexErrorInfo": "other"}))
    assert drafts[0].event.error.message == "no such tool"
    assert drafts[0].event.error.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    [odd] = feed(line("error", error={"message": "{not JSON"}))
    assert odd.event.error.message == "{not JSON"


def test_a_retry_says_which_attempt_it_is() -> None:
    error = {
        "message": "Reconnecting... 2/5",
        "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 429}},
        "additionalDetails": "exceeded retry limit",
    }
    [draft] = feed(line("error", error=error, willRetry=True, turnId="T1"))
    said = draft.event.error
    assert (said.will_retry, said.attempt, said.max_attempts) == (True, 2, 5)
    assert (said.code, said.http_status) == (error_pb2.ERROR_CODE_RATE_LIMITED, 429)


def test_the_message_after_a_cut_supersedes_the_one_before() -> None:
    message = {"type": "agentMessage", "id": "m1", "text": ""}
    drafts = feed(
        started(message),
        line("item/agentMessage/delta", itemId="m1", delta="half"),
        line("error", error={"message": "Reconnecting... 1/1"}, willRetry=True, turnId="T1"),
        started({**message, "id": "m2"}),
    )
    assert kinds(drafts)[-2:] == [Kind.ITEM_STARTED, Kind.ITEM_COMPLETED]
    [half] = items(drafts)
    assert (half.item_id, half.superseded_by) == ("m1", "m2")
    assert half.content[0].text.text == "half"


def test_a_message_of_another_kind_does_not_supersede() -> None:
    message = {"type": "agentMessage", "id": "m1", "text": ""}
    assert items(feed(started(message), started({**message, "id": "m2"}))) == []


# --- threads -------------------------------------------------------------------------------------


def test_what_a_sub_agent_says_waits_for_the_item_that_made_it() -> None:
    target = normalizer()
    message = {"type": "agentMessage", "id": "m", "text": "from below"}
    spawn = {"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent"}
    early = feed(
        started({**message, "text": "", "id": "m"}),  # the parent's, of the same id
        started(message, threadId=CHILD),
        done(message, threadId=CHILD),
        to=target,
    )
    assert len(early) == 1
    drafts = feed(
        started(spawn),
        done({**spawn, "status": "completed", "receiverThreadIds": [CHILD]}),
        to=target,
    )
    below = items(drafts)[-1]
    assert below.content[0].text.text == "from below"
    assert (below.item_id, below.native_item_id) == (f"m@{CHILD}", "m")
    assert below.parent_id == "s"


def test_a_sub_agents_approval_stands_under_its_item_and_does_not_wait_for_ever() -> None:
    target = normalizer()
    spawn = {"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent"}
    asks = line("item/commandExecution/requestApproval", id=0, threadId=CHILD, itemId="c")
    drafts = feed(started(spawn), asks, to=target)
    [asked] = [d.event.permission_requested for d in drafts if d.kind is Kind.PERMISSION_REQUESTED]
    assert asked.parent_id == "s"
    assert target.request(asked.request_id) is not None


def test_a_sub_agents_turns_are_not_the_sessions() -> None:
    target = normalizer()
    activity = {"type": "subAgentActivity", "id": "s", "kind": "started", "agentThreadId": CHILD}
    message = {"type": "agentMessage", "id": "m", "text": ""}
    drafts = feed(
        turn_started(),
        started(activity),
        done(activity),
        turn_started("C1", threadId=CHILD),
        started(message, threadId=CHILD),
        line("item/agentMessage/delta", threadId=CHILD, itemId="m", delta="half"),
        turn_completed("C1", "interrupted", threadId=CHILD),
        to=target,
    )
    assert len(triggers(drafts)) == 1
    assert ended(drafts) == []
    cut = items(drafts)[-1]
    assert (cut.parent_id, cut.status) == ("s", item_pb2.ITEM_STATUS_FAILED)


def test_another_sessions_thread_is_none_of_ours() -> None:
    target = normalizer()
    other = {"thread": {"id": "other", "parentThreadId": None}, "approvalPolicy": "never"}
    message = {"type": "agentMessage", "id": "m", "text": "x"}
    assert feed(response(9, **other), done(message, threadId="other"), to=target) == []


# --- settings, status ----------------------------------------------------------------------------


def test_settings_are_taken_and_the_built_in_prompt_is_not_kept() -> None:
    settings = {
        "model": "m",
        "approvalPolicy": "on-request",
        "sandboxPolicy": {"type": "readOnly"},
        "collaborationMode": {
            "mode": "plan",
            "settings": {"model": "m", "developer_instructions": "SECRET " * 100},
        },
    }
    [draft] = feed(line("thread/settings/updated", threadSettings=settings))
    updated = draft.event.session_updated
    assert updated.permission_mode == agent_pb2.PERMISSION_MODE_PLAN
    [raw] = draft.raw
    assert b"SECRET" not in raw
    assert getattr(raw, "redactions", ()) == ("developer_instructions",)


def test_the_same_diff_is_said_once() -> None:
    diff = line("turn/diff/updated", turnId="T1", diff="--- a\n")
    other = line("turn/diff/updated", turnId="T1", diff="--- b\n")
    assert len(items(feed(diff, diff, other))) == 2


def test_warnings_reroutes_and_servers_are_shown() -> None:
    drafts = feed(
        line("configWarning", summary="careful", details=None),
        line("model/rerouted", turnId="T1", fromModel="a", toModel="b", reason="load"),
        line("mcpServer/startupStatus/updated", name="s", status="failed", error="no"),
    )
    labels = [item.content[0].status.label for item in items(drafts)]
    assert labels == ["warning", "model_rerouted"]
    updates = [d.event.session_updated for d in drafts if d.kind is Kind.SESSION_UPDATED]
    assert updates[0].model == "b"
    assert updates[1].mcp_servers.servers[0].error == "no"


def test_empty_rate_limits_say_nothing_and_others_once() -> None:
    empty = line("account/rateLimits/updated", rateLimits={"limitId": "codex", "primary": None})
    full = line("account/rateLimits/updated", rateLimits={"primary": {"usedPercent": 90}})
    assert feed(empty) == []
    assert len(items(feed(full, full))) == 1


def test_odd_messages_never_raise() -> None:
    target = normalizer()
    for odd in (b"", b"null", b"[]", b"{", b'{"method":5}', b'{"method":"item/started"}', b"\xff"):
        for draft in target.feed(odd):
            assert draft.kind in (Kind.AGENT_UNPARSED, Kind.ITEM_STARTED, Kind.ITEM_COMPLETED)


def test_what_is_ignored_is_listed_with_its_reason() -> None:
    assert ignored(line("thread/readState/changed"))
    assert ignored(response(1))
    assert not ignored(line("item/completed", item={"type": "agentMessage", "id": "m"}))
    assert not ignored(turn_completed())
