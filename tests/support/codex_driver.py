"""What tests of the driver of Codex share: settings, prompts of the model, ways to wait."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from agentstream.v1 import (
    agent_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    session_pb2,
)
from agentstreamd.model import Kind
from agentstreamd.process import ChildProcess, ProcessHost
from tests.support import mcp_echo
from tests.support.fake_session import FakeSession
from tests.support.model_server import DEADLINE
from tests.support.responses_server import (
    call,
)

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

BYPASS = agent_pb2.PERMISSION_MODE_BYPASS

NewSession = Callable[..., FakeSession]


def allowed(
    decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT, **more: Any
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


def shell(command: str, *, id: str = "call_1", **more: Any) -> Any:
    return call("exec_command", {"cmd": command, **more}, id=id)


def server_of(processes: ProcessHost) -> ChildProcess:
    [child] = processes.children
    return child


def statuses(session: FakeSession) -> list[item_pb2.Item]:
    items = [event.item_completed.item for event in session.of(Kind.ITEM_COMPLETED)]
    return [item for item in items if item.kind == item_pb2.ITEM_KIND_STATUS]


def echo_server() -> session_pb2.McpServer:
    stdio = session_pb2.McpStdio(command=sys.executable, args=[mcp_echo.__file__])
    return session_pb2.McpServer(name="echo", stdio=stdio)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read; of a process, until it has ended."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(DEADLINE):
            await ready.wait()
    finally:
        loop.remove_reader(descriptor)
