"""The laboratory: real agent CLIs, a scripted model, a private home and workspace for every test.

These tests restart themselves in a network namespace that has nothing but loopback, where possible.
"""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support import netns
from tests.support.anthropic_server import AnthropicServer
from tests.support.hermetic import claude_environment, make_workspace
from tests.support.raw_claude import RawClaude
from tools.agents.install import InstallError, install

CLAUDE_VERSIONS = ("claude", "claude-newest")
"""The pins of Claude Code that the tests run: the main one, and the newest."""

_network = pytest.StashKey[str | None]()


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Restart inside a namespace. Called only when tests/agents is named on the command line."""
    if config.option.collectonly or config.option.help or config.option.version:
        return
    if not netns.inside() and shutil.which("npm"):
        for name in CLAUDE_VERSIONS:  # there is no registry inside
            install(name)
    config.stash[_network] = netns.restart_pytest_inside(config)


def pytest_report_header(config: pytest.Config) -> str:
    """Say whether agents can reach the network."""
    if netns.inside():
        return "agents: loopback only (network namespace)"
    return f"agents: the network is open ({config.stash.get(_network, None) or 'not isolated'})"


def agent_executable(name: str) -> Path:
    """The program of the pinned agent `name`, installed now if missing.

    Skips the test where npm is missing, except in CI: there the test fails.
    """
    try:
        return install(name).executable
    except InstallError as error:
        if os.environ.get("CI") or shutil.which("npm"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


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
