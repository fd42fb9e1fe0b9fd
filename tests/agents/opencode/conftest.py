"""OpenCode shut in: the real server, a scripted model, sessions without a daemon."""

import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
)
from tests.support.laboratory import agent_executable
from tests.support.opencode_bench import (
    MakeBench,
    OpenCodeBench,
    opencode_bench,
)
from tests.support.opencode_lab import opencode_environment


@pytest.fixture(scope="session")
def opencode_cli() -> Path:
    return agent_executable("opencode")


@pytest.fixture
async def model() -> AsyncIterator[ChatCompletionsServer]:
    async with ChatCompletionsServer() as server:
        yield server
        server.check()


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    yield host
    await host.close()
    assert not find_marked(host.instance_id)


@pytest.fixture
def make_bench(
    opencode_cli: Path,
    model: ChatCompletionsServer,
    workspace: Path,
    tmp_path: Path,
    processes: ProcessHost,
) -> MakeBench:
    environment = opencode_environment(tmp_path / "home", model.url)
    return partial(opencode_bench, opencode_cli, environment, workspace, tmp_path, processes)


@pytest.fixture
async def bench(make_bench: MakeBench) -> AsyncIterator[OpenCodeBench]:
    async with make_bench() as made:
        yield made
