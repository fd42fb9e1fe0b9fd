"""The driver of OpenCode on the real server: what fails, and what dies."""

import json
import os
import signal

import pytest

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
)
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    Gate,
    error,
    hang,
    reply,
    text,
    tool_call,
)
from tests.support.opencode_bench import (
    MakeBench,
    OpenCodeBench,
)

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, error_pb2.ERROR_CODE_INVALID_REQUEST),
        (401, error_pb2.ERROR_CODE_AUTHENTICATION),
        (402, error_pb2.ERROR_CODE_QUOTA_EXCEEDED),
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


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "You exceeded your current quota, please check your plan and billing details.",
            error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
        ),
        ("Too many requests", error_pb2.ERROR_CODE_RATE_LIMITED),
    ],
    ids=["quota", "rate"],
)
async def test_a_limit_that_does_not_pass_is_given_up_and_named(
    make_bench: MakeBench,
    model: ChatCompletionsServer,
    message: str,
    code: error_pb2.ErrorCode.ValueType,
) -> None:
    model.script(error(429, message, headers={"retry-after": "0"}, repeat=True))
    async with make_bench(guards=Guards(retries=1)) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Hello"))
        ended = await session.turn_ended()
        assert (ended.status, ended.error.code) == (FAILED, code)


async def test_a_conversation_that_can_not_be_made_to_fit_fails_the_turn(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    too_long = error(400, "This model's maximum context length is 10 tokens", repeat=True)
    model.script(reply(text("Hello.")), too_long)
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    await session.turn_ended()
    await driver.send(session.prompt("Go on"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED


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
