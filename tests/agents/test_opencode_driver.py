"""The driver of OpenCode on the real server: what it carries both ways, what it survives."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, service_pb2
from agentstreamd.adapters.base import AgentFailed, NotDelivered
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    Gate,
    cut,
    error,
    hang,
    reasoning,
    reply,
    result_of,
    says,
    text,
    tool_call,
)
from tests.support.cutting_proxy import CuttingProxy
from tests.support.hermetic import make_workspace
from tests.support.laboratory import agent_executable
from tests.support.opencode_bench import OpenCodeBench, allowed, opencode_bench
from tests.support.opencode_lab import opencode_environment

REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

MakeBench = Callable[..., AbstractAsyncContextManager[OpenCodeBench]]


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


async def test_a_turn_streams_to_its_end(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(reasoning("Hm, ", "so."), text("Hel", "lo, ", "Wörld\u2028!")))
    session = bench.session(system_prompt="Always greet. MARK")
    await session.driver().send(session.prompt("Greet the world"))
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert ended.stop_reason == "stop"
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert session.deltas == ["Hel", "lo, ", "Wörld\u2028!"]
    assert session.texts == ["Hello, Wörld\u2028!"]
    assert model.requests[0].prompt == "Greet the world"
    assert "MARK" in model.requests[0].system
    assert session.native_session_id.startswith("ses_")
    assert not session.of(Kind.AGENT_UNPARSED)
    users = [
        e.item_started.item for e in session.of(Kind.ITEM_STARTED) if e.item_started.item.role == 1
    ]
    assert not users
