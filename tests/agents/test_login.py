"""The real agents, logged out and in: what they say of it without a call of their provider."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2
from agentstreamd.adapters import registry
from agentstreamd.adapters.base import HostContext
from agentstreamd.process import ProcessHost
from tests.support.hermetic import base_environment
from tests.support.laboratory import agent_executable

IN = agent_pb2.LOGIN_STATE_LOGGED_IN
OUT = agent_pb2.LOGIN_STATE_LOGGED_OUT
UNKNOWN = agent_pb2.LOGIN_STATE_UNSPECIFIED
SECRET = "sk-this-is-the-key-0123456789"

Login = Callable[..., Awaitable[agent_pb2.AgentLogin]]


@pytest.fixture
async def login(tmp_path: Path) -> AsyncIterator[Login]:
    """Asks the agent of this pin, in an environment with these variables besides a home."""
    processes = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    await processes.start()

    async def ask(pin: str, **more: str) -> agent_pb2.AgentLogin:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        adapter = registry.load()[pin.removesuffix("-newest")]
        await adapter.start(
            HostContext(
                processes=processes,
                environment={**base_environment(tmp_path / "home"), **more},
                state_directory=state,
                executable=str(agent_executable(pin)),
            )
        )
        try:
            found = await adapter.login()
        finally:
            await adapter.close()
        assert SECRET not in found.detail
        return found

    yield ask
    await processes.close()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("pin", ["claude", "claude-newest"])
async def test_claude_says_it(login: Login, pin: str) -> None:
    out = await login(pin)
    assert out.state == OUT
    assert "claude auth login" in out.detail
    by_key = await login(pin, ANTHROPIC_API_KEY=SECRET)
    assert (by_key.state, by_key.detail) == (IN, "an API key, from ANTHROPIC_API_KEY")
    by_token = await login(pin, CLAUDE_CODE_OAUTH_TOKEN=SECRET)
    assert (by_token.state, by_token.detail) == (IN, "a token")


async def test_codex_says_it(login: Login, tmp_path: Path) -> None:
    # It looks at no variable for this.
    out = await login("codex", OPENAI_API_KEY=SECRET)
    assert out.state == OUT
    assert "codex login" in out.detail
    home = tmp_path / "codex"
    write(home / "auth.json", json.dumps({"auth_mode": "apikey", "OPENAI_API_KEY": SECRET}))
    by_key = await login("codex", CODEX_HOME=str(home))
    assert (by_key.state, by_key.detail) == (IN, "an API key")


async def test_codex_with_a_provider_of_its_own_can_not_tell(login: Login, tmp_path: Path) -> None:
    provider = 'name = "own"\nbase_url = "http://127.0.0.1:9/v1"\nenv_key = "OWN_KEY"\n'
    text = f'model_provider = "own"\n[model_providers.own]\n{provider}'
    write(tmp_path / "codex" / "config.toml", text)
    found = await login("codex", CODEX_HOME=str(tmp_path / "codex"))
    assert found.state == UNKNOWN
    assert "a login of its own" in found.detail


async def test_opencode_says_which_providers_it_has(login: Login, tmp_path: Path) -> None:
    out = await login("opencode")
    assert out.state == OUT
    assert "opencode auth login" in out.detail
    by_key = await login("opencode", OPENAI_API_KEY=SECRET)
    assert (by_key.state, by_key.detail) == (IN, "openai")
    kept = {"anthropic": {"type": "api", "key": SECRET}}
    write(tmp_path / "home/.local/share/opencode/auth.json", json.dumps(kept))
    assert (await login("opencode")).detail == "anthropic"


@pytest.mark.parametrize("pin", ["amp", "amp-newest"])
async def test_amp_has_a_key_or_has_none(login: Login, tmp_path: Path, pin: str) -> None:
    out = await login(pin)
    assert out.state == OUT
    assert "AMP_API_KEY" in out.detail
    assert (await login(pin, AMP_API_KEY=SECRET)).state == IN
    kept = tmp_path / "home/.local/share/amp/secrets.json"
    write(kept, json.dumps({"apiKey@https://amp.example/": SECRET}))
    assert (await login(pin)).detail == "`amp login`"
    write(kept, "{}")
    assert (await login(pin)).state == OUT
    write(kept, "{")
    assert (await login(pin)).state == UNKNOWN
