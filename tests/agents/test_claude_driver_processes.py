"""The driver of Claude Code on the real CLI: processes, and the adapter."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2
from agentstreamd.adapters.base import (
    AgentFailed,
    HostContext,
)
from agentstreamd.adapters.claude.adapter import ClaudeAdapter
from agentstreamd.adapters.claude.connection import Limits
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support.anthropic_server import (
    AnthropicServer,
    hang,
    reply,
    result_of,
    text,
    tool_use,
)
from tests.support.claude_driving import (
    EVERY_CLAUDE,
    NewSession,
    allowed,
    cli_of,
    program,
    watched,
)

# --- processes -----------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_a_killed_process_is_reported_and_the_next_message_resumes(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    model_server.script(
        reply(text("Noted.")), reply(text("Half ", hang())), reply(text("Blue, I think."))
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("Half ")
    os.kill(cli_of(processes).pid, signal.SIGKILL)
    exit = await session.exit()
    assert (exit.expected, exit.signal) == (False, signal.SIGKILL)
    assert exit.code == error_pb2.ERROR_CODE_AGENT_EXITED
    assert "SIGKILL" in exit.message
    await driver.send(session.prompt("Which was it?"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert "My color is blue" in json.dumps(model_server.requests[2].body["messages"])


async def test_a_process_killed_between_turns_costs_no_message(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    model_server.script(reply(text("One.")), reply(text("Two.")))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    child = cli_of(processes)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts == ["One.", "Two."]
    assert len(session.exits) == 1


@EVERY_CLAUDE
async def test_closing_ends_what_the_agent_left_running_in_sessions_of_its_own(
    new_session: NewSession, model_server: AnthropicServer, tmp_path: Path
) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    command = f"setsid sh -c 'echo $$ > {fifo}; exec sleep 1000' >/dev/null 2>&1 &"
    model_server.script(
        reply(tool_use("Bash", {"command": command}, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
    )
    session = await new_session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Start it"))
    pid = int(await asyncio.to_thread(fifo.read_text))
    await session.turn_ended()
    with watched(pid) as gone:
        await driver.close()
        await gone()


@EVERY_CLAUDE
async def test_closing_in_the_middle_of_a_turn_lets_it_end_in_order(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    model_server.script(reply(text("This is ", hang())))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("This is ")
    await driver.close()
    assert not processes.children
    [ended] = session.of(Kind.TURN_ENDED)
    assert ended.turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    [exit] = session.exits
    assert exit.expected
    assert exit.signal is None
    await driver.close()
    assert len(session.exits) == 1


async def test_an_agent_that_does_not_react_is_ended(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    model_server.script(reply(text("One.")))
    session = await new_session(limits=Limits(polite_seconds=0.2, term_seconds=0.2))
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    os.kill(cli_of(processes).pid, signal.SIGSTOP)
    await driver.close()
    assert not processes.children
    assert session.exits[0].expected


async def test_a_slow_log_slows_the_agent_down_and_loses_nothing(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    words = [f"{number} " * 50 for number in range(2000)]
    model_server.script(reply(text(*words)))
    session = await new_session()
    session.gate.clear()
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await model_server.request(0)
    session.gate.set()
    await session.turn_ended()
    assert "".join(session.deltas) == "".join(words)


@EVERY_CLAUDE
async def test_ten_megabytes_go_through_both_ways(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    line = "0123456789abcdef" * 4096  # no line breaks: a diff of many lines takes the CLI minutes
    pieces = [line] * 160
    path = workspace / "large.txt"
    written = ['{"content": "', *pieces, f'", "file_path": {json.dumps(str(path))}}}']
    model_server.script(
        reply(tool_use("Write", written, id="toolu_large")),
        reply(text("Written."), when=result_of("toolu_large")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Write much"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert json.loads(asked.arguments_json)["content"] == "".join(pieces)
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert path.stat().st_size == 160 * len(line)
    assert not session.of(Kind.AGENT_UNPARSED)


async def test_a_tool_that_prints_ten_megabytes_ends_its_turn(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    command = "head -c 10000000 /dev/zero | tr '\\0' x"
    model_server.script(
        reply(tool_use("Bash", {"command": command}, id="toolu_much")),
        reply(text("Much."), when=result_of("toolu_much")),
    )
    session = await new_session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.driver().send(session.prompt("Print"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.tool_results["toolu_much"].output


@EVERY_CLAUDE
async def test_a_line_too_long_is_told_and_the_session_goes_on(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    write = {"file_path": str(workspace / "large.txt"), "content": "x" * 300_000}
    model_server.script(
        reply(tool_use("Write", write, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    session = await new_session(
        limits=Limits(line_bytes=200_000), permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
    )
    await session.driver().send(session.prompt("Write much"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.of(Kind.AGENT_UNPARSED)[0].agent_unparsed.size_bytes > 300_000
    assert session.texts == ["Written."]


@EVERY_CLAUDE
async def test_a_request_too_long_to_read_is_refused(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    write = {"file_path": str(workspace / "large.txt"), "content": "x" * 300_000}
    model_server.script(
        reply(tool_use("Write", write, id="toolu_w")),
        reply(text("I may not."), when=result_of("toolu_w")),
    )
    session = await new_session(limits=Limits(line_bytes=200_000))
    await session.driver().send(session.prompt("Write much"))
    told = (await model_server.request(1)).tool_results["toolu_w"]
    assert "too large" in told["content"]
    await session.exit()  # the turn's end repeats what was refused, and is too long as well


@EVERY_CLAUDE
async def test_a_turn_whose_end_is_too_long_to_read_fails(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("x" * 300_000)), reply(text("Short.")))
    session = await new_session(limits=Limits(line_bytes=200_000))
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    exit = await session.exit()
    assert (exit.expected, exit.code) == (False, error_pb2.ERROR_CODE_AGENT_PROTOCOL)
    await driver.send(session.prompt("Less"))
    await session.turn_ended()
    assert session.texts[-1] == "Short."


async def test_bypass_as_root_is_possible_only_because_the_daemon_says_sandbox(
    new_session: NewSession,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is refused")
    session = await new_session(
        permission_mode=agent_pb2.PERMISSION_MODE_BYPASS, env={"IS_SANDBOX": "0"}
    )
    with pytest.raises(AgentFailed, match="root/sudo") as failed:
        await session.driver().send(session.prompt("Hello?"))
    assert failed.value.code == error_pb2.ERROR_CODE_AGENT_START_FAILED


async def test_a_start_that_fails_says_what_the_cli_says(
    new_session: NewSession, workspace: Path
) -> None:
    session = await new_session()
    session.config.working_directory = str(workspace / "gone")
    with pytest.raises(AgentFailed, match="gone does not exist") as failed:
        await session.driver().send(session.prompt("Hello?"))
    assert failed.value.code == error_pb2.ERROR_CODE_AGENT_START_FAILED
    assert not session.exits


async def test_a_program_that_is_silent_is_given_up(
    new_session: NewSession, tmp_path: Path, processes: ProcessHost
) -> None:
    silent = program(tmp_path, "#!/bin/sh\nexec sleep 1000\n")
    session = await new_session(silent, limits=Limits(start_seconds=0.5, polite_seconds=0.5))
    with pytest.raises(AgentFailed, match="no answer in"):
        await session.driver().send(session.prompt("Hello?"))
    assert not processes.children
    assert not session.exits


@pytest.mark.parametrize("started", [False, True])
async def test_closing_ends_a_start_that_is_under_way(
    new_session: NewSession, tmp_path: Path, processes: ProcessHost, started: bool
) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    session = await new_session(
        program(tmp_path, f"#!/bin/sh\necho > {fifo}\nexec sleep 1000\n" if started else FAKE)
    )
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("Hello?")))
    await (asyncio.to_thread(fifo.read_text) if started else asyncio.sleep(0))
    await driver.close()
    with pytest.raises(AgentFailed, match="was stopped") as failed:
        await sending
    assert failed.value.code == error_pb2.ERROR_CODE_AGENT_EXITED
    assert not processes.children
    assert not session.exits


FAKE = f"""#!{sys.executable}
import json, sys

def write(**line):
    print(json.dumps(line), flush=True)

for line in sys.stdin:
    line = json.loads(line)
    if line["type"] == "user":
        request = dict(subtype="mystery", question="?")
        write(type="control_request", request_id="q-1", request=request)
    elif line["type"] == "control_response":
        write(type="result", subtype="success", is_error=False, result=json.dumps(line))
    elif line["request"]["subtype"] == "initialize":
        response = dict(subtype="success", request_id=line["request_id"], response=dict())
        write(type="control_response", response=response)
"""


async def test_a_request_that_nobody_knows_is_answered_with_an_error(
    new_session: NewSession, tmp_path: Path
) -> None:
    session = await new_session(program(tmp_path, FAKE))
    await session.driver().send(session.prompt("Hello?"))
    await session.turn_ended()
    [answer] = session.texts
    assert json.loads(answer)["response"]["request_id"] == "q-1"
    assert json.loads(answer)["response"]["subtype"] == "error"


async def test_a_setting_that_is_not_answered_fails_and_changes_nothing(
    new_session: NewSession, tmp_path: Path
) -> None:
    limits = Limits(control_seconds=0.2)
    session = await new_session(program(tmp_path, FAKE), limits=limits, model="one")
    driver = session.driver()
    await driver.send(session.prompt("Hello?"))
    await session.turn_ended()
    with pytest.raises(AgentFailed, match="did not answer set_model"):
        await driver.update(model="two")


# --- the adapter ---------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_the_installed_cli_is_described(new_session: NewSession, claude_cli: Path) -> None:
    session = await new_session()
    agent = await session.adapter.describe()
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    assert agent.executable_path == str(claude_cli)
    assert agent.version[0].isdigit()
    assert {mode.mode for mode in agent.permission_modes} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("script", "state"),
    [
        (None, agent_pb2.AGENT_STATE_NOT_INSTALLED),
        ("#!/bin/sh\necho broken >&2; exit 3\n", agent_pb2.AGENT_STATE_UNUSABLE),
        ("#!/no/such/interpreter\n", agent_pb2.AGENT_STATE_UNUSABLE),
    ],
)
async def test_what_cannot_be_used_says_why(
    processes: ProcessHost,
    tmp_path: Path,
    script: str | None,
    state: agent_pb2.AgentState.ValueType,
) -> None:
    if script is not None:
        program(tmp_path, script)
    adapter = ClaudeAdapter()
    await adapter.start(
        HostContext(
            processes=processes,
            environment={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            state_directory=tmp_path,
        )
    )
    agent = await adapter.describe()
    assert agent.state == state
    assert agent.unavailable_reason
    assert not agent.version
