"""Ending and deleting sessions."""

import asyncio

import pytest

from agentstream.v1 import error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import Answer, Prompt
from tests.support.scripted_adapter import Script, ScriptedDriver, nothing
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import ACCEPT, Lab, Refused, laboratory, until

ENDED = session_pb2.SESSION_STATE_ENDED


async def running(lab: Lab) -> ScriptedDriver:
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


async def test_an_idle_session_ends(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    shown = await lab.manager.end("s")
    assert shown.state == ENDED
    (ended,) = await lab.only("session_ended")
    assert ended.reason == event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT
    assert ended.ended_by == event_pb2.SESSION_ENDER_CLIENT
    assert ended.exit_code == 0
    assert shown.latest_sequence == len(await lab.durable())
    assert driver.forgotten


async def test_a_running_turn_is_interrupted_first(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await driver.ask()
    await lab.send("second", when_busy=service_pb2.WHEN_BUSY_QUEUE)
    shown = await lab.manager.end("s")
    assert (shown.state, shown.turn_id, len(shown.queue)) == (ENDED, "", 0)
    (ended,) = await lab.only("turn_ended")
    assert ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    assert script.calls.index("interrupt") < script.calls.index("close")
    assert script.prompts == ["first"]
    assert not await lab.log.get_prefix("s", "queue/")


async def test_an_agent_that_ignores_the_interrupt_is_stopped(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("grace")
    async with laboratory(directory, interrupt_grace_seconds=0.01) as lab:
        lab.script.on_interrupt = nothing
        await running(lab)
        assert (await lab.manager.end("s")).state == ENDED


async def test_a_driver_that_fails_to_close_does_not_keep_a_session_from_ending(
    lab: Lab, script: Script
) -> None:
    async def fault(driver: ScriptedDriver) -> None:
        raise ZeroDivisionError

    script.on_interrupt = script.on_close = fault
    await running(lab)
    assert (await lab.manager.end("s")).state == ENDED


async def test_ending_again_is_fine(lab: Lab) -> None:
    await lab.create()
    ended = await asyncio.gather(*(lab.manager.end("s") for _ in range(5)))
    assert {one.state for one in ended} == {ENDED}
    assert (await lab.manager.end("s")).state == ENDED
    await lab.restart()
    assert (await lab.manager.end("s")).state == ENDED
    assert len(await lab.only("session_ended")) == 1


async def test_who_ends_a_session_that_is_ending_waits_for_it(lab: Lab, script: Script) -> None:
    gone = asyncio.Event()

    async def on_close(driver: ScriptedDriver) -> None:
        await gone.wait()

    script.on_close = on_close
    driver = await running(lab)
    await driver.end_turn()
    first = asyncio.ensure_future(lab.manager.end("s"))
    await until(lambda: "close" in script.calls)
    second = asyncio.ensure_future(lab.manager.end("s"))
    first.cancel()
    await asyncio.wait([first])
    with Refused(error_pb2.ERROR_REASON_SESSION_ENDED):
        await lab.send()
    assert not second.done()
    gone.set()
    assert (await second).state == ENDED


async def test_nothing_can_be_asked_of_a_session_that_has_ended(lab: Lab) -> None:
    driver = await running(lab)
    await driver.ask()
    turn_id = (await lab.get()).turn_id
    await lab.manager.end("s")
    with Refused(error_pb2.ERROR_REASON_SESSION_ENDED):
        await lab.send("second")
    with Refused(error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED):
        await lab.respond("ask", ACCEPT)
    with Refused(error_pb2.ERROR_REASON_TURN_NOT_RUNNING):
        await lab.interrupt()
    assert (await lab.interrupt(turn_id=turn_id)).turn_id == turn_id
    await driver.say("posthumous")
    assert (await lab.kinds())[-1] == "session_ended"


async def test_an_ended_session_leaves_the_memory(lab: Lab) -> None:
    await lab.create()
    await lab.manager.end("s")
    await until(lambda: len(lab.manager._live) == 0)
    assert (await lab.get()).state == ENDED


async def test_a_log_that_is_out_does_not_take_the_end(lab: Lab) -> None:
    await lab.create()
    lab.gate.error = disk_full()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.manager.end("s")
    lab.gate.error = None
    await lab.until("session_ended")
    await until(lambda: len(lab.manager._live) == 0)
    assert (await lab.manager.end("s")).state == ENDED


async def test_a_deleted_session_is_forgotten(lab: Lab) -> None:
    driver = await running(lab)
    await driver.ask()
    await lab.manager.delete("s")
    for call in (lab.get(), lab.send(), lab.manager.end("s"), lab.manager.delete("s")):
        with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND, session_id="s"):
            await call
    assert not (await lab.manager.list(service_pb2.ListSessionsRequest())).sessions
    assert driver.forgotten
    uid = (await lab.create()).uid
    assert (await lab.get()).uid == uid
    assert await lab.kinds() == ["session_started"]


async def test_of_many_deletions_at_once_one_deletes(lab: Lab) -> None:
    await running(lab)
    results = await asyncio.gather(
        *(lab.manager.delete("s") for _ in range(5)), return_exceptions=True
    )
    assert results.count(None) == 1
    for result in results:
        if result is not None:
            with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
                raise result


async def test_a_late_deletion_spares_the_next_session_of_the_name(lab: Lab) -> None:
    await running(lab)
    first, second, made = await asyncio.gather(
        lab.manager.delete("s"), lab.manager.delete("s"), lab.create(), return_exceptions=True
    )
    made = made if isinstance(made, session_pb2.Session) else await lab.create()
    assert first is None or second is None
    with_uid = {info.uid async for info in lab.log.scan("session")}
    assert with_uid in ({made.uid}, set())


async def test_a_deletion_goes_on_without_its_caller(lab: Lab, script: Script) -> None:
    gone = asyncio.Event()

    async def on_close(driver: ScriptedDriver) -> None:
        await gone.wait()

    script.on_close = on_close
    await running(lab)
    call = asyncio.ensure_future(lab.manager.delete("s"))
    await until(lambda: "close" in script.calls)
    call.cancel()
    await asyncio.wait([call])
    gone.set()
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        while True:
            await lab.manager.end("s")


async def test_who_waits_for_something_of_a_deleted_session_learns_it(
    lab: Lab, script: Script
) -> None:
    async def never(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        await asyncio.Event().wait()

    driver = await running(lab)
    await driver.ask()
    script.on_answer = never
    answering = asyncio.ensure_future(lab.respond("ask", ACCEPT))
    await until(lambda: "answer" in script.calls)
    await lab.manager.delete("s")
    with Refused(error_pb2.ERROR_REASON_SESSION_DELETED, session_id="s"):
        await answering


async def test_who_waits_for_the_agent_when_the_daemon_stops_is_told_so(
    lab: Lab, script: Script
) -> None:
    async def never(driver: ScriptedDriver, prompt: Prompt) -> None:
        await asyncio.Event().wait()

    await running(lab)
    script.on_steer = never
    steering = asyncio.ensure_future(lab.send("more", when_busy=service_pb2.WHEN_BUSY_STEER))
    await until(lambda: "steer" in script.calls)
    await lab.restart()
    with Refused(error_pb2.ERROR_REASON_SERVER_DRAINING):
        await steering


async def test_a_daemon_that_has_stopped_loads_nothing_any_more(lab: Lab) -> None:
    await lab.create()
    await lab.manager.drain()
    for call in (lab.send(), lab.interrupt(), lab.respond("ask", ACCEPT), lab.manager.end("s")):
        with Refused(error_pb2.ERROR_REASON_SERVER_DRAINING):
            await call
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE
