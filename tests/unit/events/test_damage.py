"""A file of the log was damaged: what is served is what was stored, and the rest is refused."""

import logging
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentstreamd.events import (
    EventLogConfig,
    LogUnavailable,
    Reason,
    Record,
    SqliteEventLog,
)
from agentstreamd.events.backup import back_up
from tests.unit.events import helpers
from tests.unit.events.helpers import decode, opened, read_all, records, rows

PAGE = 4096
EVENTS = 60
VALUE = b"a value that does not fit in a page " * 120
BLOB = random.Random(1).randbytes(12_000)
RAW = random.Random(2).randbytes(90)


def event(sequence: int) -> bytes:
    return f"event {sequence} ".encode() + random.Random(sequence).randbytes(300)


def zeros(page: bytes, _: random.Random) -> bytes:
    return bytes(len(page))


def garbage(page: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(len(page))


def one_bit(page: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(page))
    return page[:at] + bytes((page[at] ^ 1 << chance.randrange(8),)) + page[at + 1 :]


@pytest.fixture
async def whole(config: EventLogConfig) -> Path:
    """A log with everything in it, closed."""
    async with opened(replace(config, chunk_bytes=9_000)) as log:
        for name in ("first", "second"):
            await log.create_session(name, f"uid of {name}", puts={"key": VALUE, "short": b"1"})
            at = 0
            for count in (EVENTS // 3,) * 3:
                batch = [Record(event(n), RAW, n % 3) for n in range(at + 1, at + count + 1)]
                at = await log.append(name, at, batch)
            await log.append(name, at, [], blobs=[("blob", BLOB)])
    return config.directory


def require_advice(error: LogUnavailable) -> None:
    """It says that the log is damaged, and what to do."""
    assert error.reason is Reason.CORRUPT
    assert "restore a backup" in str(error)


async def stored_or_refused(asked: Awaitable[object], stored: object) -> bool:
    """Whether it was served; it is either what was stored or refused as corrupt."""
    try:
        got = await asked
    except LogUnavailable as error:
        require_advice(error)
        return False
    assert got == stored
    return True


async def page_through(
    log: SqliteEventLog, name: str, include_raw: bool, kinds: frozenset[int] | None
) -> bool:
    """Whether all events were served; those before a refusal are the right ones."""
    raw = RAW if include_raw else b""
    expected = [(n, event(n) + raw) for n in range(1, EVENTS + 1) if not kinds or n % 3 in kinds]
    got: list[bytes] = []
    after = 0
    try:
        with await log.open_reader(name) as reader:
            assert reader.latest == EVENTS
            while after < reader.latest:
                batch = await reader.read(
                    after, kinds=kinds, include_raw=include_raw, max_events=50
                )
                assert batch.last_sequence > after
                after = batch.last_sequence
                got += decode(batch.data)
    except LogUnavailable as error:
        require_advice(error)
        assert got == [data for n, data in expected if n <= after]
        return False
    assert got == [data for _, data in expected]
    return True


async def all_of(log: SqliteEventLog, name: str) -> bool:
    """Whether all of a session was served."""

    async def blob() -> bytes:
        return b"".join([piece async for piece in log.read_blob(name, "blob")])

    async def uid() -> str:
        return (await log.info(name)).uid

    answers = [
        await stored_or_refused(uid(), f"uid of {name}"),
        await stored_or_refused(log.get(name, "key"), VALUE),
        await stored_or_refused(log.get_prefix(name, ""), {"key": VALUE, "short": b"1"}),
        await stored_or_refused(blob(), BLOB),
    ]
    for include_raw in (False, True):
        for kinds in (None, frozenset({1})):
            answers.append(await page_through(log, name, include_raw, kinds))
    return all(answers)


async def served(directory: Path) -> bool:
    """Whether the log was opened and all of it served."""
    try:
        log = await SqliteEventLog.open(EventLogConfig(directory=directory, reader_threads=1))
    except LogUnavailable as error:
        require_advice(error)
        return False
    try:
        return all([await all_of(log, name) for name in ("first", "second")])
    finally:
        await log.close()


def damaged(
    whole: Path, damage: Callable[[bytes, random.Random], bytes], scratch: Path
) -> Iterator[int]:
    """Damage one page after the other in `scratch`; gives the number of each."""
    content = (whole / "events.db").read_bytes()
    for number in range(len(content) // PAGE):
        start = number * PAGE
        page = damage(content[start : start + PAGE], random.Random(number))
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        (scratch / "events.db").write_bytes(content[:start] + page + content[start + PAGE :])
        yield number


@pytest.mark.parametrize("damage", [zeros, garbage])
async def test_whichever_page_is_damaged_nothing_wrong_is_served(
    whole: Path, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    assert await served(whole)
    outcomes = [await served(tmp_path / "x") for _ in damaged(whole, damage, tmp_path / "x")]
    assert not outcomes[0]  # the header is in it
    # Pages that are not in use may be anything.
    assert outcomes.count(False) > len(outcomes) * 0.8


async def test_a_bit_that_changed_in_what_is_stored_is_noticed(whole: Path, tmp_path: Path) -> None:
    outcomes = [await served(tmp_path / "x") for _ in damaged(whole, one_bit, tmp_path / "x")]
    assert outcomes.count(False) > len(outcomes) // 2


async def test_no_backup_is_made_of_what_is_damaged(whole: Path, tmp_path: Path) -> None:
    back_up(whole, tmp_path / "good")
    assert await served(tmp_path / "good")
    refusals = 0
    for number in damaged(whole, one_bit, tmp_path / "x"):
        target = tmp_path / f"backup-{number}"
        try:
            back_up(tmp_path / "x", target)
        except LogUnavailable as error:
            require_advice(error)
            assert list(target.glob("*")) == []
            refusals += 1
        else:
            assert await served(target)
    assert refusals > 10


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.999])
async def test_a_file_cut_short_is_refused(whole: Path, part: float) -> None:
    path = whole / "events.db"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert not await served(whole)
    path.write_bytes(content)
    assert await served(whole)


async def test_a_database_that_is_gone_is_not_begun_anew_beside_its_write_ahead_log(
    whole: Path,
) -> None:
    (whole / "events.db-wal").write_bytes(b"frames")
    (whole / "events.db").unlink()
    assert not await served(whole)
    assert not (whole / "events.db").exists()


async def test_a_first_start_that_was_cut_off_is_made_again(config: EventLogConfig) -> None:
    config.directory.mkdir()
    (config.directory / "events.db.new").write_bytes(b"half")
    async with opened(config) as log:
        await log.create_session("s", "u")
    assert sorted(path.name for path in config.directory.iterdir()) == ["events.db", "lock"]


async def test_a_session_is_not_lost_with_its_row(whole: Path) -> None:
    ((root,),) = rows(
        whole, "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_sessions_1'"
    )
    assert isinstance(root, int)
    with (whole / "events.db").open("r+b") as file:
        file.seek((root - 1) * PAGE)
        file.write(b"\x0a\0\0\0\0\x10\0\0\0")  # an index without entries, for SQLite all is well
    assert not await served(whole)


@pytest.fixture
async def crashed(config: EventLogConfig, tmp_path: Path) -> EventLogConfig:
    """A log whose program was killed after ten commits, none of them checkpointed."""
    async with opened(config) as log:
        await log.create_session("s", "u")
        for at in range(10):
            await log.append("s", at, records(at + 1, 1, size=5000))
        shutil.copytree(config.directory, tmp_path / "crashed")
    return EventLogConfig(directory=tmp_path / "crashed")


def cut_off(config: EventLogConfig, size: int) -> None:
    path = config.directory / "events.db-wal"
    path.write_bytes(path.read_bytes()[:-size])


async def events_left(config: EventLogConfig) -> int:
    """How many events there are; they are the first ones."""
    async with opened(config) as log:
        with await log.open_reader("s") as reader:
            stored = await read_all(reader)
    assert stored == [helpers.event(n, 5000) for n in range(1, len(stored) + 1)]
    return len(stored)


async def test_a_write_ahead_log_is_whole_after_a_kill(crashed: EventLogConfig) -> None:
    with (crashed.directory / "events.db-wal").open("ab") as file:
        file.write(b"a commit that was under way" * 200)
    assert await events_left(crashed) == 10


async def test_a_write_ahead_log_that_lost_a_part_of_its_last_frame_is_refused(
    crashed: EventLogConfig,
) -> None:
    whole = (crashed.directory / "events.db-wal").read_bytes()
    cut_off(crashed, 1)
    for _ in range(2):
        with pytest.raises(LogUnavailable, match="commits are missing") as caught:
            await SqliteEventLog.open(crashed)
        require_advice(caught.value)
    (crashed.directory / "events.db-wal").write_bytes(whole)
    assert await events_left(crashed) == 10


@pytest.mark.parametrize("from_end", [1, PAGE // 2, PAGE + 10, 3 * PAGE])
async def test_a_write_ahead_log_whose_end_was_changed_is_refused(
    crashed: EventLogConfig, from_end: int
) -> None:
    path = crashed.directory / "events.db-wal"
    content = bytearray(path.read_bytes())
    content[-from_end] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(LogUnavailable, match="commits are missing"):
        await SqliteEventLog.open(crashed)


async def test_a_long_write_ahead_log_is_whole_after_a_kill(
    config: EventLogConfig, tmp_path: Path
) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u")
        for at in range(0, 200, 10):
            await log.append("s", at, records(at + 1, 10, size=5000))
        shutil.copytree(config.directory, tmp_path / "crashed")
    crashed = EventLogConfig(directory=tmp_path / "crashed")
    assert (crashed.directory / "events.db-wal").stat().st_size > 200 * PAGE
    assert await events_left(crashed) == 200


async def test_after_a_power_cut_what_is_left_is_served_and_the_loss_is_told(
    crashed: EventLogConfig, caplog: pytest.LogCaptureFixture
) -> None:
    cut_off(crashed, 1)
    (crashed.directory / "lock").write_text("1\nanother-boot\n")
    with caplog.at_level(logging.WARNING):
        assert await events_left(crashed) == 9
    assert "the newest are lost" in caplog.text


async def test_frames_that_are_in_the_database_already_may_be_gone(
    config: EventLogConfig, tmp_path: Path
) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 10, size=5000))
        log._checkpoint_connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        shutil.copytree(config.directory, tmp_path / "crashed")
    copy = EventLogConfig(directory=tmp_path / "crashed")
    cut_off(copy, 1)
    assert await events_left(copy) == 10
