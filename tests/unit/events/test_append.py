import asyncio
import sqlite3
from dataclasses import replace

import pytest

from agentstreamd.events import (
    EventLogConfig,
    LogUnavailable,
    Reason,
    Record,
    SequenceConflict,
    SessionExists,
    SessionNotFound,
    SqliteEventLog,
)
from tests.unit.events.helpers import Gate, disk_full, event, opened, read_all, records, rows


async def reached(gate: Gate) -> None:
    await asyncio.get_running_loop().run_in_executor(None, gate.reached.wait)


async def test_append_gives_the_last_sequence_and_the_events_are_read_back(
    log: SqliteEventLog,
) -> None:
    assert await log.create_session("s", "u") == 0
    assert await log.append("s", 0, records(1, 3)) == 3
    assert await log.append("s", 3, records(4, 1)) == 4
    with await log.open_reader("s") as reader:
        assert await read_all(reader) == [event(n) for n in range(1, 5)]


async def test_a_session_can_be_created_together_with_its_first_events(
    log: SqliteEventLog,
) -> None:
    assert await log.create_session("s", "u", puts={"k": b"v"}, records=records(1, 2)) == 2
    assert await log.get("s", "k") == b"v"
    with await log.open_reader("s") as reader:
        assert await read_all(reader) == [event(1), event(2)]
        assert reader.uid == "u"


async def test_a_taken_session_id_is_refused_with_the_uid_it_has(log: SqliteEventLog) -> None:
    first, second = log.create_session("s", "one"), log.create_session("s", "two")
    await first
    with pytest.raises(SessionExists) as caught:
        await second
    assert caught.value.uid == "one"


async def test_append_elsewhere_than_at_the_end_is_refused_and_changes_nothing(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "u", records=records(1, 2))
    for expected in (0, 1, 3):
        with pytest.raises(SequenceConflict) as caught:
            await log.append("s", expected, records(9, 1), puts={"k": b"v"})
        assert (caught.value.expected, caught.value.latest) == (expected, 2)
    assert await log.get("s", "k") is None
    assert (await log.info("s")).latest == 2


async def test_append_to_a_session_that_is_not_there_is_refused(log: SqliteEventLog) -> None:
    with pytest.raises(SessionNotFound):
        await log.append("nowhere", 0, records(1, 1))


async def test_an_append_that_conflicts_does_not_fail_those_committed_with_it(
    log: SqliteEventLog, gate: Gate
) -> None:
    await log.create_session("a", "u")
    await log.create_session("b", "u")
    gate.shut()
    await_first = log.append("a", 0, records(1, 1))
    await reached(gate)
    bad, good = log.append("a", 7, records(8, 1)), log.append("b", 0, records(1, 1))
    gate.open()
    assert await await_first == 1
    assert await good == 1
    with pytest.raises(SequenceConflict):
        await bad


async def test_an_append_that_cannot_be_stored_does_not_fail_those_committed_with_it(
    log: SqliteEventLog, gate: Gate
) -> None:
    await log.create_session("a", "u")
    gate.shut()
    first = log.append("a", 0, records(1, 1))
    await reached(gate)
    # A lone surrogate is no UTF-8: SQLite's binding refuses the key.
    bad = log.append("a", 1, [], puts={"\ud800": b""})
    good = log.append("a", 1, records(2, 1))
    gate.open()
    assert [await first, await good] == [1, 2]
    with pytest.raises(UnicodeEncodeError):
        await bad


async def test_appends_in_flight_take_effect_in_the_order_of_the_calls(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "u")
    pending = [log.append("s", n, records(n + 1, 1)) for n in range(500)]
    assert await asyncio.gather(*pending) == list(range(1, 501))
    with await log.open_reader("s") as reader:
        assert await read_all(reader) == [event(n) for n in range(1, 501)]


async def test_what_queues_up_during_a_commit_is_committed_together(
    log: SqliteEventLog, gate: Gate, config: EventLogConfig
) -> None:
    await log.create_session("s", "u")
    await log.create_session("t", "u")
    gate.shut()
    before = gate.commits
    pending = [log.append("s", 0, records(1, 1))]
    await reached(gate)
    pending += [log.append("s", n, records(n + 1, 1)) for n in range(1, 100)]
    pending += [log.append("t", n, records(n + 1, 1)) for n in range(100)]
    gate.open()
    await asyncio.gather(*pending)
    assert gate.commits - before == 2
    assert len(rows(config.directory, "SELECT id FROM chunks")) == 2


async def test_an_event_is_not_seen_before_its_commit_and_is_stored_when_seen(
    log: SqliteEventLog, gate: Gate, config: EventLogConfig
) -> None:
    await log.create_session("s", "u")
    with await log.open_reader("s") as reader:
        waiting = asyncio.ensure_future(reader.wait_beyond(0))
        gate.shut()
        pending = log.append("s", 0, records(1, 1), puts={"k": b"v"})
        await reached(gate)
        assert not waiting.done()
        assert not pending.done()
        assert reader.latest == 0
        assert (await reader.read(0)).count == 0
        assert await log.get("s", "k") is None
        gate.open()
        assert await waiting == 1
        assert rows(config.directory, "SELECT frames FROM chunks") == [(b"\n\x0c" + event(1),)]
        assert (await reader.read(0)).count == 1
        assert await pending == 1


async def test_a_failed_commit_fails_all_that_waits_for_it_and_stores_none_of_it(
    log: SqliteEventLog, gate: Gate
) -> None:
    await log.create_session("s", "u", records=records(1, 1))
    with await log.open_reader("s") as reader:
        gate.shut()
        pending = [log.append("s", 1, records(2, 1), puts={"k": b"v"})]
        await reached(gate)
        gate.error = disk_full()
        pending += [log.append("s", n, records(n + 1, 1)) for n in (2, 3)]
        gate.open()
        for append in pending:
            with pytest.raises(LogUnavailable) as caught:
                await append
            assert caught.value.reason is Reason.DISK_FULL
        assert reader.latest == 1
        assert await log.get("s", "k") is None

        gate.error = None
        assert await log.append("s", 1, records(2, 2)) == 3
        assert await read_all(reader) == [event(n) for n in (1, 2, 3)]


async def test_a_commit_that_fails_halfway_leaves_nothing(
    log: SqliteEventLog, config: EventLogConfig
) -> None:
    await log.create_session("s", "u")
    intruder = sqlite3.connect(config.directory / "events.db")
    intruder.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON state BEGIN SELECT raise(ABORT, 'no'); END"
    )
    intruder.commit()
    with pytest.raises(sqlite3.IntegrityError):
        await log.append("s", 0, records(1, 2), puts={"k": b"v"})
    assert rows(config.directory, "SELECT id FROM chunks") == []
    intruder.execute("DROP TRIGGER refuse")
    intruder.commit()
    intruder.close()
    assert await log.append("s", 0, records(1, 2), puts={"k": b"v"}) == 2


async def test_a_cancelled_wait_does_not_take_the_append_back(
    log: SqliteEventLog, gate: Gate
) -> None:
    await log.create_session("s", "u")
    gate.shut()
    pending = log.append("s", 0, records(1, 1))
    await reached(gate)
    pending.cancel()
    gate.open()
    assert await log.append("s", 1, records(2, 1)) == 2


async def test_the_queue_to_the_writer_is_bounded_in_bytes(
    config: EventLogConfig, gate: Gate
) -> None:
    config = replace(config, queue_bytes=10_000)
    async with opened(config, gate) as log:
        await log.create_session("s", "u")
        gate.shut()
        pending = [log.append("s", n, records(n + 1, 1, size=900)) for n in range(100)]
        seen = [log.queued_bytes]
        pending[0].add_done_callback(lambda _: seen.append(log.queued_bytes))
        pending[50].add_done_callback(lambda _: seen.append(log.queued_bytes))
        await reached(gate)
        gate.open()
        assert await asyncio.gather(*pending) == list(range(1, 101))
        assert all(0 < size <= 10_000 for size in seen)
        assert log.queued_bytes == 0


async def test_an_append_larger_than_the_queue_still_gets_through(config: EventLogConfig) -> None:
    async with opened(replace(config, queue_bytes=1000)) as log:
        await log.create_session("s", "u")
        first, second = (log.append("s", n, records(n + 1, 1, size=5000)) for n in range(2))
        assert [await first, await second] == [1, 2]


async def test_an_append_of_state_alone_moves_no_sequence(log: SqliteEventLog) -> None:
    await log.create_session("s", "u", records=records(1, 1), puts={"a": b"1", "b": b"2"})
    assert await log.append("s", 1, [], puts={"c": b"3"}, deletes=["a"]) == 1
    assert await log.get_prefix("s", "") == {"b": b"2", "c": b"3"}


async def test_a_kind_outside_the_filter_range_is_refused(log: SqliteEventLog) -> None:
    await log.create_session("s", "u")
    with pytest.raises(ValueError, match="kind 64"):
        await log.append("s", 0, [Record(b"", b"", 64)])


async def test_after_close_everything_is_refused_as_closed(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u")
        last = log.append("s", 0, records(1, 1))
        await log.close()
        assert await last == 1
        with pytest.raises(LogUnavailable) as caught:
            await log.append("s", 1, records(2, 1))
        assert caught.value.reason is Reason.CLOSED
        with pytest.raises(LogUnavailable):
            await log.get("s", "k")
