"""What servers and threads are started with."""

import json
import tomllib
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting, Prompt
from agentstreamd.adapters.codex import launch
from agentstreamd.adapters.codex.commands import command_request
from agentstreamd.adapters.codex.launch import ThreadSettings
from agentstreamd.adapters.codex.permissions import POLICIES, mode_of, sandbox_policy

DEFAULT = agent_pb2.PERMISSION_MODE_DEFAULT


def settings(**config: Any) -> ThreadSettings:
    made = session_pb2.SessionConfig(agent="codex", working_directory="/w", **config)
    launch.check(made)
    return ThreadSettings(made, made.model, made.permission_mode)


def prompt(text: str) -> Prompt:
    return Prompt("t", "m", (service_pb2.InputPart(text=text),), command=True)


def test_one_server_for_one_environment() -> None:
    one = launch.server_spec("/codex", {"PATH": "/bin"}, {}, {})
    assert one == launch.server_spec("/codex", {"PATH": "/bin"}, {}, {})
    assert one != launch.server_spec("/codex", {"PATH": "/bin"}, {"A": "1"}, {})
    assert one.argv[:2] == ("/codex", "app-server")
    assert dict(one.env)["RUST_LOG"] == "error"


def test_a_model_that_cannot_be_reached_does_not_hang_the_turn() -> None:
    spec = launch.server_spec("/codex", {}, {}, {"web_search": "disabled"})
    assert "features.unbounded_connection_retries=false" in spec.argv
    assert 'web_search="disabled"' in spec.argv


def test_secrets_are_not_on_the_command_line() -> None:
    spec = launch.server_spec("/codex", {}, {"TOKEN": "secret"}, {})
    assert not any("secret" in argument for argument in spec.argv)


@pytest.mark.parametrize(
    ("mode", "approval", "sandbox"),
    [
        (agent_pb2.PERMISSION_MODE_UNSPECIFIED, "untrusted", "workspace-write"),
        (DEFAULT, "untrusted", "workspace-write"),
        (agent_pb2.PERMISSION_MODE_ACCEPT_EDITS, "on-request", "workspace-write"),
        (agent_pb2.PERMISSION_MODE_PLAN, "on-request", "read-only"),
        (agent_pb2.PERMISSION_MODE_BYPASS, "never", "danger-full-access"),
    ],
)
def test_permission_modes(
    mode: agent_pb2.PermissionMode.ValueType, approval: str, sandbox: str
) -> None:
    params = settings(permission_mode=mode).thread_params()
    assert (params["approvalPolicy"], params["sandbox"]) == (approval, sandbox)
    policy = sandbox_policy(sandbox)
    plans = "plan" if settings(permission_mode=mode).plans else "default"
    assert mode_of(approval, policy["type"], plans) == (mode or DEFAULT)


def test_every_permission_mode_has_a_policy() -> None:
    assert set(POLICIES) == set(agent_pb2.PermissionMode.values())


def test_options_go_before_the_permission_mode() -> None:
    options = {
        "approval_policy": "never",
        "sandbox": "read-only",
        "config": '{"features.x": true}',
    }
    params = settings(agent_options=options).thread_params()
    assert (params["approvalPolicy"], params["sandbox"]) == ("never", "read-only")
    assert params["config"] == {"features.x": True}


def test_a_thread_gets_the_sessions_settings() -> None:
    stdio = session_pb2.McpStdio(command="srv", args=["-v"], env={"K": "v"})
    http = session_pb2.McpHttp(url="http://x", headers={"H": "v"})
    params = settings(
        model="m",
        effort="high",
        system_prompt="Be kind.",
        mcp_servers=[
            session_pb2.McpServer(name="a", stdio=stdio),
            session_pb2.McpServer(name="b", http=http),
        ],
    ).thread_params()
    assert params["model"] == "m"
    assert params["cwd"] == "/w"
    assert params["developerInstructions"] == "Be kind."
    assert params["config"] == {
        "model_reasoning_effort": "high",
        "mcp_servers.a": {"command": "srv", "args": ["-v"], "env": {"K": "v"}},
        "mcp_servers.b": {"url": "http://x", "http_headers": {"H": "v"}},
    }


@pytest.mark.parametrize(
    "config",
    [
        {"agent_options": {"nonsense": "1"}},
        {"agent_options": {"sandbox": "none"}},
        {"agent_options": {"approval_policy": "on-failure"}},
        {"agent_options": {"config": "[]"}},
        {"agent_options": {"config": "{"}},
        {"model": "two words"},
        {"effort": "very high"},
        {"resume_native_session_id": "no-uuid"},
    ],
)
def test_settings_that_codex_does_not_take(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        settings(**config)


def test_codex_has_no_modes() -> None:
    with pytest.raises(CapabilityNotSupported):
        settings(mode="persona")


@pytest.mark.parametrize(
    "value", [True, 5, 1.5, 'quo"ted\n', ["a", 1], {"a b": {"c": [True]}, "d": "ü"}]
)
def test_values_survive_as_toml(value: object) -> None:
    assert tomllib.loads(f"x = {launch.toml(value)}")["x"] == value


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be a setting"):
        launch.toml(None)


def test_commands() -> None:
    assert command_request(prompt("/compact")) == ("thread/compact/start", {})
    method, params = command_request(prompt("/review"))
    assert (method, params["target"]) == ("review/start", {"type": "uncommittedChanges"})
    _, params = command_request(prompt("/review the tests"))
    assert params["target"] == {"type": "custom", "instructions": "the tests"}
    with pytest.raises(CapabilityNotSupported, match="/nonsense"):
        command_request(prompt("/nonsense"))


def test_plan_mode_names_the_model_that_runs() -> None:
    made = settings(permission_mode=agent_pb2.PERMISSION_MODE_PLAN).collaboration("m", "high")
    chosen = json.loads(json.dumps(made))["settings"]
    assert (chosen["model"], chosen["reasoning_effort"]) == ("m", "high")
    assert made["mode"] == "plan"
