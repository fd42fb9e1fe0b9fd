"""The newest Amp, whose agent loop runs on the server: the real CLI against an actor of ours."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, item_pb2
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.model import Kind
from tests.support.amp_actor import AmpActorServer
from tests.support.amp_lab import AmpLab, amp_lab
from tests.support.anthropic_server import (
    error,
    hang,
    reply,
    result_of,
    says,
    text,
    thinking,
    tool_use,
)
from tests.support.fake_session import FakeSession
from tests.support.laboratory import agent_executable

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
BYPASS = agent_pb2.PERMISSION_MODE_BYPASS
COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

# Amp checks how ids of calls look: TU- and 22 letters and digits.
ONE, TWO, THREE = (f"TU-{number:022}" for number in (1, 2, 3))


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[AmpLab]:
    async with amp_lab(tmp_path, agent_executable("amp-newest"), AmpActorServer) as made:
        yield made


def actor(lab: AmpLab) -> AmpActorServer:
    assert isinstance(lab.server, AmpActorServer)
    return lab.server


def shell(command: str, id: str) -> Any:
    return tool_use("shell_command", {"command": command}, id=id)


def answer(
    decision: interaction_pb2.PermissionDecision.ValueType, **more: Any
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


async def asked(session: FakeSession) -> interaction_pb2.PermissionRequest:
    return (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested


async def test_it_says_its_version_and_modes(lab: AmpLab) -> None:
    agent = await (await lab.adapter()).describe()
    assert agent.version == "0.0.1790142911-g7618fb"
    assert "medium" in {mode.name for mode in agent.modes}


async def test_two_turns_run_in_one_process_and_say_what_they_used(lab: AmpLab) -> None:
    lab.server.script(reply(thinking("Hm, Grüße?"), text("Grüße 🐸!")), reply(text("Again.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Sag Grüße 🐸"))
    ended = await session.turn_ended()
    assert (ended.status, ended.stop_reason) == (COMPLETED, "end_turn")
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert lab.server.requests[0].prompt == "Sag Grüße 🐸"
    await driver.send(session.prompt("Once more"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Grüße 🐸!", "Again."]
    items = [event.item_completed.item for event in session.of(Kind.ITEM_COMPLETED)]
    assert items[0].content[0].reasoning.text == "Hm, Grüße?"
    assert not session.of(Kind.TURN_STARTED), "echoes of our prompts were not recognized"
    assert not any(item.role == item_pb2.ITEM_ROLE_USER for item in items)
    assert session.native_session_id.startswith("T-")
    assert not session.of(Kind.AGENT_UNPARSED)
    assert not session.exits


async def test_a_tool_runs_in_bypass_mode_and_comes_with_its_exit_code(lab: AmpLab) -> None:
    lab.server.script(reply(text("Looking."), shell("echo out; exit 3", ONE)), reply(text("Done.")))
    session = await lab.session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Work"))
    assert (await session.turn_ended()).status == COMPLETED
    result = session.tool_results[ONE]
    assert (result.output, result.exit_code, result.is_error) == ("out\n", 3, True)
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_a_command_waits_until_it_is_accepted(lab: AmpLab) -> None:
    lab.server.script(reply(shell("touch made", ONE)), reply(text("Made.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    request = await asked(session)
    assert request.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (request.tool_name, request.command) == ("shell_command", "touch made")
    assert request.call_id == ONE, "the call is found although Amp names none"
    assert not (lab.workspace / "made").exists()
    await driver.answer(request.request_id, answer(ACCEPT))
    assert (await session.turn_ended()).status == COMPLETED
    assert (lab.workspace / "made").exists()


async def test_a_rejections_message_reaches_the_model(lab: AmpLab) -> None:
    lab.server.script(reply(shell("rm -rf important", ONE)), reply(text("Understood.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Clean up"))
    request = await asked(session)
    await driver.answer(request.request_id, answer(REJECT, message="Nicht so, 🐸."))
    assert (await session.turn_ended()).status == COMPLETED
    run = json.dumps(await actor(lab).ran(ONE), ensure_ascii=False)
    assert "Nicht so, 🐸." in run
    result = session.tool_results[ONE]
    assert result.is_error
    assert "Nicht so, 🐸." in result.output


async def test_accepted_for_the_session_is_not_asked_again(lab: AmpLab) -> None:
    lab.server.script(
        reply(shell("echo a >> log", ONE)),
        reply(shell("echo a >> log", TWO), when=result_of(ONE)),
        reply(shell("echo b >> log", THREE), when=result_of(TWO)),
        reply(text("Done."), when=result_of(THREE)),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Log"))
    await driver.answer((await asked(session)).request_id, answer(FOR_SESSION))
    other = await asked(session)
    assert other.call_id == THREE
    await driver.answer(other.request_id, answer(ACCEPT))
    assert (await session.turn_ended()).status == COMPLETED
    assert (lab.workspace / "log").read_text() == "a\na\nb\n"


async def test_parallel_calls_are_asked_each_with_its_own_id(lab: AmpLab) -> None:
    lab.server.script(
        reply(shell("echo first > one", ONE), shell("echo second > two", TWO)), reply(text("Done."))
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Both"))
    decisions = {ONE: ACCEPT, TWO: REJECT}
    for _ in range(2):
        request = await asked(session)
        await driver.answer(request.request_id, answer(decisions.pop(request.call_id)))
    assert (await session.turn_ended()).status == COMPLETED
    assert (lab.workspace / "one").exists()
    assert not (lab.workspace / "two").exists()


async def test_an_interrupt_ends_the_tool_and_the_thread_goes_on(lab: AmpLab) -> None:
    lab.server.script(
        reply(text("Sleeping."), shell("sleep 1000", ONE)),
        reply(text("Here."), when=says("Still")),
    )
    session = await lab.session(permission_mode=BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    await session.until(
        lambda d: d.kind is Kind.ITEM_COMPLETED and d.event.item_completed.item.item_id == ONE,
        "the call",
    )
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    thread = session.native_session_id
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.native_session_id == thread
    assert session.texts[-1] == "Here."


async def test_an_interrupt_cuts_the_models_answer(lab: AmpLab) -> None:
    lab.server.script(reply(text("This is ", hang())), reply(text("Yes?"), when=says("Still")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await lab.server.request(0)
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Yes?"]


async def test_an_error_of_the_model_fails_the_turn_and_the_thread_goes_on(lab: AmpLab) -> None:
    lab.server.script(error(529, "overloaded_error", "Overloaded"), reply(text("Fine.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Hi"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert "Overloaded" in ended.error.message
    await driver.send(session.prompt("Again"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Fine."]


async def test_a_killed_cli_fails_its_turn_and_the_next_message_resumes(lab: AmpLab) -> None:
    lab.server.script(
        reply(text("Noted.")),
        reply(text("Half ", hang())),
        reply(text("Blue."), when=says("Which")),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await driver.send(session.prompt("Talk"))
    await lab.server.request(1)
    [child] = lab.processes.children
    os.kill(child.pid, signal.SIGKILL)
    exit = await session.exit()
    assert exit.signal == signal.SIGKILL
    await driver.send(session.prompt("Which was it?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert "My color is blue" in json.dumps(lab.server.requests[-1].body)


async def test_it_says_that_its_key_is_wrong(lab: AmpLab) -> None:
    lab.server.key = "another"
    session = await lab.session()
    with pytest.raises(AgentFailed) as failed:
        await session.driver().send(session.prompt("Hi"))
    assert failed.value.code == error_pb2.ERROR_CODE_AUTHENTICATION


async def test_it_says_that_its_server_cannot_be_reached(lab: AmpLab) -> None:
    session = await lab.session(env={"AMP_URL": "http://127.0.0.1:9"})
    with pytest.raises(AgentFailed) as failed:
        await session.driver().send(session.prompt("Hi"))
    assert failed.value.code == error_pb2.ERROR_CODE_NETWORK


async def test_it_says_that_a_thread_is_unknown(lab: AmpLab) -> None:
    session = await lab.session(resume_native_session_id="T-01a22f72-2e8a-772b-a258-00000000dead")
    with pytest.raises(AgentFailed) as failed:
        await session.driver().send(session.prompt("Hi"))
    assert failed.value.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
