"""Replaying a transcript of Claude Code with its client's side: prompts and answers find their
places.
"""

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2
from agentstreamd.adapters.claude.adapter import ClaudeAdapter
from agentstreamd.laws import check
from agentstreamd.replay import replay
from tests.unit.adapters.claude.claude_lines import (
    answer,
    assistant,
    can_use_tool,
    init,
    result,
    text_block,
    tool_result,
    tool_use,
    user,
)

FIRST, SECOND, THIRD = (f"{n * 8}-{n * 4}-4{n * 3}-8{n * 3}-{n * 12}" for n in "123")


def replayed(native: list[bytes], client: list[bytes]) -> list[event_pb2.Event]:
    events = list(replay(ClaudeAdapter(), native, client_lines=client))
    assert check(events, complete=True) == []
    return events


def user_messages(events: list[event_pb2.Event]) -> list[tuple[str, str, bool]]:
    """Turn, text, and whether the daemon says it, of each message of the user's."""
    return [
        (
            event.turn_id,
            event.item_completed.item.content[0].text.text,
            event.source == event_pb2.EVENT_SOURCE_DAEMON,
        )
        for event in events
        if event.item_completed.item.role == item_pb2.ITEM_ROLE_USER
    ]


def test_prompts_that_the_agent_merged_stand_once_in_their_turn() -> None:
    native = [
        init(),
        user("one", uuid=FIRST, isReplay=True),
        result(),
        user("two", uuid=SECOND, isReplay=True),
        init(),
        user("two\nthree", uuid=THIRD, isReplay=True),
        assistant("m1", text_block("Both.")),
        result(),
    ]
    client = [
        user(text, uuid=uuid) for text, uuid in (("one", FIRST), ("two", SECOND), ("three", THIRD))
    ]

    assert user_messages(replayed(native, client)) == [
        ("turn-1", "one", True),
        ("turn-2", "two", True),
        ("turn-2", "three", True),
    ]


def test_a_prompt_that_was_put_into_a_running_turn_starts_no_other() -> None:
    native = [
        init(),
        user("one", uuid=FIRST, isReplay=True),
        user("two", uuid=SECOND, isReplay=True),
        result(),
        init(),
        result(),
    ]
    client = [user("one", uuid=FIRST), user("two", uuid=SECOND), user("three", uuid=THIRD)]

    assert user_messages(replayed(native, client)) == [
        ("turn-1", "one", True),
        ("turn-1", "two", True),
        ("turn-2", "three", True),
    ]


def test_a_turn_begins_with_the_prompt_that_the_agent_repeats() -> None:
    native = [user("two", uuid=SECOND, isReplay=True), init(), result(), init(), result()]
    client = [user("one", uuid=FIRST), user("two", uuid=SECOND)]

    assert user_messages(replayed(native, client)) == [
        ("turn-1", "two", True),
        ("turn-2", "one", True),
    ]


def test_a_message_of_the_user_that_no_client_sent_is_shown() -> None:
    native = [init(), user("typed elsewhere", uuid=SECOND, isReplay=True), result()]

    assert user_messages(replayed(native, [user("one", uuid=FIRST)])) == [
        ("turn-1", "one", True),
        ("turn-1", "typed elsewhere", False),
    ]


def test_changed_arguments_are_said_and_repeated_ones_are_not() -> None:
    native = [init()]
    client = [user("go")]
    for number, accepted in enumerate(("ls", "ls -l")):
        request_id, call_id = f"r{number}", f"t{number}"
        native += [
            assistant(f"m{number}", tool_use(call_id, command="ls")),
            can_use_tool(request_id, "Bash", {"command": "ls"}, tool_use_id=call_id),
            tool_result(call_id),
        ]
        allowed = {"behavior": "allow", "updatedInput": {"command": accepted}}
        client.append(answer(request_id, allowed))
    native.append(result())

    same, changed = (
        event.permission_resolved.answer
        for event in replayed(native, client)
        if event.HasField("permission_resolved")
    )
    assert same == interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
    )
    assert changed.updated_arguments_json == '{"command":"ls -l"}'


def test_an_acceptance_wider_than_was_offered_is_an_acceptance() -> None:
    rule = {"type": "addRules", "rules": [], "behavior": "allow", "destination": "session"}
    allowed = {"behavior": "allow", "updatedInput": {}, "updatedPermissions": [rule]}
    native = [init(), can_use_tool("r1", "Read", {}, tool_use_id="t1"), tool_result("t1"), result()]

    (resolved,) = (
        event.permission_resolved
        for event in replayed(native, [user("go"), answer("r1", allowed)])
        if event.HasField("permission_resolved")
    )
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED
