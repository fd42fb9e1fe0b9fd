"""The laboratory of Codex: the real program, a scripted model, sessions without a daemon."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import (
    session_pb2,
)
from agentstreamd.adapters.base import HostContext
from agentstreamd.adapters.codex.adapter import CodexAdapter
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.codex_driver import NewSession
from tests.support.codex_home import codex_environment
from tests.support.fake_session import FakeSession
from tests.support.laboratory import agent_executable
from tests.support.responses_server import (
    ResponsesServer,
)


@pytest.fixture(scope="session")
def codex_cli() -> Path:
    """The native program of the pinned Codex."""
    return agent_executable("codex")


@pytest.fixture
async def model() -> AsyncIterator[ResponsesServer]:
    """A scripted model. At the end the script must be used up and nothing else have been asked."""
    async with ResponsesServer() as server:
        yield server
        server.check()


@pytest.fixture
def codex_env(tmp_path: Path, model: ResponsesServer) -> dict[str, str]:
    """The environment of Codex: a home of its own, and the scripted model."""
    return codex_environment(tmp_path / "home", model.url)


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    """A process host, whose processes must all be gone at the end."""
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    yield host
    await host.close()
    assert not find_marked(host.instance_id)


@pytest.fixture
async def adapter(
    codex_cli: Path, codex_env: dict[str, str], tmp_path: Path, processes: ProcessHost
) -> AsyncIterator[CodexAdapter]:
    """The adapter, as a daemon has it."""
    state_directory = tmp_path / "state"
    state_directory.mkdir(mode=0o700)
    made = CodexAdapter(Limits(linger_seconds=0))
    await made.start(
        HostContext(
            processes=processes,
            environment=codex_env,
            state_directory=state_directory,
            executable=str(codex_cli),
        )
    )
    yield made
    await made.close()


@pytest.fixture
async def new_session(
    adapter: CodexAdapter, codex_env: dict[str, str], workspace: Path, processes: ProcessHost
) -> AsyncIterator[NewSession]:
    """Makes a session: `new_session(model="gpt-5.5")`. At the end its drivers are closed."""
    made: list[FakeSession] = []

    def make(**config: Any) -> FakeSession:
        settings = session_pb2.SessionConfig(
            agent="codex", working_directory=str(workspace), **config
        )
        adapter.check(settings)
        session = FakeSession(adapter, processes, settings, codex_env, workspace)
        made.append(session)
        return session

    yield make
    for session in made:
        session.gate.set()
        for driver in session.drivers:
            await driver.close(forget=True)
        assert not session.of(Kind.AGENT_UNPARSED)
