"""Where turns begin and end, what they cost, and how they fail."""

import json

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, item_pb2, service_pb2
from agentstreamd.adapters.base import Prompt
from agentstreamd.adapters.claude.answers import encode_control, encode_prompt
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Draft, Kind
from tests.unit.adapters.claude.claude_lines import (
    Json,
    assistant,
    completed,
    events,
    fed,
    feed,
    init,
    interrupted,
    line,
    result,
    statuses,
    synthetic,
    system,
    text_block,
    the_item,
    the_turn_end,
    user,
)

MINE = "11111111-1111-4111-8111-111111111111"
STEERED = "22222222-2222-4222-8222-222222222222"
BACKGROUND = {"origin": {"kind": "task-notification"}}


def prompt(text: str, uuid: str = MINE) -> bytes:
    return user(text, uuid=uuid)


def echo(text: str, uuid: str = MINE) -> bytes:
    return user(text, uuid=uuid, isReplay=True)


def triggers(drafts: list[Draft]) -> list[event_pb2.TurnTrigger.ValueType]:
    return [event.turn_started.trigger for event in events(drafts, Kind.TURN_STARTED)]


def ends(drafts: list[Draft]) -> list[event_pb2.TurnEnded]:
    return [event.turn_ended for event in events(drafts, Kind.TURN_ENDED)]


def test_init_says_what_the_session_is() -> None:
    drafts = feed(init(permissionMode="acceptEdits"))

    (event,) = events(drafts, Kind.SESSION_UPDATED)
    updated = event.session_updated
    assert updated.model == "claude-opus-4-8"
    assert updated.permission_mode == agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
    assert updated.native_session_id == "94a35612-0000-4000-8000-000000000000"
    assert updated.agent_version == "2.1.197"
    assert list(updated.tools.names) == ["Bash", "Edit"]
    assert updated.mcp_servers.servers[0].status == "connected"


def test_a_permission_mode_without_equal_is_only_in_the_metadata() -> None:
    (event,) = events(feed(init(permissionMode="dontAsk")), Kind.SESSION_UPDATED)

    assert event.session_updated.permission_mode == agent_pb2.PERMISSION_MODE_UNSPECIFIED
    assert json.loads(event.metadata_json) == {"permissionMode": "dontAsk"}


def test_a_change_to_or_from_a_permission_mode_without_equal_is_a_status() -> None:
    normalizer = ClaudeNormalizer()
    same = fed(normalizer, init(), system("status", status=None, permissionMode="default"))
    other = fed(normalizer, system("status", status=None, permissionMode="dontAsk"))
    still = fed(normalizer, init(permissionMode="dontAsk"))
    back = fed(normalizer, init(permissionMode="default"))
    equal = fed(normalizer, system("status", status=None, permissionMode="plan"))

    assert statuses(same) == statuses(still) == statuses(equal) == []
    for drafts, mode in ((other, "dontAsk"), (back, "default")):
        (status,) = statuses(drafts)
        assert (status.label, status.key) == ("permission_mode", "permission_mode")
        assert mode in status.detail


def test_a_changed_permission_mode_is_said() -> None:
    drafts = feed(system("status", status=None, permissionMode="plan"))

    (event,) = events(drafts, Kind.SESSION_UPDATED)
    assert event.session_updated.permission_mode == agent_pb2.PERMISSION_MODE_PLAN


def test_trap_2_init_comes_with_every_turn() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("one"))
    first = fed(normalizer, init(), echo("one"), assistant("m1", text_block("A")), result())
    normalizer.sent(prompt("two", STEERED))
    second = fed(normalizer, init(), echo("two", STEERED), result())

    assert triggers(first) == triggers(second) == [event_pb2.TURN_TRIGGER_CLIENT]
    assert len(ends(first)) == len(ends(second)) == 1


def test_trap_2_a_result_without_init_still_ends_a_turn() -> None:
    failed = result(
        subtype="error_during_execution",
        is_error=True,
        terminal_reason=None,
        num_turns=0,
        errors=["No conversation found with session ID: 0"],
    )

    drafts = feed(failed)

    assert len(triggers(drafts)) == 1
    end = the_turn_end(drafts)
    assert end.status == event_pb2.TURN_STATUS_FAILED
    assert end.error.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND


def test_a_turn_after_a_background_task_is_the_agents() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, init(), result())

    drafts = fed(
        normalizer,
        system("task_notification", task_id="b", tool_use_id="t1", status="completed"),
        init(),
        result(**BACKGROUND),
    )

    assert triggers(drafts) == [event_pb2.TURN_TRIGGER_AGENT]
    assert the_turn_end(drafts).status == event_pb2.TURN_STATUS_COMPLETED


def test_the_result_of_a_background_turn_does_not_end_ours_that_waits() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, init(), result(total_cost_usd=0.001, modelUsage=used(100, 20)))
    normalizer.sent(prompt("mine"))

    background = fed(
        normalizer,
        init(),
        assistant("m1", text_block("The task is done.")),
        result(total_cost_usd=0.003, modelUsage=used(300, 40), **BACKGROUND),
    )
    ours = fed(
        normalizer,
        init(),
        echo("mine"),
        assistant("m2", text_block("Mine.")),
        result(total_cost_usd=0.004, modelUsage=used(350, 45)),
    )

    assert ends(background) == []
    assert the_item(background, "message:m1").status == item_pb2.ITEM_STATUS_COMPLETED
    end = the_turn_end(ours)
    assert end.usage.cost_micro_usd == 3000
    assert (end.usage.input_tokens, end.usage.output_tokens) == (250, 25)
    assert len(ours[-1].raw) == 2


def test_a_background_turn_that_took_our_prompt_ends_ours() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))

    drafts = fed(normalizer, init(), echo("mine"), result(**BACKGROUND))

    assert len(ends(drafts)) == 1


@pytest.mark.parametrize(
    "taken",
    [
        line(type="command_lifecycle", command_uuid=MINE, state="started"),
        echo("a notification\nmine", STEERED),
    ],
)
def test_a_prompt_can_be_taken_up_in_other_words(taken: bytes) -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("a notification", STEERED))
    normalizer.sent(prompt("mine"))

    assert len(ends(fed(normalizer, init(), taken, result(**BACKGROUND)))) == 1


def test_a_newer_cli_says_in_the_result_which_prompts_it_answered() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))

    drafts = fed(normalizer, init(), result(user_message_uuids=[MINE], **BACKGROUND))

    assert len(ends(drafts)) == 1


def test_an_interrupted_background_turn_ends_ours_too() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))
    stopped = json.loads(interrupted()) | BACKGROUND

    drafts = fed(normalizer, init(), line(**stopped))

    assert the_turn_end(drafts).status == event_pb2.TURN_STATUS_INTERRUPTED


def test_a_prompt_that_was_withdrawn_is_not_waited_for() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))
    normalizer.sent(encode_control("r", "cancel_async_message", {"message_uuid": MINE}))

    assert len(ends(fed(normalizer, init(), result(**BACKGROUND)))) == 1


def test_trap_2_a_steered_message_left_over_starts_a_turn_of_its_own() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("first"))
    fed(normalizer, init(), echo("first"))
    normalizer.sent(prompt("steered", STEERED))
    fed(normalizer, result())

    drafts = fed(normalizer, echo("steered", STEERED), init(), result())

    assert len(triggers(drafts)) == 1
    assert len(ends(drafts)) == 1


def test_echoes_of_our_prompts_are_dropped_by_id_or_by_text() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))
    normalizer.sent(user("without id"))

    assert fed(normalizer, echo("mine")) == []
    assert fed(normalizer, echo("without id", STEERED)) == []


def test_an_echo_that_is_not_ours_is_a_message_of_the_user() -> None:
    drafts = feed(echo("typed elsewhere"), init(), result())

    item = the_item(drafts, f"user:{MINE}")
    assert (item.kind, item.role) == (item_pb2.ITEM_KIND_MESSAGE, item_pb2.ITEM_ROLE_USER)
    assert item.content[0].text.text == "typed elsewhere"
    assert drafts[0].kind is Kind.TURN_STARTED


def used(tokens_in: int, tokens_out: int) -> Json:
    figures = {
        "inputTokens": tokens_in - 10,
        "outputTokens": tokens_out,
        "cacheReadInputTokens": 10,
        "cacheCreationInputTokens": 0,
    }
    return {"claude-opus-4-8": figures}


def test_trap_14_cost_and_tokens_are_differences_of_cumulative_figures() -> None:
    normalizer = ClaudeNormalizer()
    own = {"usage": {"input_tokens": 1, "output_tokens": 1}}
    fed(normalizer, init(), result(total_cost_usd=0.001, modelUsage=used(100, 20), **own))

    drafts = fed(normalizer, init(), result(total_cost_usd=0.0035, modelUsage=used(500, 90), **own))

    usage = the_turn_end(drafts).usage
    assert usage.cost_micro_usd == 2500
    assert (usage.input_tokens, usage.output_tokens) == (400, 70)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (0, 0)


def test_usage_is_the_turns_own_where_there_is_no_cumulative_one() -> None:
    own = {
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 3,
    }

    usage = the_turn_end(feed(init(), result(usage=own))).usage

    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (110, 7, 3)
    assert not usage.HasField("cost_micro_usd")


def test_cost_that_begins_anew_is_not_negative() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, init(), result(total_cost_usd=0.5))

    assert the_turn_end(fed(normalizer, result(total_cost_usd=0.1))).usage.cost_micro_usd == 100_000


@pytest.mark.parametrize(
    ("more", "status", "stop_reason"),
    [
        ({}, event_pb2.TURN_STATUS_COMPLETED, "end_turn"),
        ({"stop_reason": None, "terminal_reason": None}, event_pb2.TURN_STATUS_COMPLETED, ""),
        (
            {"stop_reason": None, "terminal_reason": "aborted_streaming"},
            event_pb2.TURN_STATUS_INTERRUPTED,
            "aborted_streaming",
        ),
        (
            {"subtype": "error_during_execution", "is_error": True}
            | {"stop_reason": "tool_use", "terminal_reason": "aborted_tools"},
            event_pb2.TURN_STATUS_INTERRUPTED,
            "tool_use",
        ),
        ({"is_error": True}, event_pb2.TURN_STATUS_FAILED, "end_turn"),
        (
            {"subtype": "error_max_turns", "is_error": True, "terminal_reason": "max_turns"},
            event_pb2.TURN_STATUS_FAILED,
            "end_turn",
        ),
    ],
)
def test_how_a_turn_ended(
    more: Json, status: event_pb2.TurnStatus.ValueType, stop_reason: str
) -> None:
    end = the_turn_end(feed(init(), result(**more)))

    assert (end.status, end.stop_reason) == (status, stop_reason)


def test_the_result_does_not_repeat_the_answer() -> None:
    drafts = feed(init(), assistant("m1", text_block("Hi.")), result(result="Hi."))

    assert [item.item_id for item in completed(drafts)] == ["message:m1"]


def test_an_answer_that_only_the_result_has_becomes_a_message() -> None:
    drafts = feed(init(), result(result="Only here.", uuid="u1"))

    item = the_item(drafts, "result_text:u1")
    assert item.role == item_pb2.ITEM_ROLE_ASSISTANT
    assert item.content[0].text.text == "Only here."


def test_trap_15_the_output_of_a_command_is_the_agents_not_the_models() -> None:
    drafts = feed(
        init(), synthetic("Total cost: $0.01", uuid="u1"), result(result="Total cost: $0.01")
    )

    (item,) = completed(drafts)
    assert (item.item_id, item.kind) == ("system:u1", item_pb2.ITEM_KIND_SYSTEM)


def test_metadata_of_a_turn_keeps_its_numbers() -> None:
    (event,) = events(
        feed(result(num_turns=3, duration_ms=474, structured_output={"a": 1.50})), Kind.TURN_ENDED
    )

    said = json.loads(event.metadata_json)
    assert said["num_turns"] == 3
    assert said["structured_output"] == {"a": 1.5}


def test_trap_11_an_interrupt_of_an_idle_agent_ends_nothing() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, init(), result())
    answer = {"subtype": "success", "request_id": "r1"}

    assert fed(normalizer, line(type="control_response", response=answer)) == []
    (control,) = normalizer.take_controls()
    assert (control.kind, control.request_id, control.ok) == ("response", "r1", True)


def test_an_interrupt_shows() -> None:
    drafts = feed(
        init(),
        user([text_block("[Request interrupted by user for tool use]")]),
        interrupted("aborted_tools"),
    )

    assert statuses(drafts)[0].label == "interrupted"
    assert events(drafts, Kind.ERROR) == []


def test_prompts_are_matched_as_they_are_encoded() -> None:
    normalizer = ClaudeNormalizer()
    parts = (service_pb2.InputPart(text="/tmp"), service_pb2.InputPart(text="look"))
    normalizer.sent(encode_prompt(Prompt("t", MINE, parts)))

    assert fed(normalizer, user([text_block(" /tmp"), text_block("look")], isReplay=True)) == []


def test_an_echo_that_comes_after_other_word_of_its_prompt_is_still_dropped() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("mine"))

    drafts = fed(
        normalizer,
        line(type="command_lifecycle", command_uuid=MINE, state="started"),
        init(),
        echo("mine"),
        result(),
        line(type="command_lifecycle", command_uuid=MINE, state="completed"),
    )

    assert triggers(drafts) == [event_pb2.TURN_TRIGGER_CLIENT]
    assert completed(drafts) == []
    assert len(ends(drafts)) == 1


def test_prompts_with_the_same_text_are_told_apart_by_their_ids() -> None:
    normalizer = ClaudeNormalizer()
    normalizer.sent(prompt("go on"))
    normalizer.sent(prompt("go on", STEERED))

    fed(normalizer, init(), echo("go on", STEERED))

    assert fed(normalizer, echo("go on")) == []
    assert len(completed(fed(normalizer, echo("go on")))) == 1


def test_a_turn_begins_also_where_the_end_of_the_last_one_was_lost() -> None:
    drafts = feed(init(), b'{"type":"result","lost":', init(), result())

    assert len(triggers(drafts)) == 2
    assert len(ends(drafts)) == 1
