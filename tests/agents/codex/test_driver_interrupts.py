"""The driver of Codex: interrupts, wherever a turn is, and steering."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from agentstream.v1 import (
    item_pb2,
)
from agentstreamd.adapters.base import NotDelivered
from agentstreamd.model import Kind
from tests.support.codex_driver import (
    BYPASS,
    COMPLETED,
    INTERRUPTED,
    NewSession,
    allowed,
    readable,
    shell,
)
from tests.support.responses_server import (
    ResponsesServer,
    hang,
    reply,
    text,
)


async def test_an_interrupt_stops_the_text_and_the_session_goes_on(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("This is ", hang(), "never said")), reply(text("Yes?")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("This is ")
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert not session.exits


async def test_an_interrupt_waits_for_the_turn_to_begin(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(hang(), repeat=True))
    session = new_session()
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("Never mind")))
    await asyncio.sleep(0)  # the send has begun
    await driver.interrupt()
    await sending
    assert (await session.turn_ended()).status == INTERRUPTED
    await driver.interrupt()  # nothing runs: nothing to do


async def test_an_interrupt_ends_the_running_command(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    fifo = workspace / "pid"
    os.mkfifo(fifo)
    model.script(reply(shell("echo $$ > pid; exec sleep 600")))
    session = new_session(permission_mode=BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    pid = int(await asyncio.to_thread(fifo.read_text))
    await session.until(
        lambda draft: (
            draft.kind is Kind.ITEM_COMPLETED
            and draft.event.item_completed.item.item_id == "call_1"
        ),
        "call",
    )
    handle = os.pidfd_open(pid)
    try:
        await driver.interrupt()
        assert (await session.turn_ended()).status == INTERRUPTED
        await readable(handle)  # it is gone
    finally:
        os.close(handle)
    late = (await session.next(Kind.ITEM_COMPLETED)).item_completed.item
    assert late.parent_id == "call_1"
    assert late.content[0].status.label == "late_output"
    assert "exit code -1" in late.content[0].status.detail


async def test_an_interrupt_while_a_permission_is_asked_for_leaves_nothing(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(shell("touch a.txt")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())


async def test_a_steering_message_goes_into_the_running_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("word ", hang())), reply(text("Steered.")))
    session = new_session()
    driver = session.driver()
    with pytest.raises(NotDelivered):
        await driver.steer(session.prompt("too early"))
    await driver.send(session.prompt("Go"))
    await session.text_delta("word ")
    await driver.steer(session.prompt("also do that"))
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert len(session.of(Kind.TURN_ENDED)) == 1
    assert "also do that" in json.dumps(model.requests[1].input)
    first, second = [
        e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
        if e.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
    ]
    assert first.superseded_by == second.item_id
    assert first.status == item_pb2.ITEM_STATUS_FAILED
    assert second.content[0].text.text == "Steered."
