"""A message that waits in Claude Code, behind a turn of the CLI's own, when it is interrupted."""

import os
from pathlib import Path

from agentstream.v1 import agent_pb2, event_pb2
from agentstreamd.adapters.claude.connection import Limits
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    reply,
    result_of,
    says,
    task_notification,
    text,
    tool_use,
)
from tests.support.claude_driving import EVERY_CLAUDE, NewSession, new_session, processes

__all__ = ["new_session", "processes"]


@EVERY_CLAUDE
async def test_an_interrupt_withdraws_it(
    new_session: NewSession,
    model_server: AnthropicServer,
    workspace: Path,
) -> None:
    os.mkfifo(workspace / "go")
    go = os.open(workspace / "go", os.O_RDWR)
    command = {"command": "read word < go", "run_in_background": True}
    gate = Gate("in the agent's own turn")
    model_server.script(
        reply(tool_use("Bash", command, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
        reply(text("It has ", gate, "ended."), when=task_notification),
        reply(text("Yes?"), when=says("Still there?")),
    )
    session = await new_session(
        permission_mode=agent_pb2.PERMISSION_MODE_BYPASS, limits=Limits(taken_seconds=0.2)
    )
    driver = session.driver()
    await driver.send(session.prompt("Work in the background"))
    await session.turn_ended()
    os.write(go, b"now\n")
    await gate.reached()
    await session.text_delta("It has ")
    await driver.send(session.prompt("Never mind"))
    await driver.interrupt()
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.texts[-1] == "Yes?"
    assert not any("Never mind" in request.prompt for request in model_server.requests)
    assert not session.exits
    os.close(go)
