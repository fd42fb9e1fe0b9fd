"""Claude Code through the daemon: interrupts, wherever a turn is."""

import asyncio
import os
import select
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, item_pb2
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    error,
    hang,
    reply,
    says,
    text,
    tool_use,
)
from tests.support.e2e import COMPLETED, INTERRUPTED, QUEUE, Bench, Session, refused
from tests.support.laboratory import CLAUDE_VERSIONS
from tests.support.model_server import DEADLINE

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

CANCELLED = interaction_pb2.REQUEST_OUTCOME_CANCELLED


async def interrupted(session: Session) -> None:
    """Interrupt, and see that the turn ended so and is the one that was said to."""
    response = await session.interrupt()
    assert response.status == INTERRUPTED
    ended = await session.find("turn_ended", lambda e: e.turn_id == response.turn_id)
    assert ended.sequence == response.sequence
    assert ended.turn_ended.status == INTERRUPTED
    assert not ended.turn_ended.HasField("error")


@EVERY_CLAUDE
async def test_while_text_streams(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("This is ", hang(), "never said")), reply(text("Yes?")))
    session = await bench.session()
    await session.send("Talk")
    await session.delta("This is ")
    await interrupted(session)
    [message] = [i for i in session.items if i.role == item_pb2.ITEM_ROLE_ASSISTANT]
    assert message.status == item_pb2.ITEM_STATUS_FAILED
    assert message.content[0].text.text == "This is "
    assert (await session.turn("Still there?")).status == COMPLETED
    assert session.texts == ["Yes?"]


@EVERY_CLAUDE
async def test_while_a_tool_runs(bench: Bench, model: AnthropicServer, tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    command = f"echo $$ > {fifo}; sleep 1000"
    model.script(
        reply(tool_use("Bash", {"command": command}, id="toolu_sleep")), reply(text("Yes?"))
    )
    session = await bench.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.send("Sleep")
    handle = os.pidfd_open(int(await asyncio.to_thread(fifo.read_text)))
    await interrupted(session)
    gone: list[int] = (await asyncio.to_thread(select.select, [handle], [], [], DEADLINE))[0]
    assert gone, "the tool lives on"
    os.close(handle)
    assert session.result("toolu_sleep").content[0].tool_result.is_error
    assert (await session.turn("Still there?")).status == COMPLETED


@EVERY_CLAUDE
async def test_while_a_permission_waits(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x")), reply(text("Yes?")))
    session = await bench.session()
    await session.send("Touch it")
    asked = await session.permission()
    await interrupted(session)
    [resolved] = session.of("permission_resolved")
    assert resolved.permission_resolved.outcome == CANCELLED
    with pytest.raises(aio.AioRpcError) as failed:
        await session.decide(asked)
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "REQUEST_ALREADY_RESOLVED")
    assert not (bench.workspace / "x").exists()
    assert (await session.turn("Still there?")).status == COMPLETED


@EVERY_CLAUDE
async def test_while_a_question_waits(bench: Bench, model: AnthropicServer) -> None:
    questions = [
        {
            "question": "Which color?",
            "header": "Color",
            "multiSelect": False,
            "options": [{"label": n, "description": n} for n in ("Red", "Blue")],
        }
    ]
    model.script(
        reply(tool_use("AskUserQuestion", {"questions": questions}, id="toolu_ask")),
        reply(text("Yes?")),
    )
    session = await bench.session()
    await session.send("Ask me")
    await session.question()
    await interrupted(session)
    [resolved] = session.of("question_resolved")
    assert resolved.question_resolved.outcome == CANCELLED
    assert session.result("toolu_ask").content[0].tool_result.is_error
    assert (await session.turn("Still there?")).status == COMPLETED


@EVERY_CLAUDE
async def test_while_the_model_is_asked_again_and_again(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        error(429, "rate_limit_error", "Slow down", headers={"retry-after": "60"}),
        reply(text("Yes?"), when=says("Still there?")),
    )
    session = await bench.session()
    await session.send("Talk")
    retry = (await session.next("error")).error
    assert retry.will_retry
    assert (retry.code, retry.http_status) == (error_pb2.ERROR_CODE_RATE_LIMITED, 429)
    await interrupted(session)
    assert (await session.turn("Still there?")).status == COMPLETED


@EVERY_CLAUDE
async def test_right_after_the_message(bench: Bench, model: AnthropicServer) -> None:
    # Whether the CLI has asked the model by then is its own affair.
    model.script(
        reply(text("Yes?"), when=says("Still there?")), reply(text("Never ", hang()), repeat=True)
    )
    session = await bench.session()
    await session.send("Never mind")
    await interrupted(session)
    assert (await session.turn("Still there?")).status == COMPLETED


@EVERY_CLAUDE
async def test_the_next_message_that_waits_follows(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("This is ", hang())), reply(text("Next."), when=says("Next")))
    session = await bench.session()
    await session.send("Talk")
    await session.delta("This is ")
    queued = await session.send("Next", when_busy=QUEUE)
    await interrupted(session)
    assert (await session.turn_ended(queued.turn_id)).status == COMPLETED
    assert session.texts == ["Next."]


async def test_when_nothing_runs_it_is_refused(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("Done.")))
    session = await bench.session()
    await session.turn("Do it")
    with pytest.raises(aio.AioRpcError) as failed:
        await session.interrupt()
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "TURN_NOT_RUNNING")


async def test_ending_the_session_interrupts_its_turn(bench: Bench, model: AnthropicServer) -> None:
    gate = Gate()
    model.script(reply(text("This is ", gate, "never said")))
    session = await bench.session()
    await session.send("Talk")
    await session.delta("This is ")
    await session.end()
    assert await session.stream_ended() is None
    assert session.of("turn_ended")[0].turn_ended.status == INTERRUPTED
    ended = session.of("session_ended")[0].session_ended
    assert ended.reason == event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT
    assert bench.lab.processes() == []
