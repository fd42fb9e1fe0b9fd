"""The driver of OpenCode on the real server: what it carries both ways, what it survives."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
)
from agentstreamd.adapters.base import AgentFailed, NotDelivered, Prompt
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support import mcp_echo
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    ChatReply,
    Gate,
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
from tools.agents.install import resolve

REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
BYPASS = agent_pb2.PERMISSION_MODE_BYPASS
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


def command(call_id: str, line: str = "echo hi > a.txt") -> tuple[ChatReply, ChatReply]:
    """The model runs a command, and says `done` when it has its result."""
    return (
        reply(tool_call("bash", {"command": line, "description": "x"}, id=call_id)),
        reply(text("Done."), when=result_of(call_id)),
    )


# --- turns ---------------------------------------------------------------------------------------


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
    # The echo of the prompt is no news: the session has written it.
    roles = {e.item_started.item.role for e in session.of(Kind.ITEM_STARTED)}
    assert item_pb2.ITEM_ROLE_USER not in roles


async def test_reasoning_tokens_are_output_and_cached_ones_input(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    model.script(reply(text("Hi."), usage=usage))
    session = bench.session(model="fake/priced")
    await session.driver().send(session.prompt("Hi"))
    used = (await session.turn_ended()).usage
    assert (used.input_tokens, used.cache_read_tokens) == (100, 60)
    assert (used.output_tokens, used.reasoning_tokens) == (50, 30)
    assert used.cost_micro_usd > 0


async def test_sessions_in_two_directories_share_a_server(
    bench: OpenCodeBench, model: ChatCompletionsServer, tmp_path: Path
) -> None:
    gate = Gate()
    model.script(
        reply(text("One ", gate, "ended."), when=says("first")),
        *command("call_2", "pwd > where.txt"),
    )
    other = make_workspace(tmp_path / "wörk space")
    first, second = bench.session(), bench.session(directory=other)
    await first.driver().send(first.prompt("the first"))
    await first.text_delta("One ")
    driver = second.driver()
    await driver.send(second.prompt("the other"))
    asked = (await second.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed())
    assert (await second.turn_ended()).status == COMPLETED
    assert (other / "where.txt").read_text().strip() == str(other)
    gate.open()
    assert (await first.turn_ended()).status == COMPLETED
    assert first.texts == ["One ended."]
    assert second.texts == ["Done."]
    assert bench.server_pid()
    assert not first.of(Kind.PERMISSION_REQUESTED)


async def test_an_image_and_a_file_reach_the_model(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("A dot.")))
    session = bench.session()
    png = base64.b64decode(mcp_echo.PNG)
    prompt = Prompt(
        "turn-1",
        "00000000-0000-4000-8000-000000000001",
        (
            service_pb2.InputPart(text="Look"),
            service_pb2.InputPart(image=service_pb2.InputImage(media_type="image/png", data=png)),
            service_pb2.InputPart(
                file=service_pb2.InputFile(
                    name="note.txt", media_type="text/plain", data="Grüße".encode()
                )
            ),
        ),
    )
    await session.driver().send(prompt)
    assert (await session.turn_ended()).status == COMPLETED
    said = json.dumps(model.requests[0].messages, ensure_ascii=False)
    assert mcp_echo.PNG in said
    assert "Grüße" in said


async def test_a_message_can_be_put_into_the_running_turn(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(
        reply(text("Working", gate, ".")), reply(text("And that too."), when=says("that too"))
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Work"))
    await session.text_delta("Working")
    await driver.steer(session.prompt("Do that too"))
    gate.open()
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Working.", "And that too."]
    assert len(session.of(Kind.TURN_ENDED)) == 1
    with pytest.raises(NotDelivered):
        await driver.steer(session.prompt("Too late"))


async def test_the_model_and_the_permission_mode_change_with_the_next_message(
    bench: OpenCodeBench, model: ChatCompletionsServer, workspace: Path
) -> None:
    model.script(reply(text("One.")), *command("call_1"))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    await session.turn_ended()
    await driver.update(model="fake/priced", permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await driver.send(session.prompt("Write"))
    assert (await session.turn_ended()).status == COMPLETED
    assert model.requests[1].body["model"] == "priced"
    assert (workspace / "a.txt").exists()
    assert not session.of(Kind.PERMISSION_REQUESTED)


# --- requests ------------------------------------------------------------------------------------


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
    assert (await session.turn_ended()).status == COMPLETED
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
    assert (await session.turn_ended()).status == COMPLETED
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


# --- interrupting --------------------------------------------------------------------------------


async def test_an_interrupt_stops_the_text(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("And so on", hang())), reply(text("Hello again.")))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("And so on")
    await driver.interrupt()
    ended = await session.turn_ended()
    assert ended.status == INTERRUPTED
    assert not ended.HasField("error")
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts[-1] == "Hello again."
    assert not session.of(Kind.ERROR)


async def test_an_interrupt_at_once_is_not_lost(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Never", hang()), repeat=True))
    session = bench.session()
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("Talk")))
    await asyncio.sleep(0)
    await driver.interrupt()
    await sending
    assert (await session.turn_ended()).status == INTERRUPTED


async def test_an_interrupt_kills_the_tool(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(
            tool_call("bash", {"command": "echo begun; sleep 300", "description": "x"}, id="call_1")
        )
    )
    session = bench.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    await session.until(
        lambda d: d.kind is Kind.ITEM_DELTA and "begun" in d.event.item_delta.text, "output"
    )
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    assert "begun" in session.tool_results["call_1"].output


async def test_an_interrupt_while_it_waits_to_try_again(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(error(500, "broken", repeat=True))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    said = (await session.next(Kind.ERROR)).error
    assert said.will_retry
    assert said.attempt == 1
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED


async def test_an_interrupt_cancels_what_was_asked(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(tool_call("bash", {"command": "echo", "description": "x"}, id="call_1")),
        reply(text("Hello.")),
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Write"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    with pytest.raises(NotDelivered):  # the server would take it and do nothing
        await driver.answer(asked.request_id, allowed())
    await driver.send(session.prompt("Hello?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert len(session.of(Kind.PERMISSION_REQUESTED)) == 1


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, error_pb2.ERROR_CODE_INVALID_REQUEST),
        (401, error_pb2.ERROR_CODE_AUTHENTICATION),
    ],
)
async def test_a_refusal_of_the_provider_fails_the_turn(
    bench: OpenCodeBench,
    model: ChatCompletionsServer,
    status: int,
    code: error_pb2.ErrorCode.ValueType,
) -> None:
    model.script(error(status, "no, says the provider"), reply(text("Hello.")))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert (ended.error.code, ended.error.http_status) == (code, status)
    assert "no, says the provider" in ended.error.message
    assert len(session.of(Kind.ERROR)) == 1
    await driver.send(session.prompt("And now?"))  # its second idle is not the end of this one
    assert (await session.turn_ended()).status == COMPLETED


@pytest.mark.parametrize("status", [429, 500])
async def test_a_passing_failure_of_the_provider_is_tried_again(
    bench: OpenCodeBench, model: ChatCompletionsServer, status: int
) -> None:
    model.script(error(status, "later", headers={"retry-after": "0"}), reply(text("Hello.")))
    session = bench.session()
    await session.driver().send(session.prompt("Hello"))
    assert (await session.turn_ended()).status == COMPLETED
    [retried] = [e.error for e in session.of(Kind.ERROR)]
    assert retried.will_retry
    assert session.texts == ["Hello."]


async def test_a_provider_that_can_not_be_reached_is_given_up(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    async with make_bench(guards=Guards(retries=1)) as bench, model.refusing():
        session = bench.session()
        await session.driver().send(session.prompt("Hello"))
        ended = await session.turn_ended()
        assert ended.status == FAILED
        assert ended.error.code == error_pb2.ERROR_CODE_NETWORK
        assert "2 attempts" in ended.error.message


async def test_a_model_that_breaks_off_again_and_again_is_given_up(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("partial"), finish_reason="", repeat=True))
    async with make_bench(guards=Guards(unfinished_steps=3)) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Hello"))
        ended = await session.turn_ended()
        assert ended.status == FAILED
        assert "broke off 3 times" in ended.error.message
        assert ended.error.code == error_pb2.ERROR_CODE_PROVIDER_FAILED


async def test_an_unknown_mode_fails_the_turn(bench: OpenCodeBench) -> None:
    session = bench.session(mode="nobody")
    await session.driver().send(session.prompt("Hello"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert "nobody" in ended.error.message


async def test_an_unknown_model_fails_the_turn_and_not_the_next(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Hello.")))
    session = bench.session(model="fake/none")
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    ended = await session.turn_ended()
    assert (ended.status, ended.error.code) == (FAILED, error_pb2.ERROR_CODE_MODEL_NOT_FOUND)
    await driver.update(model="fake/main")
    await driver.send(session.prompt("And now?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert len(session.of(Kind.ERROR)) == 1


async def test_a_broken_configuration_is_said_with_the_first_message(
    bench: OpenCodeBench,
) -> None:
    session = bench.session(agent_options={"config": '{"model": 7}'})
    with pytest.raises(AgentFailed, match="ConfigInvalid"):
        await session.driver().send(session.prompt("Hello"))


async def test_a_session_that_is_not_there_is_not_begun_anew(bench: OpenCodeBench) -> None:
    session = bench.session(resume_native_session_id="ses_0000000000000000000000000")
    with pytest.raises(AgentFailed) as failed:
        await session.driver().send(session.prompt("Hello"))
    assert failed.value.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND


async def test_a_server_killed_mid_turn_ends_it_and_the_next_message_starts_another(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Begun", hang())), reply(text("Back.")))
    first, second = bench.session(), bench.session()
    driver = first.driver()
    await driver.send(first.prompt("Remember the word blue"))
    await first.text_delta("Begun")
    pid = bench.server_pid()
    os.kill(pid, signal.SIGKILL)
    exit = await first.exit()
    assert not exit.expected
    assert exit.signal == signal.SIGKILL
    assert not second.exits  # it had not started one
    await driver.send(first.prompt("Go on"))
    assert (await first.turn_ended()).status == COMPLETED
    assert bench.server_pid() != pid
    assert "Remember the word blue" in json.dumps(model.requests[1].messages)
    assert len(first.exits) == 1


async def test_a_tool_does_not_outlive_its_server(
    bench: OpenCodeBench, model: ChatCompletionsServer, processes: ProcessHost
) -> None:
    line = "echo begun; sleep 300"
    model.script(reply(tool_call("bash", {"command": line, "description": "x"}, id="call_1")))
    session = bench.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.driver().send(session.prompt("Sleep"))
    await session.until(
        lambda d: d.kind is Kind.ITEM_DELTA and "begun" in d.event.item_delta.text, "output"
    )
    os.kill(bench.server_pid(), signal.SIGKILL)
    await session.exit()
    assert not find_marked(processes.instance_id)


async def test_a_new_driver_resumes_the_conversation(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Noted.")), reply(text("It was blue.")))
    session = bench.session()
    first = session.driver()
    await first.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await first.close()
    await session.driver().send(session.prompt("Which was it?"))
    await session.turn_ended()
    assert session.texts == ["Noted.", "It was blue."]
    assert "My color is blue" in json.dumps(model.requests[1].messages)


async def test_closing_a_session_stops_its_turn_and_leaves_the_others(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(
        reply(
            tool_call("bash", {"command": "echo begun; sleep 300", "description": "x"}, id="call_1")
        ),
        reply(text("Other", gate, "s.")),
    )
    bypass = agent_pb2.PERMISSION_MODE_BYPASS
    first, second = bench.session(permission_mode=bypass), bench.session(permission_mode=bypass)
    driver = first.driver()
    await driver.send(first.prompt("Sleep"))
    await first.until(
        lambda d: d.kind is Kind.ITEM_DELTA and "begun" in d.event.item_delta.text, "output"
    )
    await second.driver().send(second.prompt("Talk"))
    await second.text_delta("Other")
    await driver.close()
    assert (await first.turn_ended()).status == INTERRUPTED
    gate.open()
    assert (await second.turn_ended()).status == COMPLETED


# --- a broken event stream -----------------------------------------------------------------------


async def test_a_stream_cut_in_the_middle_of_a_message_loses_and_repeats_nothing(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    missed, seen = Gate("missed"), Gate("seen")
    words = [f"w{number} " for number in range(30)]
    model.script(reply(text(*words[:10], missed, *words[10:20], seen, *words[20:])))
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Count"))
        await session.text_delta("w9 ")
        proxy.cut_events()
        missed.open()
        await seen.reached()
        proxy.let_events_pass()
        await proxy.streams_opened(2)
        seen.open()
        assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["".join(words)]
    assert "".join(session.deltas) == "".join(words)
    assert session.deltas[:10] == words[:10]


async def test_a_turn_that_ended_unseen_is_ended(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(reply(text("Begun, ", gate, "done.")))
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Go"))
        await session.text_delta("Begun, ")
        proxy.cut_events()
        gate.open()
        await model.requests[0].ended.wait()
        await bench.idle(session)
        proxy.let_events_pass()
        assert (await session.turn_ended()).status == COMPLETED
        assert session.texts == ["Begun, done."]
        assert "".join(session.deltas) == "Begun, done."


async def test_a_permission_asked_unseen_is_asked(
    make_bench: MakeBench, model: ChatCompletionsServer, workspace: Path
) -> None:
    gate = Gate()
    model.script(
        reply(
            text("Let me. "),
            gate,
            tool_call("bash", {"command": "echo hi > a.txt", "description": "x"}, id="call_1"),
        ),
        reply(text("Done."), when=result_of("call_1")),
    )
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        driver = session.driver()
        await driver.send(session.prompt("Go"))
        await session.text_delta("Let me. ")
        proxy.cut_events()
        gate.open()
        await bench.asks(session)
        proxy.let_events_pass()
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        await driver.answer(asked.request_id, allowed())
        assert (await session.turn_ended()).status == COMPLETED
    assert (workspace / "a.txt").exists()
    assert session.texts == ["Let me. ", "Done."]
    assert set(session.tool_results) == {"call_1"}


async def test_a_silent_server_is_killed_and_its_turn_ends(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    limits = Limits(silence_seconds=1, dead_seconds=1, request_seconds=1, abort_seconds=1)
    model.script(reply(text("Begun", hang())))
    async with make_bench(limits=limits) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Go"))
        await session.text_delta("Begun")
        os.kill(bench.server_pid(), signal.SIGSTOP)
        exit = await session.exit()
        assert not exit.expected
        assert exit.code == error_pb2.ERROR_CODE_AGENT_PROTOCOL


async def test_large_output_arrives_as_the_agent_cuts_it(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    line = "for i in $(seq 1 4000); do echo line $i äöü; done"
    model.script(
        reply(tool_call("bash", {"command": line, "description": "x"}, id="call_1")),
        reply(text("Much."), when=result_of("call_1")),
    )
    session = bench.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.driver().send(session.prompt("Go"))
    assert (await session.turn_ended()).status == COMPLETED
    output = session.tool_results["call_1"].output
    assert len(output) > 20_000
    assert "truncated" in output
    assert "äöü" in output
