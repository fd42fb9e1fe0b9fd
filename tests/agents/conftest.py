"""The laboratory: real agent CLIs, a scripted model, a home and a workspace for every test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support import e2e
from tests.support.anthropic_server import AnthropicServer
from tests.support.claude_driving import new_session, processes  # noqa: F401 - fixtures
from tests.support.hermetic import base_environment, claude_environment, make_workspace
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def claude_labs(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Callable[[Path], Awaitable[e2e.Lab]]]:
    """Gives the lab whose daemon has this executable as `claude`; one for all tests of a module."""
    async with AsyncExitStack() as stack:
        labs: dict[Path, e2e.Lab] = {}

        async def lab_of(executable: Path) -> e2e.Lab:
            if executable not in labs:
                directory = tmp_path_factory.mktemp("lab")
                flag = f"--agent-executables=claude={executable}"
                environment = base_environment(directory / "home")
                labs[executable] = await stack.enter_async_context(
                    e2e.lab(directory, environment, flag)
                )
            return labs[executable]

        yield lab_of


@pytest_asyncio.fixture(loop_scope="module")
async def model() -> AsyncIterator[AnthropicServer]:
    """As `model_server`, for tests that share the loop of their module."""
    async with AnthropicServer() as server:
        yield server
        server.check()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(
    claude_labs: Callable[[Path], Awaitable[e2e.Lab]],
    claude_cli: Path,
    model: AnthropicServer,
    workspace: Path,
) -> AsyncIterator[e2e.Bench]:
    """A test's place in the lab of `claude_cli`: `session = await bench.session()`.

    The module's tests must share a loop: `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
    """
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "test-key"}
    made = e2e.Bench(await claude_labs(claude_cli), "claude", workspace, env)
    yield made
    await made.finish()
