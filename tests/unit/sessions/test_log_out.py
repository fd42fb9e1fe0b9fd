"""A log that does not take events for a while, or never."""

import asyncio
from pathlib import Path

import pytest

from agentstream.v1 import error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.events import Record
from agentstreamd.sessions.errors import SessionError, draining
from agentstreamd.sessions.journal import Journal
from tests.support.scripted_adapter import Script, ScriptedDriver, message
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import Lab, Refused, laboratory, until


async def running(lab: Lab) -> ScriptedDriver:
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


async def test_nothing_is_lost_once_the_log_is_back(lab: Lab) -> None:
    driver = await running(lab)
    await lab.get()
    lab.gate.error = disk_full()
    for number in range(10):
        await driver.say(f"text {number}")
    await driver.end_turn()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, detail="database or disk is full"):
        await lab.update("title", title="T")
    # Only what is durable is said to be there.
    assert (await lab.get()).latest_sequence == len(await lab.durable())
    lab.gate.error = None
    await lab.until("turn_ended")
    texts = [i.item.content[0].text.text for i in await lab.only("item_completed")]
    assert texts == ["first", *(f"text {number}" for number in range(10))]


async def test_the_agent_waits_while_too_much_is_not_durable(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("room")
    async with laboratory(directory, commit_backlog_bytes=100_000) as lab:
        driver = await running(lab)
        await lab.get()
        lab.gate.shut()
        published = 0

        async def talk() -> None:
            nonlocal published
            for _ in range(50):
                await driver.say("x" * 10_000)
                published += 1

        talking = asyncio.ensure_future(talk())
        await asyncio.to_thread(lab.gate.reached.wait)
        for _ in range(100):
            await asyncio.sleep(0)
        assert 1 <= published < 20
        lab.gate.open()
        await talking
        await driver.end_turn()
        assert len(await lab.only("item_completed")) == 51


async def test_blobs_count_against_the_room(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("room")
    async with laboratory(directory, commit_backlog_bytes=3_000_000) as lab:
        driver = await running(lab)
        await lab.get()
        lab.gate.shut()
        first = asyncio.ensure_future(driver.publish(message("m", "x" * 4_000_000)[1]))
        await asyncio.to_thread(lab.gate.reached.wait)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        lab.gate.open()
        await first


async def test_a_daemon_that_stops_while_the_log_is_out_stops(lab: Lab) -> None:
    driver = await running(lab)
    await lab.get()
    lab.gate.error = disk_full()
    await driver.say("lost")
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.manager.end("s")
    await lab.manager.drain()
    lab.gate.error = None
    await lab.restart()
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE
    (ended,) = await lab.only("turn_ended")
    assert ended.error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED


async def test_a_session_that_can_not_be_recovered_now_is_recovered_when_it_is_used(
    lab: Lab, script: Script
) -> None:
    driver = await running(lab)
    await lab.send("second", when_busy=service_pb2.WHEN_BUSY_QUEUE)
    await driver.ask()
    await lab.get()
    lab.gate.error = disk_full()
    await lab.manager.drain()
    await lab.log.close()
    await lab.start(disk_full())
    assert (await lab.get()).state == session_pb2.SESSION_STATE_RUNNING
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.interrupt()
    assert script.prompts == ["first"]
    lab.gate.error = None
    with Refused(error_pb2.ERROR_REASON_TURN_IN_PROGRESS):
        await lab.send("third")
    await until(lambda: script.prompts == ["first", "second"])
    await script.driver.end_turn()


@pytest.fixture
async def journal(lab: Lab) -> Journal:
    await lab.log.create_session("j", "uid", records=[record(1)])
    return Journal(lab.log, "j", sequence=1, backlog_bytes=1000)


def record(sequence: int) -> Record:
    event = event_pb2.Event(sequence=sequence, event_id=f"e{sequence}", session_id="s")
    return Record(event.SerializeToString(), b"", 20)


async def test_who_waits_patiently_waits_until_the_log_is_back(lab: Lab, journal: Journal) -> None:
    lab.gate.error = disk_full()
    ticket = journal.write([record(2)])
    patient = asyncio.ensure_future(journal.settled(ticket))
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await journal.committed(ticket)
    assert not patient.done()
    lab.gate.error = None
    await patient
    assert journal.failure is None
    assert (await lab.log.info("j")).latest == 2


async def test_state_that_is_put_and_deleted_before_it_was_written_is_not_there(
    lab: Lab, journal: Journal
) -> None:
    journal.write((), puts={"a": b"1", "b": b"1"}, deletes=["c"])
    journal.write((), puts={"c": b"1"}, deletes=["a"])
    await journal.committed(journal.write((), deletes=["b"], puts={"b": b"2"}))
    assert [await lab.log.get("j", key) for key in "abc"] == [None, b"2", b"1"]


async def test_after_the_close_nothing_is_taken_and_waiters_learn_why(journal: Journal) -> None:
    await journal.committed(journal.write((), puts={"a": b"1"}))
    await journal.close(draining())
    ticket = journal.write([record(2)])
    for wait in (journal.committed, journal.settled):
        with pytest.raises(SessionError, match="draining"):
            await wait(ticket)
    await journal.room()


async def test_what_was_written_before_the_close_is_durable_after_it(
    lab: Lab, journal: Journal
) -> None:
    journal.write((), puts={"a": b"1"})
    journal.write((), puts={"b": b"1"})
    await journal.close(draining())
    assert [await lab.log.get("j", key) for key in "ab"] == [b"1", b"1"]


async def test_a_session_that_was_deleted_refuses_what_waits(lab: Lab, journal: Journal) -> None:
    await lab.log.delete_session("j")
    with Refused(error_pb2.ERROR_REASON_SESSION_DELETED):
        await journal.settled(journal.write([record(2)]))
    with Refused(error_pb2.ERROR_REASON_SESSION_DELETED):
        await journal.committed(journal.write([record(3)]))


async def test_another_writer_stops_this_one(
    lab: Lab, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.log.append("j", 1, [], puts={"x": b"1"})
    journal._sequence = 7
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await journal.settled(journal.write([record(2)]))
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await journal.committed(journal.write([record(3)]))
    assert "can't be written any more" in caplog.text


async def test_a_session_comes_into_the_log_in_one_write(lab: Lab, tmp_path: Path) -> None:
    journal = Journal(lab.log, "new", sequence=0, backlog_bytes=1, create_uid="u")
    journal.write((), puts={"a": b"1"})
    journal.write([record(1)], puts={"b": b"2"}, blobs=[("blob", b"content")])
    ticket = journal.write([record(2)])
    await journal.room()
    lab.gate.error = disk_full()
    journal.create()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await journal.committed(ticket)
    lab.gate.error = None
    commits = lab.gate.commits
    await journal.settled(ticket)
    assert lab.gate.commits == commits + 1
    assert (await lab.log.info("new")).latest == 2
    assert await lab.log.blob_size("new", "blob") == 7
    await journal.close(draining())
    await lab.log.delete_session("new")


async def test_a_session_that_somebody_else_wrote_to_is_loaded_anew(
    lab: Lab, script: Script
) -> None:
    driver = await running(lab)
    await lab.get()
    live = lab.manager._live.get("s")
    assert live is not None
    live.runtime.journal._sequence += 1
    await driver.say("nobody will read this")
    await until(lambda: live.runtime.journal.broken)
    with Refused(error_pb2.ERROR_REASON_TURN_NOT_RUNNING):
        await lab.interrupt()
    assert not driver.alive
    await lab.send("second")
    await until(lambda: script.prompts == ["first", "second"])
