"""The driver of Claude Code on the real CLI: turns and requests."""

import json
import os
from pathlib import Path

import pytest

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2
from agentstreamd.adapters.base import (
    AgentFailed,
    NotDelivered,
)
from agentstreamd.adapters.claude.driver import own_session_id
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support.anthropic_server import (
    AnthropicServer,
    reply,
    result_of,
    text,
    tool_use,
)
from tests.support.claude_driving import (
    ACCEPT_FOR_SESSION,
    EVERY_CLAUDE,
    REJECT,
    NewSession,
    allowed,
    cli_of,
)

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
