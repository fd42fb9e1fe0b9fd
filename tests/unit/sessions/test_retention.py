"""Retention: what goes, what stays, and that a session goes on with what stays."""

from collections.abc import AsyncIterator
from itertools import repeat
from pathlib import Path

import pytest

from agentstream.v1 import error_pb2, event_pb2, session_pb2
from agentstreamd.events.errors import CursorCompacted, SessionNotFound
from agentstreamd.sessions.retention import Retention, RetentionLimits
from tests.unit.sessions.lab import ACCEPT, SECOND_NS, START_NS, Lab, Refused, until

LONG = "x" * 8000  # more than what is written again together with the next events
ENDED = session_pb2.SESSION_STATE_ENDED


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    # Not `laboratory`: its laws are of whole streams.
    made = Lab(tmp_path)
    await made.start()
    yield made
    await made.stop()


def at(lab: Lab, seconds: float) -> int:
    """Set the clock."""
    now_ns = START_NS + int(seconds * SECOND_NS)
    lab.now = repeat(now_ns)
    return now_ns


async def look(lab: Lab, seconds: float, **limits: float) -> None:
    """One pass, so long after the start."""
    now_ns = at(lab, seconds)
    retention = Retention(
        lab.log,
        lab.manager.delete,
        RetentionLimits(**limits),  # type: ignore[arg-type]
        now_ns=lambda: now_ns,
    )
    await retention.pass_once()


async def turn(lab: Lab, seconds: float) -> None:
    """A turn with an answer that is a stored chunk of its own."""
    at(lab, seconds)
    asked = len(lab.script.prompts)
    await lab.send("go on")
    await until(lambda: len(lab.script.prompts) == asked + 1)
    await lab.script.driver.say(LONG)
    await lab.script.driver.end_turn()
    await until(lambda: not lab.manager.running)


async def kept(lab: Lab) -> list[event_pb2.Event]:
    """What is still there, without a gap."""
    shown = await lab.get()
    found = await lab.durable()
    first, last = shown.earliest_sequence, shown.latest_sequence
    assert [event.sequence for event in found] == list(range(first, last + 1))
    return found


async def test_without_limits_nothing_goes(lab: Lab) -> None:
    at(lab, 0)
    await lab.create()
    await turn(lab, 1)
    await lab.manager.end("s")
    before = await kept(lab)
    async with Retention(lab.log, lab.manager.delete, RetentionLimits()).running():
        await look(lab, 10**9)
    assert await kept(lab) == before
    assert before[0].sequence == 1


async def test_an_ended_session_is_deleted_when_its_time_is_over_and_not_before(lab: Lab) -> None:
    at(lab, 0)
    await lab.create()
    await lab.create("open")
    at(lab, 50)
    await lab.manager.end("s")
    await look(lab, 110, ended_sessions_seconds=60)
    assert (await lab.get()).state == ENDED
    await look(lab, 111, ended_sessions_seconds=60)
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.get()
    assert (await lab.get("open")).state != ENDED


async def test_old_events_go_and_a_reader_that_wants_them_is_told_what_there_is(lab: Lab) -> None:
    at(lab, 0)
    await lab.create()
    for seconds in range(0, 100, 10):
        await turn(lab, seconds)
    await look(lab, 100, event_age_seconds=45)
    events = await kept(lab)
    times = [event.time.ToNanoseconds() - START_NS for event in events]
    assert events[0].sequence > 1
    assert 40 * SECOND_NS < times[0] <= 60 * SECOND_NS
    assert times[-1] == 90 * SECOND_NS
    with await lab.log.open_reader("s") as reader, pytest.raises(CursorCompacted) as told:
        await reader.read(0)
    assert (told.value.earliest, told.value.latest) == (events[0].sequence, events[-1].sequence)


async def test_a_session_keeps_no_more_bytes_than_it_may_and_the_newest_ones(lab: Lab) -> None:
    await lab.create()
    for number in range(10):
        await turn(lab, number)
    latest = (await lab.get()).latest_sequence
    await look(lab, 20, session_bytes=60_000)
    events = await kept(lab)
    assert events[0].sequence > 1
    assert events[-1].sequence == latest
    assert 20_000 < sum(event.ByteSize() for event in events) <= 60_000
    await look(lab, 20, session_bytes=10**9)
    assert await kept(lab) == events


@pytest.mark.parametrize("restart", [False, True])
async def test_what_is_open_stays_and_a_restart_closes_it(lab: Lab, restart: bool) -> None:
    await lab.create()
    await turn(lab, 0)
    await turn(lab, 1)
    at(lab, 2)
    await lab.send("ask")
    await until(lambda: len(lab.script.prompts) == 3)
    for number in range(5):
        await lab.script.driver.say(LONG, f"m{number}")
    await lab.script.driver.ask("p")
    await lab.until("permission_requested")
    open_turn = (await lab.get()).turn_id
    under_way = [event for event in await kept(lab) if event.turn_id == open_turn]
    await look(lab, 10**6, event_age_seconds=1, session_bytes=1)
    events = await kept(lab)
    assert events[0].sequence > 1
    assert [event for event in events if event.turn_id == open_turn] == under_way
    assert under_way[0].WhichOneof("payload") == "turn_started"
    assert len((await lab.get()).pending_requests) == 1
    if restart:
        await lab.crash()
        (ended,) = [e for e in await kept(lab) if e.WhichOneof("payload") == "turn_ended"][-1:]
        assert ended.turn_ended.status == event_pb2.TURN_STATUS_FAILED
        assert not (await lab.get()).pending_requests
    else:
        await lab.respond("p", ACCEPT)
        await lab.script.driver.end_turn()
        await until(lambda: not lab.manager.running)
    await turn(lab, 10**6 + 1)


async def test_the_end_of_a_session_stays_and_it_loads_again(lab: Lab) -> None:
    await lab.create()
    await turn(lab, 1)
    await lab.manager.end("s")
    await look(lab, 10**6, event_age_seconds=1, session_bytes=1)
    await lab.restart()
    assert (await lab.get()).state == ENDED
    assert (await kept(lab))[-1].WhichOneof("payload") == "session_ended"


async def test_a_session_made_anew_meanwhile_is_left_alone(lab: Lab) -> None:
    await lab.create()
    await turn(lab, 1)
    old = await lab.get()
    await lab.manager.end("s")
    await lab.manager.delete("s")
    await lab.create()
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.manager.delete("s", old.uid)
    with pytest.raises(SessionNotFound):
        await lab.log.compact("s", old.latest_sequence, uid=old.uid)
    assert (await kept(lab))[0].sequence == 1
    assert (await lab.get()).state != ENDED


async def test_passes_go_on_in_the_background_and_stop_with_it(lab: Lab) -> None:
    at(lab, 0)
    await lab.create()
    await lab.manager.end("s")
    limits = RetentionLimits(ended_sessions_seconds=1)
    now_ns = START_NS + 10 * SECOND_NS
    deleted: list[str] = []

    async def delete(session_id: str, uid: str) -> None:
        await lab.manager.delete(session_id, uid)
        deleted.append(session_id)

    async with Retention(lab.log, delete, limits, now_ns=lambda: now_ns).running():
        await until(lambda: deleted)
    assert deleted == ["s"]
