"""The laboratory: real agent CLIs, a scripted model, a home and a workspace for every test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.anthropic_server import AnthropicServer
from tests.support.hermetic import claude_environment, make_workspace
from tests.support.laboratory import agent_executable
from tests.support.raw_claude import RawClaude


@pytest.fixture(scope="session")
def claude_cli(request: pytest.FixtureRequest) -> Path:
    """Claude Code at the pinned version.

    To run a test on every version: `@pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS,
    indirect=True)`, or on the newest alone `["claude-newest"]`.
    """
    return agent_executable(getattr(request, "param", "claude"))


@pytest.fixture
async def model_server() -> AsyncIterator[AnthropicServer]:
    """A scripted model. At the end the script must be used up and nothing else have been asked."""
    async with AnthropicServer() as server:
        yield server
        server.check()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory to work in."""
    return make_workspace(tmp_path / "workspace")


@pytest.fixture
def agent_env(tmp_path: Path, model_server: AnthropicServer) -> dict[str, str]:
    """The environment of Claude Code: a home of its own, and the scripted model."""
    return claude_environment(tmp_path / "home", model_server.url)


@pytest.fixture
def claude(
    claude_cli: Path, agent_env: dict[str, str], workspace: Path
) -> Callable[..., RawClaude]:
    """Makes a raw CLI process: `async with claude("--model", "opus") as cli`."""
    return lambda *arguments, **env: RawClaude(
        claude_cli, {**agent_env, **env}, workspace, *arguments
    )
