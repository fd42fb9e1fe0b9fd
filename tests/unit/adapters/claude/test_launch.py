"""What Claude Code is started with, and which settings of a session are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting
from agentstreamd.adapters.claude.launch import Launch, check, check_model, plan_launch
from agentstreamd.adapters.claude.state import Remembered

SESSION = "0b9f8c52-6f0e-4bb5-8a0e-6f0b6a2f6f3b"
FILES = Path("/state/uid")


def plan(
    config: session_pb2.SessionConfig | None = None,
    environment: dict[str, str] | None = None,
    **changed: Any,
) -> Launch:
    config = config or session_pb2.SessionConfig()
    check(config)
    given: dict[str, Any] = {
        "executable": "/bin/claude",
        "config": config,
        "environment": environment or {},
        "native_session_id": SESSION,
        "resume": False,
        "model": config.model,
        "permission_mode": config.permission_mode,
        "remembered": Remembered(),
        "file_prefix": FILES,
        "as_root": False,
    }
    return plan_launch(**{**given, **changed})


def content(launch: Launch, suffix: str) -> Any:
    return json.loads(launch.files[Path(f"/state/uid.{suffix}.json")])


def test_a_plain_session_speaks_json_both_ways_and_asks_on_the_same_channel() -> None:
    launch = plan()
    assert launch.argv == (
        "/bin/claude",
        "--print",
        "--verbose",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--permission-prompt-tool=stdio",
        "--include-partial-messages",
        "--replay-user-messages",
        "--permission-mode=default",
        f"--session-id={SESSION}",
    )
    assert not launch.files
    assert not launch.can_bypass


def test_a_session_that_exists_is_resumed() -> None:
    argv = plan(resume=True).argv
    assert f"--resume={SESSION}" in argv
    assert not any(argument.startswith("--session-id") for argument in argv)


def test_model_and_effort_are_named() -> None:
    argv = plan(session_pb2.SessionConfig(effort="high"), model="opus[1m]").argv
    assert {"--model=opus[1m]", "--effort=high"} <= set(argv)


@pytest.mark.parametrize(
    ("mode", "native"),
    [
        (agent_pb2.PERMISSION_MODE_UNSPECIFIED, "default"),
        (agent_pb2.PERMISSION_MODE_DEFAULT, "default"),
        (agent_pb2.PERMISSION_MODE_ACCEPT_EDITS, "acceptEdits"),
        (agent_pb2.PERMISSION_MODE_PLAN, "plan"),
        (agent_pb2.PERMISSION_MODE_BYPASS, "bypassPermissions"),
    ],
)
def test_the_permission_mode_is_always_given(
    mode: agent_pb2.PermissionMode.ValueType, native: str
) -> None:
    assert f"--permission-mode={native}" in plan(permission_mode=mode).argv


def test_only_bypass_lifts_the_checks_and_only_for_root_it_claims_a_sandbox() -> None:
    bypass = agent_pb2.PERMISSION_MODE_BYPASS
    flag = "--allow-dangerously-skip-permissions"
    for mode in (agent_pb2.PERMISSION_MODE_PLAN, agent_pb2.PERMISSION_MODE_ACCEPT_EDITS):
        careful = plan(permission_mode=mode, as_root=True)
        assert flag not in careful.argv
        assert "IS_SANDBOX" not in careful.env
    user, root = (plan(permission_mode=bypass, as_root=as_root) for as_root in (False, True))
    assert flag in user.argv
    assert user.can_bypass
    assert "IS_SANDBOX" not in user.env
    assert root.env["IS_SANDBOX"] == "1"


def test_the_session_environment_wins_over_the_daemons_and_that_over_the_defaults() -> None:
    daemon = {"HOME": "/home/user", "A": "daemon", "B": "daemon", "DISABLE_TELEMETRY": ""}
    env = plan(session_pb2.SessionConfig(env={"B": "session"}), daemon).env
    assert env["HOME"] == "/home/user"
    assert (env["A"], env["B"]) == ("daemon", "session")
    assert env["DISABLE_TELEMETRY"] == ""
    assert env["DISABLE_AUTOUPDATER"] == "1"


def test_a_daemon_inside_claude_code_does_not_pass_that_on() -> None:
    assert "CLAUDECODE" not in plan(environment={"CLAUDECODE": "1", "HOME": "/h"}).env


def test_mcp_servers_are_the_only_ones_and_their_secrets_are_not_on_the_command_line() -> None:
    http = session_pb2.McpHttp(url="https://x.test/mcp", headers={"Authorization": "Bearer s3cret"})
    stdio = session_pb2.McpStdio(command="run", args=["-v"], env={"TOKEN": "s3cret"})
    launch = plan(
        session_pb2.SessionConfig(
            mcp_servers=[
                session_pb2.McpServer(name="web", http=http),
                session_pb2.McpServer(name="local", stdio=stdio),
            ]
        )
    )
    assert "--strict-mcp-config" in launch.argv
    assert "--mcp-config=/state/uid.mcp.json" in launch.argv
    assert "s3cret" not in " ".join(launch.argv)
    assert "s3cret" not in repr(launch)
    assert content(launch, "mcp") == {
        "mcpServers": {
            "web": {
                "type": "http",
                "url": "https://x.test/mcp",
                "headers": {"Authorization": "Bearer s3cret"},
            },
            "local": {
                "type": "stdio",
                "command": "run",
                "args": ["-v"],
                "env": {"TOKEN": "s3cret"},
            },
        }
    }


def test_without_mcp_servers_the_users_own_ones_stay() -> None:
    assert "--strict-mcp-config" not in plan().argv


def test_a_system_prompt_of_any_size_stays_off_the_command_line() -> None:
    launch = plan(session_pb2.SessionConfig(system_prompt="--x " * 100_000))
    assert launch.initialize["appendSystemPrompt"] == "--x " * 100_000
    assert sum(map(len, launch.argv)) < 1000


def test_what_was_granted_for_the_session_is_put_back_beside_the_settings_given() -> None:
    remembered = Remembered(allow=("Bash(npm test)",), deny=("Edit",), directories=("/d",))
    settings = {"permissions": {"allow": ["Read"], "defaultMode": "plan"}, "theme": "dark"}
    config = session_pb2.SessionConfig(agent_options={"settings": json.dumps(settings)})
    assert content(plan(config, remembered=remembered), "settings") == {
        "theme": "dark",
        "permissions": {
            "defaultMode": "plan",
            "allow": ["Read", "Bash(npm test)"],
            "deny": ["Edit"],
            "additionalDirectories": ["/d"],
        },
    }


def test_options_become_flags() -> None:
    options = {
        "allowed_tools": "Bash(git *),Edit",
        "disallowed_tools": "WebFetch",
        "max_turns": "3",
        "max_budget_usd": "0.5",
        "setting_sources": "",
    }
    assert {
        "--allowedTools=Bash(git *),Edit",
        "--disallowedTools=WebFetch",
        "--max-turns=3",
        "--max-budget-usd=0.5",
        "--setting-sources=",
    } <= set(plan(session_pb2.SessionConfig(agent_options=options)).argv)


def test_no_value_can_become_a_flag_of_its_own() -> None:
    config = session_pb2.SessionConfig(
        system_prompt="--dangerously-skip-permissions",
        agent_options={"allowed_tools": "--dangerously-skip-permissions"},
        mcp_servers=[
            session_pb2.McpServer(
                name="x", stdio=session_pb2.McpStdio(command="--dangerously-skip-permissions")
            )
        ],
    )
    launch = plan(config, model="--dangerously-skip-permissions")
    assert "--dangerously-skip-permissions" not in launch.argv
    assert all(argument.startswith("--") for argument in launch.argv[1:])


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model": "-p"}, "model"),
        ({"model": "--dangerously-skip-permissions"}, "model"),
        ({"model": "two words"}, "model"),
        ({"model": "opus\n"}, "model"),
        ({"model": "nul\0"}, "model"),
        ({"effort": "silly"}, "effort"),
        ({"permission_mode": 77}, "permission_mode"),
        ({"resume_native_session_id": "--help"}, "resume_native_session_id"),
        ({"resume_native_session_id": "last"}, "resume_native_session_id"),
        ({"agent_options": {"nope": "1"}}, "agent_options[nope]"),
        ({"agent_options": {"max_turns": "-1"}}, "agent_options[max_turns]"),
        ({"agent_options": {"max_turns": "many"}}, "agent_options[max_turns]"),
        ({"agent_options": {"max_budget_usd": "0"}}, "agent_options[max_budget_usd]"),
        ({"agent_options": {"setting_sources": "all"}}, "agent_options[setting_sources]"),
        ({"agent_options": {"settings": "{"}}, "agent_options[settings]"),
        ({"agent_options": {"settings": "[]"}}, "agent_options[settings]"),
        ({"agent_options": {"settings": '{"permissions":1}'}}, "agent_options[settings]"),
        (
            {"agent_options": {"settings": '{"permissions":{"allow":"Edit"}}'}},
            "agent_options[settings]",
        ),
        ({"agent_options": {"allowed_tools": "a\0b"}}, "agent_options[allowed_tools]"),
    ],
)
def test_what_the_cli_would_not_take_is_refused_with_the_field(
    config: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        check(session_pb2.SessionConfig(**config))
    assert refused.value.field == field


def test_modes_are_refused() -> None:
    with pytest.raises(CapabilityNotSupported):
        check(session_pb2.SessionConfig(mode="architect"))


@pytest.mark.parametrize(
    "model", ["", "opus", "claude-opus-4-8[1m]", "us.anthropic.claude-x-v1:0", "a/b@c"]
)
def test_names_of_models_are_taken(model: str) -> None:
    check_model(model)
