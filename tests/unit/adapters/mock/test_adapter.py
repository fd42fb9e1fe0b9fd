import pytest

from agentstream.v1 import agent_pb2, interaction_pb2, session_pb2
from agentstreamd.adapters import registry
from agentstreamd.adapters.base import InvalidSetting
from agentstreamd.adapters.mock.adapter import MockAdapter


async def test_the_mock_can_do_everything() -> None:
    agent = await MockAdapter().describe()
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    for field in agent.capabilities.DESCRIPTOR.fields:
        assert getattr(agent.capabilities, field.name), field.name
    described = {info.mode for info in agent.permission_modes}
    assert described == set(agent_pb2.PermissionMode.values()) - {0}


def test_the_registry_has_it() -> None:
    assert isinstance(registry.load(["mock"])["mock"], MockAdapter)


@pytest.mark.parametrize(
    ("options", "mode", "field"),
    [
        ({"nonsense": "1"}, "", "agent_options[nonsense]"),
        ({"process": "yes"}, "", "agent_options[process]"),
        ({"lose_answers": "-1"}, "", "agent_options[lose_answers]"),
        ({}, "dance", "mode"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, str], mode: str, field: str) -> None:
    config = session_pb2.SessionConfig(agent="mock", mode=mode, agent_options=options)
    with pytest.raises(InvalidSetting) as error:
        MockAdapter().check(config)
    assert error.value.field == field


def test_right_settings_are_taken() -> None:
    options = {"process": "true", "shared_host": "false", "lose_answers": "2", "start_error": "x"}
    MockAdapter().check(session_pb2.SessionConfig(agent="mock", agent_options=options))


def test_what_a_client_did_is_read_from_what_was_written_to_the_agent() -> None:
    lines = [
        b'{"type":"start","session":"s"}',
        b'{"type":"prompt","id":"m","parts":[{"text":"say hi"}],"command":true}',
        b"garbage",
        b'{"type":"answer","request_id":"r",'
        b'"answer":{"permission":{"decision":"PERMISSION_DECISION_ACCEPT"}}}',
        b'{"type":"answer","request_id":"x","answer":{}}',
        b'{"type":"answer","request_id":"x","answer":{"dance":{}}}',
    ]
    prompted, answered = MockAdapter().client_actions(lines)
    assert prompted.native == lines[1]
    assert prompted.prompt is not None
    assert [part.text for part in prompted.prompt.parts] == ["say hi"]
    assert prompted.prompt.command
    assert answered.request_id == "r"
    assert answered.answer == interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
    )
