"""The driver of OpenCode on the real server: permissions and questions."""

import os
import signal
from pathlib import Path

import pytest

from agentstream.v1 import (
    agent_pb2,
    event_pb2,
    interaction_pb2,
)
from agentstreamd.adapters.base import NotDelivered
from agentstreamd.model import Kind
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    reply,
    result_of,
    says,
    text,
    tool_call,
)
from tests.support.opencode_bench import (
    MakeBench,
    OpenCodeBench,
    allowed,
    command,
)
from tests.support.opencode_lab import opencode_environment
from tools.agents.install import resolve

REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
COMPLETED = event_pb2.TURN_STATUS_COMPLETED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED
BYPASS = agent_pb2.PERMISSION_MODE_BYPASS


async def test_a_permission_is_given_once(
    bench: OpenCodeBench, model: ChatCompletionsServer, workspace: Path
) -> None:
    model.script(*command("call_1"), *command("call_2"))
    session = bench.session()
    driver = session.driver()
    for turn in ("Write", "Again"):
        await driver.send(session.prompt(turn))
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
        assert asked.command == "echo hi > a.txt"
        await driver.answer(asked.request_id, allowed())
        assert (await session.turn_ended()).status == COMPLETED
        with pytest.raises(NotDelivered):
            await driver.answer(asked.request_id, allowed())
    assert (workspace / "a.txt").read_text() == "hi\n"
    # The session writes the resolutions: it knows who answered.
    assert not session.of(Kind.PERMISSION_RESOLVED)


async def test_accepting_for_the_session_holds_for_it_alone(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    same_turn = reply(
        tool_call("bash", {"command": "echo again", "description": "x"}, id="call_2"),
        when=result_of("call_1"),
    )
    model.script(
        reply(tool_call("bash", {"command": "echo hi", "description": "x"}, id="call_1")),
        same_turn,
        reply(text("Done."), when=result_of("call_2")),
        *command("call_3", "echo later"),
        *command("call_4", "echo other"),
    )
    session, other = bench.session(), bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Twice"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    assert (await session.turn_ended()).status == COMPLETED
    [resolved] = [e.permission_resolved for e in session.of(Kind.PERMISSION_RESOLVED)]
    assert resolved.resolved_by == interaction_pb2.RESOLVED_BY_POLICY
    await driver.send(session.prompt("A later turn"))
    assert (await session.turn_ended()).status == COMPLETED
    others = other.driver()
    await others.send(other.prompt("Another session"))
    asked = (await other.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await others.answer(asked.request_id, allowed())
    assert (await other.turn_ended()).status == COMPLETED


async def test_what_was_accepted_for_the_session_survives_the_server(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(*command("call_1", "echo hi"), *command("call_2", "echo ho"))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Once"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    await session.turn_ended()
    os.kill(bench.server_pid(), signal.SIGKILL)
    await session.exit()
    await session.driver().send(session.prompt("Again"))  # a new driver, from the saved state
    assert (await session.turn_ended()).status == COMPLETED
    assert len(session.tool_results) == 2
    for resolved in session.of(Kind.PERMISSION_RESOLVED):
        by = resolved.permission_resolved.resolved_by
        assert by == interaction_pb2.RESOLVED_BY_POLICY


@pytest.mark.parametrize("mode", [agent_pb2.PERMISSION_MODE_DEFAULT, BYPASS])
async def test_what_the_users_settings_deny_stays_denied(
    make_bench: MakeBench,
    model: ChatCompletionsServer,
    tmp_path: Path,
    mode: agent_pb2.PermissionMode.ValueType,
) -> None:
    rules = {"bash": {"echo secret*": "deny"}}
    opencode_environment(tmp_path / "home", model.url, permission=rules)
    model.script(*command("call_1", "echo secret"))
    async with make_bench() as bench:
        session = bench.session(permission_mode=mode)
        await session.driver().send(session.prompt("Say it"))
        assert (await session.turn_ended()).status == COMPLETED
        assert session.tool_results["call_1"].is_error
        assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_the_agent_is_described_with_its_version_and_models(bench: OpenCodeBench) -> None:
    agent = await bench.adapter.describe()
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    assert agent.version == resolve("opencode").version
    assert "fake/main" in {known.name for known in agent.models}
    assert "plan" in {mode.name for mode in agent.modes}


@pytest.mark.parametrize("message", ["Not on my machine", ""])
async def test_the_turn_goes_on_after_a_rejection(
    bench: OpenCodeBench, model: ChatCompletionsServer, workspace: Path, message: str
) -> None:
    model.script(
        reply(tool_call("bash", {"command": "echo > a.txt", "description": "x"}, id="call_1")),
        reply(text("Then not."), when=result_of("call_1")),
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Write"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT, message=message))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Then not."]
    assert message in model.requests[1].tool_results["call_1"]
    assert session.tool_results["call_1"].is_error
    assert not (workspace / "a.txt").exists()


async def test_a_rejection_that_interrupts_ends_the_turn_and_rejects_what_else_was_asked(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(
            tool_call("bash", {"command": "echo 1 > a", "description": "x"}, id="call_1"),
            tool_call("bash", {"command": "echo 2 > b", "description": "x"}, id="call_2", index=1),
        )
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Write two"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await session.next(Kind.PERMISSION_REQUESTED)
    await driver.answer(asked.request_id, allowed(REJECT, interrupt=True))
    assert (await session.turn_ended()).status == INTERRUPTED
    [other] = [e.permission_resolved for e in session.of(Kind.PERMISSION_RESOLVED)]
    assert other.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
    assert {r.is_error for r in session.tool_results.values()} == {True}


async def test_questions_are_answered_with_labels_and_words(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    def question(text: str, **more: object) -> dict[str, object]:
        options = [{"label": name, "description": f"the {name}"} for name in ("Red", "Blue")]
        return {"question": text, "header": "Q", "options": options, **more}

    questions = [
        question("Which one?"),
        question("Which ones?", multiple=True),
        question("What else?"),
    ]
    model.script(
        reply(tool_call("question", {"questions": questions}, id="call_q")),
        reply(text("Thanks."), when=result_of("call_q")),
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Ask"))
    asked = (await session.next(Kind.QUESTION_REQUESTED)).question_requested
    assert [q.multi_select for q in asked.questions] == [False, True, False]
    assert [o.label for o in asked.questions[0].options] == ["Red", "Blue"]
    answered = interaction_pb2.AnsweredQuestions()
    ids = [q.question_id for q in asked.questions]
    answered.answers.add(question_id=ids[2], text="Grün")
    answered.answers.add(question_id=ids[0], labels=["Blue"])
    answered.answers.add(question_id=ids[1], labels=["Red", "Blue"])
    await driver.answer(asked.request_id, interaction_pb2.QuestionAnswer(answered=answered))
    assert (await session.turn_ended()).status == COMPLETED
    read = model.requests[1].tool_results["call_q"]
    assert '"Which one?"="Blue"' in read
    assert "Red, Blue" in read
    assert "Grün" in read


async def test_rejected_questions_end_the_turn(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    options = [{"label": "Yes", "description": ""}]
    asking = {"questions": [{"question": "Sure?", "header": "Q", "options": options}]}
    model.script(reply(tool_call("question", asking, id="call_q")))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Ask"))
    asked = (await session.next(Kind.QUESTION_REQUESTED)).question_requested
    rejected = interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions())
    await driver.answer(asked.request_id, rejected)
    assert (await session.turn_ended()).status == INTERRUPTED
    assert session.tool_results["call_q"].is_error


async def test_a_sub_agent_works_and_asks_in_the_parents_stream(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    task = {"description": "Count", "prompt": "SUB count", "subagent_type": "general"}
    model.script(
        reply(tool_call("task", task, id="call_t"), when=says("delegate")),
        reply(
            tool_call("bash", {"command": "ls | wc -l", "description": "x"}, id="call_c"),
            when=says("SUB"),
        ),
        reply(text("None at all."), when=result_of("call_c")),
        reply(text("It says none."), when=result_of("call_t")),
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Please delegate"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed())
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert ended.usage.input_tokens == 400
    items = {
        e.item_completed.item.item_id: e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
    }
    [call] = [i for i in items.values() if i.content and i.content[0].tool_call.call_id == "call_t"]
    assert asked.parent_id == call.item_id
    [inner] = [i for i in items.values() if i.content and i.content[0].text.text == "None at all."]
    assert inner.parent_id == call.item_id
    assert session.texts == ["None at all.", "It says none."]
