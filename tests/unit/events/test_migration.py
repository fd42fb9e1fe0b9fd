"""The schema of the log: brought to the newest one whole, or not at all; old logs stay readable."""

import asyncio
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentstreamd.events import EventLogConfig, LogUnavailable, Reason, SchemaTooNew
from agentstreamd.events.schema import APPLICATION_ID, MIGRATIONS, migrate, schema_version
from agentstreamd.events.whole import size
from tests.support import daemon as daemons
from tests.unit.events import old_log
from tests.unit.events.helpers import event, opened, read_all, records, rows

LOGS = Path(__file__).parent / "logs"
NEWEST = len(MIGRATIONS)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """An empty database."""
    with closing(sqlite3.connect(tmp_path / "events.db", isolation_level=None)) as made:
        yield made


def schema(connection: sqlite3.Connection) -> list[object]:
    return connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()


def test_each_migration_is_applied_once_and_in_order(connection: sqlite3.Connection) -> None:
    first = ("CREATE TABLE steps (n)", "INSERT INTO steps VALUES (1)")
    second = ("INSERT INTO steps SELECT max(n) + 1 FROM steps",)
    third = ("INSERT INTO steps SELECT max(n) * 10 FROM steps",)
    migrate(connection, MIGRATIONS)
    for more in ((first,), (first, second, third), (first, second, third)):
        migrate(connection, (*MIGRATIONS, *more))
        assert schema_version(connection) == NEWEST + len(more)
    assert connection.execute("SELECT n FROM steps").fetchall() == [(1,), (2,), (20,)]
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_migration_that_fails_leaves_the_log_as_it_was(connection: sqlite3.Connection) -> None:
    migrate(connection, MIGRATIONS)
    connection.execute("INSERT INTO sessions (session_id, uid) VALUES ('s', 'u')")
    before = schema(connection)
    good = ("ALTER TABLE sessions ADD COLUMN more TEXT", "UPDATE sessions SET uid = 'changed'")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*MIGRATIONS, good, ("CREATE TABLE most (a)", "no SQL")))
    assert not connection.in_transaction
    assert schema_version(connection) == NEWEST
    assert schema(connection) == before
    assert connection.execute("SELECT uid FROM sessions").fetchall() == [("u",)]
    migrate(connection, (*MIGRATIONS, good))
    assert connection.execute("SELECT uid, more FROM sessions").fetchall() == [("changed", None)]


def test_a_new_log_that_cannot_be_made_is_empty(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*MIGRATIONS, ("no SQL",)))
    assert schema_version(connection) == 0
    assert schema(connection) == []


def test_a_log_that_is_up_to_date_is_not_written(connection: sqlite3.Connection) -> None:
    migrate(connection)
    connection.execute("PRAGMA query_only = ON")
    migrate(connection)


def test_a_newer_log_is_left_as_it_is(connection: sqlite3.Connection) -> None:
    newer = (*MIGRATIONS, ("CREATE TABLE more (a)",))
    migrate(connection, newer)
    before = schema(connection)
    with pytest.raises(SchemaTooNew) as caught:
        migrate(connection)
    assert (caught.value.found, caught.value.supported) == (NEWEST + 1, NEWEST)
    assert schema(connection) == before
    assert schema_version(connection) == NEWEST + 1


async def test_a_daemon_refuses_a_newer_log_in_one_sentence(tmp_path: Path) -> None:
    async with opened(EventLogConfig(directory=tmp_path / "events")) as log:
        await log.create_session("s", "u")
    with closing(sqlite3.connect(tmp_path / "events/events.db")) as connection:
        connection.execute(f"PRAGMA user_version = {NEWEST + 1}")
    with pytest.raises(daemons.DaemonFailed) as failed:
        await daemons.start(tmp_path)
    assert failed.value.code == 3
    assert failed.value.stderr == (
        f"agentstreamd: The event log has schema version {NEWEST + 1}, this program reads up to "
        f"{NEWEST}: use the version that wrote it, or a newer one.\n"
    )


@pytest.fixture(params=sorted(path.name for path in LOGS.glob("v*.db")))
def old(request: pytest.FixtureRequest, config: EventLogConfig) -> EventLogConfig:
    """A log as an earlier program left it."""
    config.directory.mkdir()
    shutil.copyfile(LOGS / request.param, config.directory / "events.db")
    version = int(request.param.removeprefix("v").removesuffix(".db"))
    assert rows(config.directory, "PRAGMA user_version") == [(version,)]
    return config


async def require_served(old: EventLogConfig) -> None:
    """The log holds what the old program stored, and has the newest schema."""
    everything = range(1, old_log.EVENTS + 1)
    async with opened(old) as log:
        page = await log.list_sessions(key="b")
        assert [(s.session_id, s.uid, s.earliest, s.latest, s.value) for s in page.sessions] == [
            ("full", old_log.UID, 1, old_log.EVENTS, b""),
            ("empty", old_log.UID, 1, 0, None),
            ("cut", old_log.UID, old_log.KEPT_FROM, old_log.KEPT_FROM + 3, None),
        ]
        assert await log.get_prefix("full", "a/") == {"a/1": b"one", "a/2": b"changed"}
        assert b"".join([p async for p in log.read_blob("full", "blob")]) == old_log.BLOB
        with await log.open_reader("full") as reader:
            assert await read_all(reader) == [old_log.old_event(n) for n in everything]
            assert await read_all(reader, include_raw=True) == [
                old_log.old_event(n) + old_log.old_raw(n) for n in everything
            ]
            assert await read_all(reader, kinds=frozenset({2})) == [
                old_log.old_event(n) for n in everything if old_log.old_kind(n) == 2
            ]
        with await log.open_reader("cut") as reader:
            kept = await read_all(reader, old_log.KEPT_FROM - 1)
            assert kept == [old_log.old_event(9) * 200] + [
                old_log.old_event(old_log.KEPT_FROM + n) for n in (1, 2, 3)
            ]
    assert rows(old.directory, "PRAGMA user_version") == [(NEWEST,)]


def test_each_version_has_a_log_that_later_programs_must_serve() -> None:
    found = {path.name for path in LOGS.iterdir()}
    assert found == {f"v{version}.db" for version in range(1, NEWEST + 1)}


async def test_an_old_log_is_served_as_it_was(old: EventLogConfig) -> None:
    await require_served(old)


DIES = """
import os, signal, sqlite3, sys
from agentstreamd.events.schema import MIGRATIONS, migrate
path, version, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = sqlite3.connect(path, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # what is changed is written at once
connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
rewrite = (
    "UPDATE chunks SET frames = zeroblob(length(frames) + 9000)",
    "UPDATE state SET value = x''",
    "DELETE FROM sessions",
)
all = [*MIGRATIONS, rewrite]
all[version] = (*all[version][:steps], "SELECT die()")
migrate(connection, tuple(all))
"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    ("version", "steps"),
    [
        *((v, n) for v in range(1, NEWEST) for n in range(1, len(MIGRATIONS[v]) + 1)),
        *((NEWEST, n) for n in (1, 2, 3)),
    ],
)
async def test_a_kill_in_the_middle_of_a_migration_leaves_the_log_as_it_was(
    config: EventLogConfig, version: int, steps: int, mode: str
) -> None:
    config.directory.mkdir()
    path = config.directory / "events.db"
    shutil.copyfile(LOGS / f"v{version}.db", path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIES, str(path), str(version), str(steps)
    )
    assert await child.wait() == -signal.SIGKILL
    if version == NEWEST:  # it was written to before the kill
        assert size(Path(f"{path}-wal" if mode == "wal" else f"{path}-journal")) > 0
    await require_served(config)


async def test_an_old_log_goes_on(old: EventLogConfig) -> None:
    for at in (old_log.EVENTS, old_log.EVENTS + 2):
        async with opened(old) as log:
            assert await log.append("full", at, records(at + 1, 2)) == at + 2
            await log.create_session(f"new at {at}", "u", records=records(1, 2))
    async with opened(old) as log:
        with await log.open_reader("full") as reader:
            assert await read_all(reader, old_log.EVENTS - 1) == [
                old_log.old_event(old_log.EVENTS),
                *(event(old_log.EVENTS + n) for n in (1, 2, 3, 4)),
            ]
    assert rows(old.directory, "SELECT count(*) FROM sessions WHERE key > 4") == [(2,)]


async def test_damage_of_an_old_log_is_noticed_by_its_lengths(old: EventLogConfig) -> None:
    with closing(sqlite3.connect(old.directory / "events.db")) as connection, connection:
        connection.execute("UPDATE chunks SET frames = substr(frames, 2) WHERE id >> 36 = 1")
    async with opened(old) as log:
        with await log.open_reader("full") as reader:
            with pytest.raises(LogUnavailable) as caught:
                await reader.read(0)
            assert caught.value.reason is Reason.CORRUPT
