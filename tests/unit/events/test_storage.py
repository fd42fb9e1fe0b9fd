import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import agentstreamd
from agentstreamd.events import (
    DataDirInUse,
    EventLogConfig,
    LogUnavailable,
    Reason,
    SchemaTooNew,
    SqliteEventLog,
)
from agentstreamd.events.schema import MIGRATIONS
from tests.unit.events.helpers import event, opened, read_all, records, rows

MIB = 1 << 20

WRITER = """
import asyncio, sys
from pathlib import Path
from agentstreamd.events import EventLogConfig, Record, SqliteEventLog

async def main():
    config = EventLogConfig(
        directory=Path(sys.argv[1]), checkpoint_bytes=100_000, wal_bytes=400_000
    )
    log = await SqliteEventLog.open(config)
    await log.create_session("s", "u")
    at = 0
    while True:
        count = at % 7 + 1
        batch = [Record(b"event %d " % n, b"raw %d" % n, 1) for n in range(at + 1, at + count + 1)]
        at = await log.append("s", at, batch, puts={"at": b"%d" % (at + count)})
        print(at, flush=True)

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_kill_9(config: EventLogConfig) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(agentstreamd.__file__).parents[1])}
    acknowledged = 0
    for kill_after in (1, 40, 1500):
        shutil.rmtree(config.directory, ignore_errors=True)
        writer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WRITER,
            str(config.directory),
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert writer.stdout is not None
        for _ in range(kill_after):
            acknowledged = int(await writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        for line in (await writer.stdout.read()).splitlines(keepends=True):
            if line.endswith(b"\n"):
                acknowledged = int(line)
        assert await writer.wait() == -signal.SIGKILL
        async with opened(config) as log:
            latest = (await log.info("s")).latest
            assert latest >= acknowledged > 0
            assert await log.get("s", "at") == b"%d" % latest
            with await log.open_reader("s") as reader:
                assert await read_all(reader, include_raw=True) == [
                    b"event %d raw %d" % (n, n) for n in range(1, latest + 1)
                ]
            assert await log.append("s", latest, records(latest + 1, 1)) == latest + 1


async def test_a_second_log_on_the_directory_is_refused_until_the_first_is_closed(
    config: EventLogConfig,
) -> None:
    async with opened(config):
        with pytest.raises(DataDirInUse, match=str(os.getpid())) as caught:
            await SqliteEventLog.open(config)
        assert caught.value.holder == str(os.getpid())
    async with opened(config) as log:
        await log.create_session("s", "u")


async def test_the_lock_is_not_handed_to_child_processes(config: EventLogConfig) -> None:
    async with opened(config):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import sys; sys.stdin.read()", stdin=subprocess.PIPE
        )
    async with opened(config):
        assert child.returncode is None
        child.kill()
        await child.wait()


async def test_a_log_of_a_newer_program_is_refused_and_left_as_it_is(
    config: EventLogConfig,
) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 1))
    connection = sqlite3.connect(config.directory / "events.db")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    for _ in range(2):  # the lock was let go
        with pytest.raises(SchemaTooNew) as caught:
            await SqliteEventLog.open(config)
        assert (caught.value.found, caught.value.supported) == (
            len(MIGRATIONS) + 1,
            len(MIGRATIONS),
        )
    assert rows(config.directory, "PRAGMA user_version") == [(len(MIGRATIONS) + 1,)]


@pytest.mark.parametrize("content", [b"this is not a database, it is text" * 100, None])
async def test_a_file_that_is_no_event_log_is_refused_and_left_as_it_is(
    config: EventLogConfig, content: bytes | None
) -> None:
    config.directory.mkdir()
    path = config.directory / "events.db"
    if content is None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (a)")
        connection.close()
        content = path.read_bytes()
    else:
        path.write_bytes(content)
    with pytest.raises(LogUnavailable) as caught:
        await SqliteEventLog.open(config)
    assert caught.value.reason is Reason.CORRUPT
    assert path.read_bytes() == content


async def test_only_the_owner_can_read_the_files(config: EventLogConfig) -> None:
    old = os.umask(0)
    try:
        async with opened(config) as log:
            await log.create_session("s", "u")
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode) for path in config.directory.iterdir()
            }
    finally:
        os.umask(old)
    assert modes == dict.fromkeys(("lock", "events.db", "events.db-wal", "events.db-shm"), 0o600)
    assert stat.S_IMODE(config.directory.stat().st_mode) == 0o700


async def append_until_it_fails(log: SqliteEventLog, at: int) -> tuple[int, LogUnavailable]:
    while True:
        try:
            at = await log.append("s", at, records(at + 1, 20, size=1000))
        except LogUnavailable as error:
            return at, error


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    command = [mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_fails_appends_whole_and_the_log_goes_on_when_there_is_space(
    small_disk: Path,
) -> None:
    config = EventLogConfig(
        directory=small_disk / "log", checkpoint_bytes=200_000, wal_bytes=800_000
    )
    filler = small_disk / "filler"
    async with opened(config) as log:
        at = await log.create_session("s", "u", records=records(1, 10, size=1000))
        with await log.open_reader("s") as reader:
            for _ in range(2):
                room = shutil.disk_usage(small_disk).free
                filler.write_bytes(bytes(room - 100_000))
                at, error = await append_until_it_fails(log, at)
                assert error.reason is Reason.DISK_FULL
                assert reader.latest == at
                with pytest.raises(LogUnavailable):
                    await log.append("s", at, records(at + 1, 1000, size=1000))
                assert await read_all(reader, at - 10) == [
                    event(n, 1000) for n in range(at - 9, at + 1)
                ]
                filler.unlink()
                at = await log.append("s", at, records(at + 1, 5, size=1000))
    async with opened(config) as log:
        with await log.open_reader("s") as reader:
            assert await read_all(reader) == [event(n, 1000) for n in range(1, at + 1)]


async def test_a_directory_that_cannot_be_written_is_refused_as_read_only(
    small_disk: Path,
) -> None:
    config = EventLogConfig(directory=small_disk / "log")
    async with opened(config) as log:
        await log.create_session("s", "u")
    remount = await asyncio.create_subprocess_exec("mount", "-o", "remount,ro", str(small_disk))
    assert await remount.wait() == 0
    with pytest.raises(LogUnavailable) as caught:
        await SqliteEventLog.open(config)
    assert caught.value.reason is Reason.READ_ONLY


async def test_a_database_at_its_limit_fails_appends_as_disk_full(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u")
        log._writer_connection.execute("PRAGMA max_page_count = 40")
        at, error = await append_until_it_fails(log, 0)
        assert error.reason is Reason.DISK_FULL
        with pytest.raises(LogUnavailable):
            await log.append("s", at, records(at + 1, 20, size=1000), puts={"k": b"v"})
        log._writer_connection.execute("PRAGMA max_page_count = 100000")
        assert await log.append("s", at, records(at + 1, 20, size=1000)) == at + 20


async def test_a_damaged_page_is_reported_as_corrupt(config: EventLogConfig) -> None:
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 2000, size=1000))
    path = config.directory / "events.db"
    ((root,),) = rows(config.directory, "SELECT rootpage FROM sqlite_schema WHERE name = 'chunks'")
    assert isinstance(root, int)
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    async with opened(config) as log:
        with pytest.raises(LogUnavailable) as caught:
            await log.open_reader("s")
        assert caught.value.reason is Reason.CORRUPT
        with pytest.raises(LogUnavailable) as caught:
            await log.append("s", 2000, records(2001, 1))
        assert caught.value.reason is Reason.CORRUPT


async def test_the_write_ahead_log_stays_bounded_under_constant_writes(
    config: EventLogConfig,
) -> None:
    config = replace(config, checkpoint_bytes=1 * MIB, wal_bytes=4 * MIB)
    async with opened(config) as log:
        await log.create_session("s", "u")
        at, largest = 0, 0
        for _ in range(150):
            pending = [
                log.append("s", at + 100 * n, records(at + 100 * n + 1, 100, size=1000))
                for n in range(4)
            ]
            for append in pending:
                at = await append
            largest = max(largest, (config.directory / "events.db-wal").stat().st_size)
        # The bound, one commit, and what SQLite adds to each page.
        assert largest < 4 * MIB + 2 * MIB
    assert not (config.directory / "events.db-wal").exists()


async def test_close_writes_everything_asked_for_and_can_be_repeated(
    config: EventLogConfig,
) -> None:
    async with opened(replace(config, queue_bytes=2000)) as log:
        await log.create_session("s", "u")
        pending = [log.append("s", n, records(n + 1, 1, size=500)) for n in range(100)]
        await asyncio.gather(log.close(), log.close())
        assert [append.result() for append in pending] == list(range(1, 101))
        await log.close()


async def test_full_synchronous_stores_the_same(config: EventLogConfig) -> None:
    async with opened(replace(config, synchronous="FULL")) as log:
        await log.create_session("s", "u", records=records(1, 3))
        assert log._writer_connection.execute("PRAGMA synchronous").fetchone() == (2,)
        with await log.open_reader("s") as reader:
            assert await read_all(reader) == [event(n) for n in (1, 2, 3)]


async def test_a_slow_session_does_not_leave_a_row_per_event(config: EventLogConfig) -> None:
    async with opened(replace(config, small_chunk_bytes=1000)) as log:
        await log.create_session("s", "u")
        for at in range(100):
            await log.append("s", at, records(at + 1, 1, size=98))
        with await log.open_reader("s") as reader:
            assert await read_all(reader) == [event(n, 98) for n in range(1, 101)]
    assert rows(config.directory, "SELECT length(frames) FROM chunks") == [(1000,)] * 10
    async with opened(config) as log:
        with await log.open_reader("s") as reader:
            assert await read_all(reader) == [event(n, 98) for n in range(1, 101)]
