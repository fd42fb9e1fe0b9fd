"""A file of the log was damaged: what is served is what was stored, and the rest is refused."""

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
from tests.unit.events.helpers import decode, opened, rows

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
