import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentstreamd.events import (
    CursorCompacted,
    CursorInFuture,
    EventLogConfig,
    LogUnavailable,
    Reader,
    Reason,
    Record,
    SessionDeleted,
    SessionNotFound,
    SqliteEventLog,
)
from tests.unit.events.helpers import decode, event, opened, read_all, records, rows

RAW = b"\x92\x03\x03raw"


def mixed(first: int, count: int) -> list[Record]:
    """Events of kinds 0 to 6, of which three in a row share a raw."""
    return [Record(event(n), RAW + b"%d" % (n // 3), n % 7) for n in range(first, first + count)]


async def forget(log: SqliteEventLog) -> None:
    """Lets the tails go, so that what is read next comes from disk."""
    log._live.drop_idle(float("inf"))


@pytest.fixture(params=["memory", "disk", "small rows on disk"])
async def filled(
    request: pytest.FixtureRequest, config: EventLogConfig
) -> AsyncIterator[SqliteEventLog]:
    """A log with a session `s` of 200 mixed events, in rows of about 60 or of 4."""
    if request.param == "small rows on disk":
        config = replace(config, chunk_bytes=100, small_chunk_bytes=0)
    else:
        config = replace(config, chunk_bytes=1500)
    async with opened(config) as log:
        await log.create_session("s", "u")
        at = 0
        for size in (1, 1, 48, 50, 100):
            at = await log.append("s", at, mixed(at + 1, size))
        if request.param != "memory":
            await forget(log)
        yield log


async def test_resume_from_any_sequence_gives_each_later_event_exactly_once(
    filled: SqliteEventLog,
) -> None:
    everything = [event(n) for n in range(1, 201)]
    with await filled.open_reader("s") as reader:
        for after in range(201):
            assert await read_all(reader, after, max_events=33) == everything[after:]


async def test_resume_at_random_with_random_limits_and_filters(filled: SqliteEventLog) -> None:
    dice = random.Random(7)
    everything = mixed(1, 200)
    with await filled.open_reader("s") as reader:
        for _ in range(300):
            after, raw = dice.randint(0, 200), dice.random() < 0.5
            kinds = frozenset(dice.sample(range(9), 3)) if dice.random() < 0.7 else None
            got = await read_all(
                reader,
                after,
                kinds=kinds,
                include_raw=raw,
                max_events=dice.randint(1, 70),
                max_bytes=dice.randint(1, 4000),
            )
            assert got == [
                record.event + (record.raw if raw else b"")
                for record in everything[after:]
                if kinds is None or record.kind in kinds
            ]


async def test_raws_come_with_their_events_when_asked(filled: SqliteEventLog) -> None:
    with await filled.open_reader("s") as reader:
        for after in range(0, 201, 7):
            assert await read_all(reader, after, include_raw=True, max_events=33) == [
                event(n) + RAW + b"%d" % (n // 3) for n in range(after + 1, 201)
            ]
            assert await read_all(reader, after) == [event(n) for n in range(after + 1, 201)]


@pytest.mark.parametrize("kinds", [{3}, {0, 1, 2}, {6, 50}, set(range(7)), {50}, set()])
@pytest.mark.parametrize("max_events", [1, 5, 256])
async def test_a_filter_gives_what_passes_and_moves_the_cursor_over_the_rest(
    filled: SqliteEventLog, kinds: set[int], max_events: int
) -> None:
    with await filled.open_reader("s") as reader:
        for after in (0, 1, 17, 150, 199):
            got = await read_all(reader, after, kinds=frozenset(kinds), max_events=max_events)
            assert got == [event(n) for n in range(after + 1, 201) if n % 7 in kinds]


async def test_a_batch_is_cut_at_the_byte_limit_and_a_larger_event_comes_alone(
    filled: SqliteEventLog,
) -> None:
    with await filled.open_reader("s") as reader:
        assert [await reader.read(9, max_bytes=14)] == [await reader.read(9, max_events=1)]
        assert (await reader.read(0, max_bytes=1)).count == 1
        assert (await reader.read(50, max_bytes=70)).count == 5


async def test_cursors_outside_the_log_are_refused_with_its_bounds(filled: SqliteEventLog) -> None:
    with await filled.open_reader("s") as reader:
        with pytest.raises(CursorInFuture) as ahead:
            await reader.read(201)
        assert ahead.value.latest == 200
        with pytest.raises(CursorCompacted):
            await reader.read(-1)
        assert await reader.read(200) == await reader.read(200, kinds=frozenset({1}))


async def test_compaction_moves_earliest_and_refuses_cursors_before_it(
    filled: SqliteEventLog, config: EventLogConfig
) -> None:
    with await filled.open_reader("s") as reader:
        await read_all(reader)
        earliest = await filled.compact("s", 140)
        assert 1 < earliest <= 140
        assert reader.earliest == earliest
        assert await read_all(reader, earliest - 1) == [event(n) for n in range(earliest, 201)]
        for kinds in (None, frozenset({3})):
            with pytest.raises(CursorCompacted) as caught:
                await reader.read(earliest - 2, kinds=kinds)
            assert (caught.value.earliest, caught.value.latest) == (earliest, 200)
        assert await filled.compact("s", 10) == earliest
    assert (await filled.info("s")).earliest == earliest
    while rows(config.directory, "SELECT * FROM garbage"):
        await filled.info("s")
    assert rows(config.directory, "SELECT min(id & 0xfffffffff) FROM chunks") == [(earliest,)]


async def test_a_session_compacted_whole_goes_on_at_its_sequence(
    config: EventLogConfig,
) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 9))
        assert await log.compact("s", 1000) == 10
    async with opened(config) as log:
        info = await log.info("s")
        assert (info.earliest, info.latest) == (10, 9)
        assert await log.append("s", 9, records(10, 1)) == 10
        with await log.open_reader("s") as reader:
            assert await read_all(reader, 9) == [event(10)]
            with pytest.raises(CursorCompacted):
                await reader.read(8)


async def test_a_reader_that_loads_while_rows_go_is_told_of_the_compaction(
    config: EventLogConfig,
) -> None:
    async with opened(replace(config, chunk_bytes=200)) as log:
        await log.create_session("s", "u", records=records(1, 100))
        await forget(log)
        with await log.open_reader("s") as reader:
            # The database is ahead of what the loop was told.
            compaction = log.compact("s", 50)
            log._live.apply = lambda change, now: None  # type: ignore[method-assign]
            await compaction
            assert reader.earliest == 1
            with pytest.raises(CursorCompacted):
                await reader.read(0)
            with pytest.raises(CursorCompacted):
                await reader.read(0, kinds=frozenset({1}))


async def test_an_event_missing_from_the_storage_is_reported_and_not_skipped(
    config: EventLogConfig,
) -> None:
    async with opened(replace(config, chunk_bytes=200)) as log:
        await log.create_session("s", "u", records=records(1, 100))
    ids = [row[0] for row in rows(config.directory, "SELECT id FROM chunks ORDER BY id")]
    connection = sqlite3.connect(config.directory / "events.db")
    connection.execute("DELETE FROM chunks WHERE id = ?", (ids[1],))
    connection.commit()
    connection.close()
    async with opened(config) as log:
        with await log.open_reader("s") as reader:
            batch = await reader.read(0)
            with pytest.raises(LogUnavailable) as caught:
                await reader.read(batch.last_sequence)
            assert caught.value.reason is Reason.CORRUPT


async def test_one_append_wakes_all_readers(log: SqliteEventLog) -> None:
    await log.create_session("s", "u")

    async def follow(reader: Reader) -> list[bytes]:
        assert await reader.wait_beyond(0) == 2
        return decode((await reader.read(0)).data)

    readers = [await log.open_reader("s") for _ in range(200)]
    followers = [asyncio.ensure_future(follow(reader)) for reader in readers]
    await asyncio.sleep(0)
    await log.append("s", 0, records(1, 2))
    assert await asyncio.gather(*followers) == [[event(1), event(2)]] * 200
    # They all stand at one place, and share the bytes.
    batches = [await reader.read(0) for reader in readers]
    assert all(batch.data is batches[0].data for batch in batches)
    for reader in readers:
        reader.close()


async def test_a_cancelled_wait_leaves_the_other_readers_waiting(log: SqliteEventLog) -> None:
    await log.create_session("s", "u")
    with await log.open_reader("s") as reader:
        first, second = (asyncio.ensure_future(reader.wait_beyond(0)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await log.append("s", 0, records(1, 1))
        assert await second == 1
        assert first.cancelled()


async def test_a_follower_sees_every_event_of_concurrent_appends_in_order(
    config: EventLogConfig,
) -> None:
    config = replace(config, tail_session_bytes=2000, chunk_bytes=500)
    async with opened(config) as log:
        await log.create_session("s", "u")

        async def follow(pause: int) -> list[bytes]:
            got: list[bytes] = []
            with await log.open_reader("s") as reader:
                while len(got) < 2000:
                    await reader.wait_beyond(len(got))
                    batch = await reader.read(len(got), max_events=50)
                    got += decode(batch.data)
                    assert batch.last_sequence == len(got)
                    for _ in range(pause):
                        await asyncio.sleep(0)
            return got

        followers = [asyncio.ensure_future(follow(pause)) for pause in (0, 1, 20, 200)]
        for at in range(0, 2000, 5):
            await log.append("s", at, records(at + 1, 5))
        for got in await asyncio.gather(*followers):
            assert got == [event(n) for n in range(1, 2001)]


async def test_a_stalled_reader_keeps_nothing_in_memory(config: EventLogConfig) -> None:
    config = replace(config, tail_session_bytes=20_000, page_cache_bytes=20_000)
    async with opened(config) as log:
        await log.create_session("s", "u")
        with await log.open_reader("s") as stalled, await log.open_reader("s") as lively:
            assert (await stalled.read(0)).count == 0
            for at in range(0, 2000, 20):
                await log.append("s", at, records(at + 1, 20, size=500))
                assert (await lively.read(at)).count == 20
                assert log._live.tail_bytes <= 20_000 + 20 * 600
            assert len(await read_all(stalled)) == 2000
            assert log._pages.bytes <= 20_000


async def test_deletion_ends_the_readers_of_the_session_and_of_no_later_one(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "one", records=records(1, 5))
    with await log.open_reader("s") as reader:
        waiting = asyncio.ensure_future(reader.wait_beyond(5))
        await asyncio.sleep(0)
        deleted, created = log.delete_session("s"), log.create_session("s", "two")
        assert [await deleted, await created] == [5, 0]
        with pytest.raises(SessionDeleted):
            await waiting
        with pytest.raises(SessionDeleted):
            await reader.read(0)
        with await log.open_reader("s") as later:
            assert (later.uid, later.latest) == ("two", 0)


async def test_a_reader_that_loads_while_its_session_goes_is_told_so(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "u", records=records(1, 5))
    await forget(log)
    with await log.open_reader("s") as reader:
        deletion = log.delete_session("s")
        read = asyncio.ensure_future(reader.read(0))
        await deletion
        # Either it came before, or it is told; never an empty batch or another error.
        with contextlib.suppress(SessionDeleted):
            assert (await read).count == 5


async def test_a_reader_of_no_session_is_refused(log: SqliteEventLog) -> None:
    with pytest.raises(SessionNotFound):
        await log.open_reader("nowhere")


async def test_closing_the_log_ends_its_readers(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 1))
        reader = await log.open_reader("s")
        waiting = asyncio.ensure_future(reader.wait_beyond(1))
        await asyncio.sleep(0)
        await log.close()
        for end in (waiting, reader.read(0)):
            with pytest.raises(LogUnavailable) as caught:
                await end
            assert caught.value.reason is Reason.CLOSED
        reader.close()


async def test_a_session_without_readers_and_appends_leaves_the_memory(
    log: SqliteEventLog,
) -> None:
    await log.create_session("s", "u")
    assert log.sessions_in_memory == 0
    await log.append("s", 0, records(1, 1))
    reader = await log.open_reader("s")
    await forget(log)
    assert (log.sessions_in_memory, log._live.tail_bytes) == (1, 0)
    assert await read_all(reader) == [event(1)]
    reader.close()
    reader.close()
    assert log.sessions_in_memory == 0


async def test_a_reader_opened_during_appends_misses_none(config: EventLogConfig) -> None:
    # Tails are dropped at once, so that sessions leave memory while they are being loaded.
    async with opened(replace(config, tail_total_bytes=0, tail_session_bytes=0)) as log:
        for session in ("a", "b"):
            await log.create_session(session, "u")

        async def append() -> None:
            for at in range(80):
                await asyncio.gather(*(log.append(s, at, records(at + 1, 1)) for s in ("a", "b")))

        async def follow() -> int:
            with await log.open_reader("a") as reader:
                seen = reader.latest
                while seen < 80:
                    seen = await reader.wait_beyond(seen)
                return seen

        appending = asyncio.ensure_future(append())
        followers: list[asyncio.Task[int]] = []
        # Bounded: on a slow machine, ever more followers would keep the appends from ending.
        while not appending.done() and len(followers) < 200:
            followers.append(asyncio.ensure_future(follow()))
            await asyncio.sleep(0)
            await log.info("b")
        await appending
        assert await asyncio.gather(*followers) == [80] * len(followers)
