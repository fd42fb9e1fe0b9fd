"""Values of clients on agents' command lines: the class of fault is argument injection.

Claude Code's own tests have the same for its launch.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.amp import launch as amp
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting
from agentstreamd.adapters.claude import launch as claude
from agentstreamd.adapters.codex import launch as codex
from agentstreamd.adapters.opencode import launch as opencode
from agentstreamd.sessions.checks import check_config
from agentstreamd.sessions.roots import Roots

FLAG = "--dangerously-allow-all"
WORDS = ("model", "mode", "effort", "resume_native_session_id")
SERVER = session_pb2.McpServer(
    name="x", stdio=session_pb2.McpStdio(command=FLAG, args=[FLAG], env={"A": FLAG})
)


@pytest.mark.parametrize("field", WORDS)
def test_a_word_that_begins_like_a_flag_is_refused_for_every_agent(
    field: str, tmp_path: Path
) -> None:
    config = session_pb2.SessionConfig(agent="any", working_directory=str(tmp_path))
    setattr(config, field, FLAG)
    (found,) = check_config(config, Roots([]))
    assert found[0] == f"config.{field}"


@pytest.mark.parametrize("check", [amp.check, claude.check], ids=["amp", "claude"])
@pytest.mark.parametrize("field", WORDS)
def test_agents_that_get_words_as_arguments_refuse_such_a_one_by_themselves(
    check: Callable[[session_pb2.SessionConfig], None], field: str
) -> None:
    config = session_pb2.SessionConfig()
    setattr(config, field, FLAG)
    with pytest.raises((InvalidSetting, CapabilityNotSupported)):
        check(config)


def test_options_of_amp_can_not_become_flags() -> None:
    for name in amp.OPTIONS:
        config = session_pb2.SessionConfig(agent_options={name: FLAG})
        with pytest.raises(InvalidSetting):
            amp.check(config)


def test_what_amp_gets_besides_is_in_files() -> None:
    config = session_pb2.SessionConfig(env={"A": FLAG}, mcp_servers=[SERVER])
    amp.check(config)
    plan = amp.plan_launch(
        executable="amp",
        config=config,
        environment={},
        thread_id="",
        permission_mode=agent_pb2.PERMISSION_MODE_DEFAULT,
        user_settings={},
        file_prefix=Path("/state/uid"),
        socket_path=Path("/state/socket"),
        secret="s",
    )
    assert FLAG not in plan.argv
    assert {mode & 0o077 for mode, _ in plan.files.values()} == {0}


def test_the_servers_of_codex_and_opencode_get_nothing_of_a_session_but_its_environment() -> None:
    config = session_pb2.SessionConfig(
        model=FLAG, mode=FLAG, effort=FLAG, system_prompt=FLAG, mcp_servers=[SERVER]
    )
    default = agent_pb2.PERMISSION_MODE_DEFAULT
    plan = opencode.plan_server(
        executable="opencode", config=config, environment={}, permission_mode=default
    )
    assert not [word for word in plan.argv if FLAG in word]
    spec = codex.server_spec("codex", {}, {"A": FLAG}, {})
    assert not [word for word in spec.argv if FLAG in word]
