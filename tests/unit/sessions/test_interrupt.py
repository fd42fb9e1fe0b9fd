"""Stopping turns."""

import asyncio

import pytest

from agentstream.v1 import error_pb2, event_pb2, service_pb2
from agentstreamd.adapters.base import AgentExit, AgentFailed, Prompt
from tests.support.scripted_adapter import Script, ScriptedDriver, nothing
from tests.unit.sessions.lab import Lab, Refused, laboratory, until

QUEUE = service_pb2.WHEN_BUSY_QUEUE
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED


async def running(lab: Lab) -> ScriptedDriver:
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


async def test_it_returns_when_the_turn_has_ended(lab: Lab) -> None:
    driver = await running(lab)
    await driver.ask()
    turn_id = (await lab.get()).turn_id
    answer = await lab.interrupt()
    assert (answer.turn_id, answer.status) == (turn_id, INTERRUPTED)
    event = (await lab.events())[answer.sequence - 1]
    assert event.turn_ended.status == INTERRUPTED
    assert not event.synthetic
    assert not (await lab.get()).pending_requests


async def test_a_turn_that_completes_meanwhile_is_completed(lab: Lab, script: Script) -> None:
    async def on_interrupt(driver: ScriptedDriver) -> None:
        await driver.end_turn()

    script.on_interrupt = on_interrupt
    await running(lab)
    assert (await lab.interrupt()).status == event_pb2.TURN_STATUS_COMPLETED


@pytest.mark.parametrize("error", [AgentFailed("deaf"), ZeroDivisionError("a fault")])
async def test_an_agent_that_can_not_be_told_is_stopped(
    lab: Lab, script: Script, error: Exception
) -> None:
    async def on_interrupt(driver: ScriptedDriver) -> None:
        raise error

    script.on_interrupt = on_interrupt
    await running(lab)
    assert (await lab.interrupt()).status == INTERRUPTED
    assert script.calls[-2:] == ["interrupt", "close"]
    await lab.send("next")
    await until(lambda: len(script.prompts) == 2)
    await script.driver.end_turn()


@pytest.mark.parametrize("on_interrupt", ["ignores", "hangs"])
async def test_an_agent_that_does_not_obey_is_stopped(
    tmp_path_factory: pytest.TempPathFactory, on_interrupt: str
) -> None:
    async def hang(driver: ScriptedDriver) -> None:
        await asyncio.Event().wait()

    directory = tmp_path_factory.mktemp("grace")
    async with laboratory(directory, interrupt_grace_seconds=0.01) as lab:
        lab.script.on_interrupt = nothing if on_interrupt == "ignores" else hang
        await running(lab)
        assert (await lab.interrupt()).status == INTERRUPTED
        assert "agent_exited" not in str(await lab.events())
        (ended,) = await lab.only("turn_ended")
        assert not ended.HasField("error")


async def test_a_driver_that_fails_to_close_ends_the_turn_all_the_same(
    lab: Lab, script: Script
) -> None:
    async def fault(driver: ScriptedDriver) -> None:
        raise ZeroDivisionError

    script.on_interrupt = script.on_close = fault
    await running(lab)
    assert (await lab.interrupt()).status == INTERRUPTED
    script.on_close = nothing


async def test_many_interrupts_at_once_are_one(lab: Lab, script: Script) -> None:
    await running(lab)
    answers = await asyncio.gather(*(lab.interrupt() for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert script.calls.count("interrupt") == 1


async def test_an_interrupt_goes_on_without_its_caller(lab: Lab, script: Script) -> None:
    told = asyncio.Event()

    async def on_interrupt(driver: ScriptedDriver) -> None:
        await told.wait()
        await driver.end_turn(INTERRUPTED)

    script.on_interrupt = on_interrupt
    await running(lab)
    call = asyncio.ensure_future(lab.interrupt())
    await until(lambda: "interrupt" in script.calls)
    call.cancel()
    await asyncio.wait([call])
    told.set()
    await lab.until("turn_ended")


async def test_a_message_the_agent_does_not_have_yet_never_reaches_it(
    lab: Lab, script: Script
) -> None:
    await lab.create()
    lab.gate.shut()
    sending = asyncio.ensure_future(lab.send())
    await asyncio.to_thread(lab.gate.reached.wait)
    interrupting = asyncio.ensure_future(lab.interrupt())
    await until(lambda: lab.manager._live.get("s").runtime.keeper.turn_id == "")  # type: ignore[union-attr]
    lab.gate.open()
    assert (await interrupting).status == INTERRUPTED
    await sending
    await lab.send("next")
    await until(lambda: script.prompts)
    assert script.prompts == ["next"]
    assert "interrupt" not in script.calls


async def test_an_interrupt_while_the_agent_starts(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    closed = asyncio.Event()

    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        if driver.prompts == ["first"]:
            await closed.wait()
            raise AgentFailed("the start was ended")

    async def on_close(driver: ScriptedDriver) -> None:
        closed.set()

    async with laboratory(tmp_path_factory.mktemp("start"), interrupt_grace_seconds=0.01) as lab:
        script = lab.script
        script.on_send, script.on_close, script.on_interrupt = on_send, on_close, nothing
        await running(lab)
        await lab.send("next", when_busy=QUEUE)
        assert (await lab.interrupt()).status == INTERRUPTED
        await until(lambda: script.prompts == ["first", "next"])
        assert "error" not in await lab.kinds()


async def test_the_next_message_waits_for_the_stop_of_the_agent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    gone = asyncio.Event()

    async def on_close(driver: ScriptedDriver) -> None:
        # The end of the turn comes before the agent is quite gone.
        driver.exit(AgentExit(expected=True))
        await gone.wait()

    async with laboratory(tmp_path_factory.mktemp("stop"), interrupt_grace_seconds=0.01) as lab:
        lab.script.on_close, lab.script.on_interrupt = on_close, nothing
        await running(lab)
        await lab.send("next", when_busy=QUEUE)
        interrupting = asyncio.ensure_future(lab.interrupt())
        await lab.until("turn_started", 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert lab.script.prompts == ["first"]
        gone.set()
        await until(lambda: lab.script.prompts == ["first", "next"])
        assert (await interrupting).status == INTERRUPTED


async def test_a_turn_that_has_ended_may_be_interrupted(lab: Lab) -> None:
    driver = await running(lab)
    turn_id = (await lab.get()).turn_id
    await driver.end_turn()
    first = await lab.interrupt(turn_id=turn_id)
    assert first.status == event_pb2.TURN_STATUS_COMPLETED
    assert (await lab.events())[first.sequence - 1].turn_id == turn_id
    await lab.restart()
    assert await lab.interrupt(turn_id=turn_id) == first


async def test_an_earlier_turn_does_not_stop_the_running_one(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    turn_id = (await lab.get()).turn_id
    await driver.end_turn()
    second = await lab.send("second")
    assert (await lab.interrupt(turn_id=turn_id)).turn_id == turn_id
    assert (await lab.get()).turn_id == second.turn_id
    assert "interrupt" not in script.calls


@pytest.mark.parametrize("turn_id", ["", "turn_unheard_of"])
async def test_without_a_turn_there_is_nothing_to_interrupt(lab: Lab, turn_id: str) -> None:
    driver = await running(lab)
    await driver.end_turn()
    with Refused(error_pb2.ERROR_REASON_TURN_NOT_RUNNING, session_id="s", turn_id=turn_id):
        await lab.interrupt(turn_id=turn_id)


@pytest.mark.parametrize("discard_queue", [True, False])
async def test_the_queue_goes_on_unless_it_is_discarded(
    lab: Lab, script: Script, discard_queue: bool
) -> None:
    await running(lab)
    await lab.send("second", when_busy=QUEUE, client_message_id="c")
    await lab.interrupt(discard_queue=discard_queue)
    if discard_queue:
        assert not (await lab.get()).queue
        assert not (await lab.only("session_updated"))[-1].queue.messages
        await lab.restart()
        assert script.prompts == ["first"]
    else:
        await until(lambda: script.prompts == ["first", "second"])
        await script.driver.end_turn()


async def test_the_queue_can_be_discarded_though_the_turn_has_ended(lab: Lab) -> None:
    driver = await running(lab)
    turn_id = (await lab.get()).turn_id
    await lab.send("second", when_busy=QUEUE)
    await driver.end_turn()
    await lab.interrupt(turn_id=turn_id, discard_queue=True)
    assert not (await lab.get()).queue
