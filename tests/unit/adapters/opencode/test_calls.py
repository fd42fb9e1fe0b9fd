"""What is asked of OpenCode's server, and how a server is started. Pure."""

import json
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, error_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting, Prompt
from agentstreamd.adapters.opencode import calls, client_side, launch
from agentstreamd.adapters.opencode.errors import http_error
from agentstreamd.adapters.opencode.requests import Ask
from agentstreamd.adapters.opencode.state import Remembered

ASK = Ask("per_1", "ses_1", permission="bash", always=("echo *", "cat *"))
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
BYPASS = agent_pb2.PERMISSION_MODE_BYPASS


def plan(
    config: session_pb2.SessionConfig | None = None,
    mode: agent_pb2.PermissionMode.ValueType = agent_pb2.PERMISSION_MODE_DEFAULT,
    **environment: str,
) -> launch.Plan:
    return launch.plan_server(
        executable="opencode",
        config=config or session_pb2.SessionConfig(),
        environment=environment,
        permission_mode=mode,
    )


def settings(made: launch.Plan) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(made.env["OPENCODE_CONFIG_CONTENT"])
    return read


def permission(**fields: object) -> calls.Encoded:
    return calls.answer(ASK, interaction_pb2.PermissionAnswer(**fields))  # type: ignore[arg-type]


def test_creating_and_prompting_name_the_model_each_in_its_way() -> None:
    chosen = calls.TurnSettings(model="fake/a/b", agent="plan", variant="high", system="Be kind")
    made = calls.create(title="T", settings=chosen, metadata={"k": "v"}, rules=[])
    assert made.body is not None
    assert made.body["model"] == {"providerID": "fake", "id": "a/b"}
    sent = Prompt("t", "m", (service_pb2.InputPart(text="/hi"),))
    call = calls.prompt("ses_1", "msg_1", sent, chosen)
    assert call.body is not None
    assert call.body["model"] == {"providerID": "fake", "modelID": "a/b"}
    assert call.body["parts"] == [{"type": "text", "text": "/hi"}]
    assert (call.body["variant"], call.body["system"]) == ("high", "Be kind")


def test_message_ids_grow() -> None:
    ids = [calls.new_message_id() for _ in range(100)]
    assert [i[:16] for i in ids] == sorted(i[:16] for i in ids)
    assert len({len(i) for i in ids}) == 1


def test_for_the_session_is_never_always() -> None:
    encoded = permission(decision=FOR_SESSION)
    assert encoded.call.body == {"reply": "once"}
    assert encoded.granted == [("bash", "echo *"), ("bash", "cat *")]


def test_a_rejection_has_words_unless_it_ends_the_turn() -> None:
    assert permission(decision=REJECT).call.body == {"reply": "reject", "message": calls.REJECTED}
    assert permission(decision=REJECT, interrupt=True).call.body == {"reply": "reject"}
    both = permission(decision=REJECT, interrupt=True, message="no")
    assert both.call.body == {"reply": "reject", "message": "no"}
    assert both.abort


def test_what_was_sent_is_read_back_from_a_recording() -> None:
    sent = Prompt("t", "m", (service_pb2.InputPart(text="Hi"),))
    lines = [
        calls.prompt("ses_1", "msg_1", sent, calls.TurnSettings()).line(),
        permission(decision=FOR_SESSION).call.line(),
        b'{"method": "POST", "path": "/permission/per_2/reply", "body": {}, "status": 404}',
        b"{",
    ]
    prompt, answer = client_side.client_actions(lines)
    assert prompt.prompt is not None
    assert prompt.prompt.parts[0].text == "Hi"
    assert answer.request_id == "per_1"


def test_sessions_of_the_same_environment_share_a_server() -> None:
    assert plan(PATH="/bin").key == plan(PATH="/bin").key
    other_env = session_pb2.SessionConfig(env={"A": "1"})
    keys = {plan().key, plan(other_env).key, plan(mode=BYPASS).key, plan(PATH="/x").key}
    assert len(keys) == 4
    asked = session_pb2.SessionConfig(model="a/b", mode="plan", system_prompt="x", title="y")
    assert plan(asked).key == plan().key


def test_the_rules_of_the_mode_come_after_those_of_the_user() -> None:
    own = json.dumps({"permission": {"bash": {"*": "allow", "git *": "allow"}}, "theme": "x"})
    read = settings(plan(OPENCODE_CONFIG_CONTENT=own))
    assert list(read["permission"]["bash"].items())[-1] == ("*", "ask")
    assert read["theme"] == "x"
    assert settings(plan(mode=agent_pb2.PERMISSION_MODE_PLAN))["permission"]["edit"] == {
        "*": "deny"
    }
    assert settings(plan(mode=BYPASS))["permission"]["bash"] == {"*": "allow"}


def test_mcp_servers_are_settings_and_asked_for() -> None:
    config = session_pb2.SessionConfig(
        mcp_servers=[
            session_pb2.McpServer(
                name="a", stdio=session_pb2.McpStdio(command="x", args=["y"], env={"K": "V"})
            ),
            session_pb2.McpServer(name="b", http=session_pb2.McpHttp(url="http://h")),
        ]
    )
    read = settings(plan(config))
    assert read["mcp"]["a"] == {
        "type": "local",
        "command": ["x", "y"],
        "environment": {"K": "V"},
        "enabled": True,
    }
    assert read["mcp"]["b"]["url"] == "http://h"
    assert read["permission"]["a_*"] == {"*": "ask"}


def test_plan_mode_uses_the_agent_plan_unless_another_is_named() -> None:
    mode = agent_pb2.PERMISSION_MODE_PLAN
    assert launch.agent_of(session_pb2.SessionConfig(), mode) == "plan"
    assert launch.agent_of(session_pb2.SessionConfig(mode="build"), mode) == "build"


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("model", {"model": "main"}),
        ("mode", {"mode": "a b"}),
        ("resume_native_session_id", {"resume_native_session_id": "bogus"}),
        ("agent_options[x]", {"agent_options": {"x": "1"}}),
        ("agent_options[config]", {"agent_options": {"config": "["}}),
        ("env[OPENCODE_CONFIG_CONTENT]", {"env": {"OPENCODE_CONFIG_CONTENT": "["}}),
    ],
)
def test_settings_that_are_none_are_refused(field: str, config: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting) as refused:
        launch.check(session_pb2.SessionConfig(**config))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_the_password_of_the_server_is_not_the_clients_to_choose() -> None:
    with pytest.raises(CapabilityNotSupported):
        launch.check(session_pb2.SessionConfig(env={"OPENCODE_SERVER_PASSWORD": "x"}))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": "BadRequest", "data": {"message": "no", "kind": "Body"}}, "no"),
        ({"_tag": "PermissionNotFoundError", "message": "not found"}, "not found"),
        ({"name": "ConfigInvalidError", "data": {"path": "x"}}, 'ConfigInvalidError {"path":"x"}'),
        (None, "OpenCode answered with HTTP status 500"),
    ],
)
def test_errors_of_both_shapes_are_read(body: object, message: str) -> None:
    assert http_error(500, body).message == message
    assert http_error(500, None).code == error_pb2.ERROR_CODE_AGENT_INTERNAL


def test_what_was_given_outlives_the_driver_within_its_size() -> None:
    state = Remembered(directory="/repo").granted([("bash", "echo *"), ("bash", "echo *")])
    assert Remembered.load(state.dump()) == state
    assert len(state.grants) == 1
    many = state.granted([("bash", f"{n} {'x' * 100}") for n in range(2000)])
    assert len(many.dump()) < 64 * 1024
    assert Remembered.load(b"{") == Remembered()


def test_questions_are_offered_and_nothing_updates_itself_unless_told() -> None:
    assert plan().env["OPENCODE_ENABLE_QUESTION_TOOL"] == "1"
    assert plan().env["OPENCODE_DISABLE_AUTOUPDATE"] == "1"
    assert plan(OPENCODE_DISABLE_AUTOUPDATE="0").env["OPENCODE_DISABLE_AUTOUPDATE"] == "0"


def test_the_users_rules_for_single_patterns_stay() -> None:
    def rule(permission: str, pattern: str, action: str) -> dict[str, str]:
        return {"permission": permission, "pattern": pattern, "action": action}

    deny, allow = rule("bash", "rm *", "deny"), rule("bash", "git *", "allow")
    others = [rule("*", "*", "allow"), rule("read", "*.env", "ask"), rule("bash", "*", "ask")]
    agents = [
        {"name": "plan", "permission": []},
        {"name": "build", "permission": [*others, allow, deny]},
    ]
    assert launch.users_rules(agents, "", agent_pb2.PERMISSION_MODE_DEFAULT) == [allow, deny]
    assert launch.users_rules(agents, "build", BYPASS) == [deny]
    assert launch.users_rules(agents, "plan", BYPASS) == []
    assert launch.users_rules(None, "", BYPASS) == []
