"""What Amp's lines become: the simple dialect, odd input, permissions without ids."""

import json
from typing import Any

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, item_pb2
from agentstreamd.adapters.amp.asks import Ask, encode_ask
from agentstreamd.adapters.amp.client_side import INTERRUPT
from agentstreamd.adapters.amp.normalizer import AmpNormalizer
from agentstreamd.model import Draft, Kind


def feed(normalizer: AmpNormalizer, *lines: Any) -> list[Draft]:
    return [draft for line in lines for draft in normalizer.feed(json.dumps(line).encode())]


def assistant(*blocks: Any, stop: Any = "tool_use", **more: Any) -> Any:
    message = {"role": "assistant", "content": list(blocks), "stop_reason": stop}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None, **more}


def bash(id: str, cmd: str) -> Any:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"cmd": cmd}}


def prompt(text: str) -> Any:
    return {
        "type": "user",
        "message": {"role": "user", "content": [{"type": "text", "text": text}]},
    }


def completed(drafts: list[Draft]) -> list[item_pb2.Item]:
    return [d.event.item_completed.item for d in drafts if d.kind is Kind.ITEM_COMPLETED]


def test_the_simple_dialect_has_messages_calls_results_and_an_end() -> None:
    drafts = feed(
        AmpNormalizer(),
        {"type": "message", "id": "m1", "content": "Hi."},
        {"type": "tool_call", "id": "x", "tool_call": {"id": "c1", "name": "T", "arguments": "{}"}},
        {"type": "tool_result", "id": "c1", "content": "out"},
        {"type": "message", "content": [{"type": "text", "text": "Bye."}]},
        {"type": "done"},
    )
    message, call, result, last = completed(drafts)
    assert (message.item_id, message.native_item_id) == ("m1", "m1")
    assert (call.item_id, call.content[0].tool_call.arguments_json) == ("c1", "{}")
    assert result.content[0].tool_result.output == "out"
    assert (last.native_item_id, last.content[0].text.text) == ("", "Bye.")
    ended, over = drafts[-2:]
    assert ended.event.turn_ended.status == event_pb2.TURN_STATUS_COMPLETED
    assert over.event.session_ended.ended_by == event_pb2.SESSION_ENDER_AGENT
    assert over.event.source == event_pb2.EVENT_SOURCE_AGENT


def test_an_error_of_the_simple_dialect_fails_the_turn_that_done_ends() -> None:
    normalizer = AmpNormalizer()
    normalizer.sent(json.dumps(prompt("Hi")).encode())
    error, ended, _ = feed(
        normalizer, {"type": "error", "error": "Out of Credits"}, {"type": "done"}
    )
    assert error.event.error.code == error_pb2.ERROR_CODE_QUOTA_EXCEEDED
    assert ended.event.turn_ended.status == event_pb2.TURN_STATUS_FAILED


def test_the_echo_of_a_sent_prompt_says_nothing_and_another_begins_a_turn() -> None:
    normalizer = AmpNormalizer()
    normalizer.sent(json.dumps(prompt("Hi")).encode())
    assert feed(normalizer, prompt("Hi")) == []
    kinds = [draft.kind for draft in feed(normalizer, prompt("Ho"))]
    assert kinds[:2] == [Kind.TURN_ENDED, Kind.TURN_STARTED]


def test_an_interrupting_message_and_its_echo_say_nothing_and_the_turn_ends_interrupted() -> None:
    normalizer = AmpNormalizer()
    normalizer.sent(json.dumps(prompt("Hi")).encode())
    feed(normalizer, prompt("Hi"))
    assert normalizer.sent(INTERRUPT) == []
    assert normalizer.feed(INTERRUPT) == []
    [ended] = feed(
        normalizer,
        {"type": "result", "is_error": True, "error": "User cancelled (SIGINT/SIGTERM)"},
    )
    assert ended.event.turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED


def test_a_permission_without_the_calls_id_goes_to_the_oldest_call_like_it() -> None:
    normalizer = AmpNormalizer()
    feed(normalizer, assistant(bash("c1", "other"), bash("c2", "same"), bash("c3", "same")))
    found = []
    for number in range(3):
        ask = Ask("Bash", '{"cmd": "same"}')
        [draft] = normalizer.feed(encode_ask(f"p{number}", ask))
        found.append(draft.event.permission_requested.call_id)
    assert found == ["c2", "c3", ""]


def test_a_sub_agents_permission_stands_under_its_call_unless_two_are_at_work() -> None:
    normalizer = AmpNormalizer()
    task = {"type": "tool_use", "name": "Task", "input": {}}
    feed(normalizer, assistant({**task, "id": "t1"}))
    [draft] = normalizer.feed(encode_ask("p1", Ask("Bash", '{"cmd":"x"}', "inner")))
    assert draft.event.permission_requested.parent_id == "t1"
    feed(normalizer, assistant({**task, "id": "t2"}))
    [draft] = normalizer.feed(encode_ask("p2", Ask("Bash", '{"cmd":"x"}', "inner2")))
    assert draft.event.permission_requested.parent_id == ""


def test_what_a_sub_agent_says_stands_under_its_call_and_ends_no_turn() -> None:
    normalizer = AmpNormalizer()
    task = {"type": "tool_use", "name": "Task", "id": "t1", "input": {}}
    feed(normalizer, assistant(task))
    said = assistant({"type": "text", "text": "in"}, stop="end_turn", parent_tool_use_id="t1")
    drafts = feed(normalizer, said)
    [item] = completed(drafts)
    assert item.parent_id == "t1"
    assert not [draft for draft in drafts if draft.kind is Kind.TURN_ENDED]


def test_an_approval_nobody_could_give_is_a_request_that_amp_rejected() -> None:
    normalizer = AmpNormalizer()
    message = (
        "The following tools require user approval, which is not supported in stream JSON mode: "
        "Bash"
    )
    drafts = feed(
        normalizer,
        assistant(bash("c1", "rm")),
        {"type": "result", "subtype": "error_during_execution", "is_error": True, "error": message},
    )
    [resolved] = [d.event.permission_resolved for d in drafts if d.kind is Kind.PERMISSION_RESOLVED]
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
    assert drafts[-1].event.turn_ended.status == event_pb2.TURN_STATUS_FAILED


def test_lines_that_are_no_messages_are_unparsed_and_unknown_types_items() -> None:
    normalizer = AmpNormalizer()
    for line in (b"hello", b"[1]", b'{"no": "type"}', b"\xff{"):
        [draft] = normalizer.feed(line)
        assert draft.kind is Kind.AGENT_UNPARSED
    [item] = completed(feed(normalizer, {"type": "news", "x": 1}))
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
    [no_key] = normalizer.feed(b"No API key found. Starting login flow...")
    assert no_key.event.error.code == error_pb2.ERROR_CODE_AUTHENTICATION


def test_limits_of_turns_are_classified() -> None:
    normalizer = AmpNormalizer()
    normalizer.sent(json.dumps(prompt("Hi")).encode())
    drafts = feed(normalizer, {"type": "result", "subtype": "error_max_turns", "is_error": True})
    assert drafts[-1].event.turn_ended.error.code == error_pb2.ERROR_CODE_TURN_LIMIT
