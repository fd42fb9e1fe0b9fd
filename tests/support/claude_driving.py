"""Driving Claude Code without a daemon: fixtures and small helpers of the tests of its driver."""

import asyncio
import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import interaction_pb2, session_pb2
from agentstreamd.adapters.base import (
    HostContext,
)
from agentstreamd.adapters.claude.adapter import ClaudeAdapter
from agentstreamd.adapters.claude.connection import Limits
from agentstreamd.process import ChildProcess, ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.fake_session import FakeSession
from tests.support.laboratory import CLAUDE_VERSIONS
from tests.support.model_server import DEADLINE

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

NewSession = Callable[..., Awaitable[FakeSession]]


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    """A process host, whose processes must all be gone at the end."""
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    yield host
    await host.close()
    assert not find_marked(host.instance_id)


@pytest.fixture
async def new_session(
    claude_cli: Path,
    agent_env: dict[str, str],
    workspace: Path,
    tmp_path: Path,
    processes: ProcessHost,
) -> AsyncIterator[NewSession]:
    """Makes a session: `await new_session(model="opus")`. At the end its drivers are closed."""
    state_directory = tmp_path / "state"
    state_directory.mkdir(mode=0o700)
    made: list[FakeSession] = []

    async def make(
        executable: Path = claude_cli, *, limits: Limits | None = None, **config: Any
    ) -> FakeSession:
        adapter = ClaudeAdapter(limits)
        await adapter.start(
            HostContext(
                processes=processes,
                environment=agent_env,
                state_directory=state_directory,
                executable=str(executable),
            )
        )
        settings = session_pb2.SessionConfig(
            agent="claude", working_directory=str(workspace), **config
        )
        adapter.check(settings)
        made.append(FakeSession(adapter, processes, settings, agent_env, state_directory))
        return made[-1]

    yield make
    for session in made:
        session.gate.set()
        for driver in session.drivers:
            await driver.close(forget=True)
    assert not list(state_directory.iterdir()), "private files were left"


def allowed(
    decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT, **more: Any
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


def program(directory: Path, script: str) -> Path:
    path = directory / "claude"
    path.write_text(script)
    path.chmod(0o755)
    return path


def cli_of(processes: ProcessHost) -> ChildProcess:
    [child] = processes.children
    return child


@contextmanager
def watched(pid: int) -> Iterator[Callable[[], Awaitable[None]]]:
    """Gives a function that waits until the process `pid`, which runs now, is gone."""
    handle = os.pidfd_open(pid)

    async def gone() -> None:
        ready: tuple[list[int], list[int], list[int]]
        ready = await asyncio.to_thread(select.select, [handle], [], [], DEADLINE)
        assert ready[0], f"process {pid} lives on"

    yield gone
    os.close(handle)
