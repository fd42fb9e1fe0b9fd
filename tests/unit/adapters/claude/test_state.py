"""What a session remembers beyond a process of Claude Code."""

from typing import Any

import pytest

from agentstreamd.adapters.claude.state import MAX_STATE_BYTES, Remembered, rule_text


def rule(content: str | None, *, tool: str = "Bash", **changed: object) -> dict[str, Any]:
    named = {"toolName": tool} if content is None else {"toolName": tool, "ruleContent": content}
    update = {"type": "addRules", "rules": [named], "behavior": "allow", "destination": "session"}
    return {**update, **changed}


def test_rules_and_directories_of_the_session_are_kept_once() -> None:
    directories = {"type": "addDirectories", "directories": ["/d"], "destination": "session"}
    state = Remembered().granted(
        [rule("npm test"), rule(None, tool="mcp__x__y"), rule("npm test"), directories]
    )
    assert state.allow == ("Bash(npm test)", "mcp__x__y")
    assert state.directories == ("/d",)


def test_rules_that_the_cli_keeps_itself_are_not() -> None:
    assert Remembered().granted([rule("x", destination="userSettings")]) == Remembered()


@pytest.mark.parametrize(
    "odd",
    [
        "text",
        {},
        rule("x", type="setMode"),
        rule("x", behavior="maybe"),
        {"type": "addRules", "rules": [3], "behavior": "allow", "destination": "session"},
        {"type": "addRules", "behavior": "allow", "destination": "session"},
    ],
)
def test_an_odd_update_grants_nothing(odd: Any) -> None:
    assert Remembered().granted([odd]) == Remembered()


def test_parentheses_of_a_command_are_escaped() -> None:
    assert rule_text("Bash", r"echo (a) \n") == r"Bash(echo \(a\) \\n)"


def test_a_saved_state_is_read_back() -> None:
    state = Remembered(conversation=True, model="m", allow=("A",), directories=("/d",))
    assert Remembered.load(state.dump()) == state


@pytest.mark.parametrize("saved", [b"", b"{", b'{"allow": 3}', b"\xff"])
def test_a_state_that_cannot_be_read_is_none(saved: bytes) -> None:
    assert Remembered.load(saved) == Remembered()


def test_a_state_too_large_drops_its_oldest_rules() -> None:
    rules = tuple(f"Bash({number} {'x' * 1000})" for number in range(100))
    kept = Remembered.load(Remembered(conversation=True, allow=rules).dump())
    assert len(Remembered(allow=rules).dump()) <= MAX_STATE_BYTES
    assert kept.conversation
    assert kept.allow
    assert kept.allow == rules[-len(kept.allow) :]
