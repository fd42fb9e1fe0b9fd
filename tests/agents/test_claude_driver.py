"""The driver of Claude Code on the real CLI: what it carries both ways, what it leaves."""

import asyncio
import json
import os
import select
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, session_pb2
from agentstreamd.adapters.base import (
    AgentFailed,
    HostContext,
    InvalidSetting,
    NotDelivered,
)
from agentstreamd.adapters.claude.adapter import ClaudeAdapter
from agentstreamd.adapters.claude.connection import Limits
from agentstreamd.adapters.claude.driver import own_session_id
from agentstreamd.model import Kind
from agentstreamd.process import ChildProcess, ProcessHost
from agentstreamd.process.leftovers import find_marked
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


# --- turns ---------------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_a_turn_streams_to_its_end(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Hel", "lo, ", "Wörld")))
    session = await new_session(system_prompt="Always greet. MARK")
    await session.driver().send(session.prompt("Greet the world"))
    ended = await session.turn_ended()
    assert ended.status == event_pb2.TURN_STATUS_COMPLETED
    assert session.deltas == ["Hel", "lo, ", "Wörld"]
    assert session.texts == ["Hello, Wörld"]
    assert model_server.requests[0].prompt == "Greet the world"
    assert "MARK" in model_server.requests[0].system
    assert not session.of(Kind.AGENT_UNPARSED)


@EVERY_CLAUDE
async def test_turns_share_one_process(
    new_session: NewSession, model_server: AnthropicServer, processes: ProcessHost
) -> None:
    model_server.script(reply(text("One.")), reply(text("Two.")))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    pid = cli_of(processes).pid
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts == ["One.", "Two."]
    assert cli_of(processes).pid == pid
    assert not session.exits


@EVERY_CLAUDE
async def test_a_new_driver_resumes_the_conversation(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Noted.")), reply(text("It was blue.")))
    session = await new_session()
    first = session.driver()
    await first.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await first.close()
    [exit] = session.exits
    assert exit.expected
    await session.driver().send(session.prompt("Which was it?"))
    await session.turn_ended()
    assert session.texts == ["Noted.", "It was blue."]
    assert "My color is blue" in json.dumps(model_server.requests[1].body["messages"])


async def test_a_daemon_that_lost_the_native_id_finds_the_conversation_again(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Noted.")), reply(text("Blue.")))
    session = await new_session()
    first = session.driver()
    await first.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await first.close()
    session.native_session_id, session.state = "", b""
    await session.driver().send(session.prompt("Which was it?"))
    await session.turn_ended()
    assert "My color is blue" in json.dumps(model_server.requests[1].body["messages"])


async def test_a_session_noted_but_never_begun_begins(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Hello.")))
    session = await new_session()
    session.native_session_id = own_session_id(session.uid)
    await session.driver().send(session.prompt("Hello?"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED


@EVERY_CLAUDE
async def test_resuming_an_unknown_session_fails_with_its_reason(new_session: NewSession) -> None:
    unknown = "4dd6a2a2-4fc1-4f4c-9b5c-3f6d3a0b7c11"
    session = await new_session(resume_native_session_id=unknown)
    with pytest.raises(AgentFailed, match=unknown) as failed:
        await session.driver().send(session.prompt("Hello?"))
    assert failed.value.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
    assert not session.drafts
    assert not session.exits


async def test_a_lost_conversation_is_not_silently_begun_anew(
    new_session: NewSession, model_server: AnthropicServer, agent_env: dict[str, str]
) -> None:
    model_server.script(reply(text("Noted.")))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Remember me"))
    await session.turn_ended()
    await driver.close()
    for transcript in (Path(agent_env["HOME"]) / ".claude" / "projects").rglob("*.jsonl"):
        transcript.unlink()
    with pytest.raises(AgentFailed) as failed:
        await driver.send(session.prompt("Who am I?"))
    assert failed.value.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND


# --- requests ------------------------------------------------------------------------------------


@EVERY_CLAUDE
async def test_a_tool_runs_with_the_arguments_that_were_accepted(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    model_server.script(
        reply(tool_use("Bash", {"command": "touch a.txt"}, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Write a file"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.command == "touch a.txt"
    assert not (workspace / "a.txt").exists()
    changed = json.dumps({"command": "touch b.txt"})
    await driver.answer(asked.request_id, allowed(updated_arguments_json=changed))
    await session.turn_ended()
    assert os.listdir(workspace) == ["b.txt"]
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())


async def test_a_rejection_reaches_the_model(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(
        reply(tool_use("Bash", {"command": "rm -r important"}, id="toolu_rm")),
        reply(text("Then not."), when=result_of("toolu_rm")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Clean up"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT, message="Never that."))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert "Never that." in model_server.requests[1].tool_results["toolu_rm"]["content"]


async def test_a_rejection_can_end_the_turn(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    model_server.script(reply(tool_use("Bash", {"command": "rm -r important"}, id="toolu_rm")))
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Clean up"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT, interrupt=True))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED


@EVERY_CLAUDE
async def test_what_was_accepted_for_the_session_is_not_asked_again_in_a_new_process(
    new_session: NewSession, model_server: AnthropicServer, workspace: Path
) -> None:
    make = {"command": "mkdir made"}
    model_server.script(
        reply(tool_use("Bash", make, id="toolu_1")),
        reply(text("Made."), when=result_of("toolu_1")),
        reply(tool_use("Bash", make, id="toolu_2")),
        reply(text("Made again."), when=result_of("toolu_2")),
        reply(tool_use("Bash", {"command": "touch other"}, id="toolu_3")),
        reply(text("Touched."), when=result_of("toolu_3")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert ACCEPT_FOR_SESSION in asked.allowed_decisions
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    await session.turn_ended()
    await driver.close()
    (workspace / "made").rmdir()

    driver = session.driver()
    await driver.send(session.prompt("Once more"))
    await session.turn_ended()
    assert (workspace / "made").is_dir()
    assert len(session.of(Kind.PERMISSION_REQUESTED)) == 1

    await driver.send(session.prompt("And something else"))
    other = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(other.request_id, allowed())
    await session.turn_ended()


@EVERY_CLAUDE
async def test_a_question_gets_its_answer(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    question = {
        "question": "Which color?",
        "header": "Color",
        "multiSelect": False,
        "options": [
            {"label": "Red", "description": "Warm"},
            {"label": "Blue", "description": "Cold"},
        ],
    }
    model_server.script(
        reply(tool_use("AskUserQuestion", {"questions": [question]}, id="toolu_ask")),
        reply(text("Blue it is."), when=result_of("toolu_ask")),
    )
    session = await new_session()
    driver = session.driver()
    await driver.send(session.prompt("Paint it"))
    asked = (await session.next(Kind.QUESTION_REQUESTED)).question_requested
    answer = interaction_pb2.QuestionAnswer()
    answer.answered.answers.add(question_id=asked.questions[0].question_id, labels=["Blue"])
    await driver.answer(asked.request_id, answer)
    await session.turn_ended()
    result = model_server.requests[1].tool_results["toolu_ask"]
    assert '"Which color?"="Blue"' in result["content"]


async def test_an_answer_nobody_waits_for_is_not_delivered(
    new_session: NewSession, model_server: AnthropicServer
) -> None:
    session = await new_session()
    driver = session.driver()
    with pytest.raises(NotDelivered):
        await driver.answer("nothing runs", allowed())
    model_server.script(reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x")))
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    with pytest.raises(NotDelivered):
        await driver.answer("another", allowed())
    await driver.interrupt()
    await session.turn_ended()
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())


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
