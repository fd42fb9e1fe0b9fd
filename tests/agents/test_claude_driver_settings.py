"""The driver of Claude Code on the real CLI: interrupts and settings."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, event_pb2, session_pb2
from agentstreamd.adapters.base import (
    AgentFailed,
    InvalidSetting,
)
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support import mcp_echo
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    after,
    error,
    hang,
    reply,
    result_of,
    says,
    text,
    tool_use,
)
from tests.support.claude_driving import (
    EVERY_CLAUDE,
    NewSession,
    cli_of,
    watched,
)

# --- interrupting --------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_an_interrupt_stops_the_text_and_the_session_goes_on(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("This is ", hang(), "never said")), reply(text("Yes?")))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("This is ")
    await driver.interrupt()
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert not session.exits


@EVERY_CLAUDE
async def test_an_interrupt_right_after_the_message_or_before_the_process_runs_has_effect(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    # Whether the CLI has asked the model by then is its own affair.
    model_server.script(reply(text("Never ", hang()), repeat=True))
    session = await new_session()
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("Never mind")))
    await asyncio.sleep(0)  # the send has begun
    await driver.interrupt()
    await sending
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    await driver.send(session.prompt("Nor that"))
    await driver.interrupt()
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED


async def test_an_interrupt_between_turns_is_nothing(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("One.")), reply(text("Two.")))
    session = await new_session()
    driver = session.driver()
    await driver.interrupt()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    await driver.interrupt()
    await driver.send(session.prompt("Go on"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED


@EVERY_CLAUDE
async def test_an_interrupt_ends_the_tool_that_runs(
    new_session: NewSession, model_server: AnthropicServer, tmp_path: Path
) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    command = f"echo $$ > {fifo}; sleep 1000"
    model_server.script(reply(tool_use("Bash", {"command": command}, id="toolu_sleep")))
    session = await new_session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    with watched(int(await asyncio.to_thread(fifo.read_text))) as gone:
        await driver.interrupt()
        assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
        await gone()


# --- settings ------------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_the_model_changes_in_the_running_process_and_stays_changed(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(*(reply(text(f"{number}.")) for number in range(3)))
    session = await new_session(model="sonnet")
    driver = session.driver()
    await driver.send(session.prompt("Who are you?"))
    await session.turn_ended()
    await driver.update(model="haiku")
    await driver.send(session.prompt("And now?"))
    await session.turn_ended()
    await driver.close()
    await driver.send(session.prompt("And in another process?"))
    await session.turn_ended()
    first, second, third = (request.body["model"] for request in model_server.requests)
    assert "sonnet" in first
    assert "haiku" in second
    assert second == third


@pytest.mark.parametrize("claude_cli", ["claude-newest"], indirect=True)
async def test_a_model_that_the_cli_refuses_changes_nothing(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(
        reply(text("One.")),
        error(404, "not_found_error", "no such model", when=says("Hi")),  # the CLI tries it
        reply(text("Two.")),
    )
    session = await new_session(model="sonnet")
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    with pytest.raises(AgentFailed):
        await driver.update(model="claude-no-such-model")
    await driver.send(session.prompt("Go on"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert "sonnet" in model_server.requests[-1].body["model"]


async def test_a_session_that_names_no_model_keeps_the_one_it_began_with(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("One.")), reply(text("Two.")))
    session = await new_session()
    for prompt in ("Who are you?", "And in another process?"):
        driver = session.driver()
        await driver.send(session.prompt(prompt))
        await session.turn_ended()
        await driver.close()
    first, second = (request.body["model"] for request in model_server.requests)
    assert first == second


@EVERY_CLAUDE
async def test_the_permission_mode_changes_and_is_put_back_after_a_restart(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    for name in ("a", "b"):
        write = {"file_path": str(workspace / name), "content": "x"}
        model_server.script(
            reply(tool_use("Write", write, id=f"toolu_{name}")),
            reply(text("Written."), when=result_of(f"toolu_{name}")),
        )
    session = await new_session()
    driver = session.driver()
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)  # nothing runs yet
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    for prompt in ("Write", "Write more"):
        await driver.send(session.prompt(prompt))
        await session.turn_ended()
        await driver.close()
    assert not session.of(Kind.PERMISSION_REQUESTED)
    assert set(os.listdir(workspace)) == {"a", "b"}


@EVERY_CLAUDE
async def test_bypass_restarts_the_process_and_nothing_is_asked_any_more(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    model_server.script(
        reply(text("Ready.")),
        reply(tool_use("Bash", {"command": "touch a.txt"}, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Get ready"))
    await session.turn_ended()
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await driver.send(session.prompt("Write"))
    await session.turn_ended()
    assert (workspace / "a.txt").exists()
    assert not session.of(Kind.PERMISSION_REQUESTED)
    assert [exit.expected for exit in session.exits] == [True]


async def test_the_mode_changes_while_a_turn_runs(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    gate = Gate()
    write = {"file_path": str(workspace / "a"), "content": "x"}
    model_server.script(
        reply(text("Wait ", gate), tool_use("Write", write, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Write"))
    await session.text_delta("Wait ")
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    gate.open()
    await session.turn_ended()
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_names_of_models_that_look_like_flags_are_refused(new_session: NewSession) -> None:
    bad = "--dangerously-skip-permissions"
    with pytest.raises(InvalidSetting):
        await new_session(model=bad)
    session = await new_session()
    with pytest.raises(InvalidSetting):
        await session.driver().update(model=bad)


@EVERY_CLAUDE
async def test_mcp_servers_get_their_secrets_from_a_private_file(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    stdio = session_pb2.McpStdio(
        command=sys.executable, args=[mcp_echo.__file__], env={"TOKEN": "s3cret"}
    )
    model_server.script(
        reply(tool_use("mcp__lab__echo", {"text": "Grüße"}, id="toolu_echo")),
        reply(text("Called."), when=after("mcp__lab__echo")),
    )
    session = await new_session(
        mcp_servers=[session_pb2.McpServer(name="lab", stdio=stdio)],
        agent_options={"allowed_tools": "mcp__lab"},
    )
    await session.driver().send(session.prompt("Use the lab"))
    [file] = session.state_directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "s3cret" in file.read_text()
    assert "s3cret" not in " ".join(cli_of(processes).spec.argv)
    await session.turn_ended()
    assert "Grüße" in session.tool_results["toolu_echo"].output
