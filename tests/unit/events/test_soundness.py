"""What every session needs is damaged so that SQLite alone does not notice: the log is refused."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentstreamd.events import EventLogConfig, LogUnavailable, Reason, SqliteEventLog
from agentstreamd.events.backup import back_up
from tests.unit.events.helpers import opened, records

SCHEMA_FORMAT_AT = 44
PAGE = 4096


@pytest.fixture
async def log(config: EventLogConfig) -> EventLogConfig:
    """A log with two sessions, one of them without its first events; closed."""
    async with opened(config) as made:
        for name in ("whole", "cut"):
            await made.create_session(name, "u", puts={"key": b"value"})
            for n in range(3):
                await made.append(name, n, records(n + 1, 1, size=9000), blobs=[("b", b"data")])
        await made.compact("cut", 2)
        await made.delete_session("cut")
        await made.create_session("cut", "u", records=records(1, 1, size=9000))
        await made.append("cut", 1, records(2, 1, size=9000))
        await made.compact("cut", 2)
    async with opened(config) as made:
        while count(config, "garbage"):
            await made.info("cut")
    return config


def count(log: EventLogConfig, table: str) -> int:
    with closing(sqlite3.connect(log.directory / "events.db")) as connection:
        found: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found


def by(*statements: str) -> Callable[[Path], None]:
    """Damage done by SQL."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            for statement in statements:
                assert connection.execute(statement).rowcount == 1

    return damage


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Damage of bytes in the schema's page."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        assert old in content[:PAGE]
        path.write_bytes(content[:PAGE].replace(old, new, 1) + content[PAGE:])

    return damage


def odd_format(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[SCHEMA_FORMAT_AT : SCHEMA_FORMAT_AT + 4] = b"\0\0\0\x09"
    path.write_bytes(content)


SCHEMA = "UPDATE sqlite_schema SET"
DAMAGE = {
    "a column": replaced(b"uid TEXT", b"uie TEXT"),
    "no UTF-8": replaced(b"uid TEXT", b"\xdf\xdfd TEXT"),
    "a table's name": by(f"{SCHEMA} name = 'chunkz', tbl_name = 'chunkz' WHERE name = 'chunks'"),
    "a root": by(
        f"{SCHEMA} rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'chunks') "
        "WHERE name = 'garbage'"
    ),
    "the format": odd_format,
    "keys": by("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'sessions'"),
    "keys of blobs": by("UPDATE sqlite_sequence SET name = 'blobz' WHERE name = 'blobs'"),
    "a session to be deleted": by("INSERT INTO garbage VALUES (1, 68719476735, 1)"),
    "events to be deleted": by("INSERT INTO garbage VALUES (1, 3, 0)"),
    "what is to be deleted": by("INSERT INTO garbage VALUES (1, 'x', 0)"),
    "the earliest event": by("UPDATE sessions SET earliest = 3 WHERE session_id = 'whole'"),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_of_what_all_sessions_need_is_noticed_before_anything_is_served_or_copied(
    log: EventLogConfig, tmp_path: Path, what: str
) -> None:
    DAMAGE[what](log.directory / "events.db")
    for _ in range(2):
        with pytest.raises(LogUnavailable) as caught:
            await SqliteEventLog.open(log)
        assert caught.value.reason is Reason.CORRUPT
    with pytest.raises(LogUnavailable) as caught:
        back_up(log.directory, tmp_path / "backup")
    assert caught.value.reason is Reason.CORRUPT
    assert list((tmp_path / "backup").iterdir()) == []


async def test_a_log_in_which_retention_works_is_sound_at_any_moment(
    config: EventLogConfig, tmp_path: Path
) -> None:
    async with opened(config) as made:
        await made.create_session("gone", "u", records=records(1, 3))
        await made.create_session("s", "u")
        for n in range(40):
            await made.append("s", n, records(n + 1, 1, size=9000), blobs=[(f"{n}", b"d" * 9000)])
        removing = [made.delete_session("gone"), made.compact("s", 30), made.compact("s", 35)]
        for number, asked in enumerate(removing):
            await asked
            back_up(config.directory, tmp_path / f"{number}")
    for number in range(len(removing)):
        async with opened(EventLogConfig(directory=tmp_path / f"{number}")) as copy:
            assert (await copy.info("s")).latest == 40


async def test_of_a_log_that_lost_events_in_between_no_backup_is_made(
    log: EventLogConfig, tmp_path: Path
) -> None:
    by("DELETE FROM chunks WHERE id = (SELECT min(id) + 1 FROM chunks)")(
        log.directory / "events.db"
    )
    with pytest.raises(LogUnavailable, match="event 2 is missing") as caught:
        back_up(log.directory, tmp_path / "backup")
    assert caught.value.reason is Reason.CORRUPT


async def test_a_sound_log_is_backed_up(log: EventLogConfig, tmp_path: Path) -> None:
    shutil.copytree(log.directory, tmp_path / "copy")
    made = back_up(tmp_path / "copy", tmp_path / "backup")
    async with opened(EventLogConfig(directory=made.parent)) as restored:
        assert (await restored.info("whole")).latest == 3
        assert (await restored.info("cut")).earliest == 2
