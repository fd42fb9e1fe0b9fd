"""The driver of OpenCode on the real server: turns that are interrupted."""

import asyncio

import pytest

from agentstream.v1 import (
    agent_pb2,
    event_pb2,
)
from agentstreamd.adapters.base import NotDelivered
from agentstreamd.model import Kind
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    error,
    hang,
    reply,
    text,
    tool_call,
)
from tests.support.opencode_bench import (
    OpenCodeBench,
    allowed,
)

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED


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
