"""Backups: of a whole log alone, and put where no other log is."""

import shutil
from pathlib import Path

import pytest

from agentstreamd.events import EventLogConfig, LogUnavailable, Reason, SqliteEventLog, backup
from agentstreamd.events.backup import back_up
from agentstreamd.events.errors import BackupExists
from tests.unit.events.helpers import event, opened, read_all, records

WAL = "events.db-wal"


@pytest.fixture
async def crashed(config: EventLogConfig, tmp_path: Path) -> EventLogConfig:
    """A log whose program was killed after ten commits, none of them checkpointed."""
    async with opened(config) as log:
        await log.create_session("s", "u")
        for at in range(10):
            await log.append("s", at, records(at + 1, 1, size=5000))
        shutil.copytree(config.directory, tmp_path / "crashed")
    return EventLogConfig(directory=tmp_path / "crashed")


async def events_of(directory: Path) -> list[bytes]:
    async with opened(EventLogConfig(directory=directory)) as log:
        with await log.open_reader("s") as reader:
            return await read_all(reader)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_a_log_whose_program_was_killed_is_backed_up_whole(
    crashed: EventLogConfig, tmp_path: Path
) -> None:
    back_up(crashed.directory, tmp_path / "backup")
    everything = [event(n, 5000) for n in range(1, 11)]
    assert await events_of(tmp_path / "backup") == everything
    assert await events_of(crashed.directory) == everything


async def test_a_log_that_lost_commits_is_not_backed_up_and_still_tells_of_it(
    crashed: EventLogConfig, tmp_path: Path
) -> None:
    log = crashed.directory / WAL
    log.write_bytes(log.read_bytes()[:-1])
    before = contents(crashed.directory)
    with pytest.raises(LogUnavailable, match="commits are missing") as caught:
        back_up(crashed.directory, tmp_path / "backup")
    assert caught.value.reason is Reason.CORRUPT
    assert not (tmp_path / "backup").exists()
    assert contents(crashed.directory) == before
    with pytest.raises(LogUnavailable, match="commits are missing"):
        await SqliteEventLog.open(crashed)


async def test_after_a_power_cut_what_is_left_is_backed_up(
    crashed: EventLogConfig, tmp_path: Path
) -> None:
    log = crashed.directory / WAL
    log.write_bytes(log.read_bytes()[:-1])
    (crashed.directory / "lock").write_text("1\nanother-boot\n")
    back_up(crashed.directory, tmp_path / "backup")
    assert await events_of(tmp_path / "backup") == [event(n, 5000) for n in range(1, 10)]


async def test_a_log_at_work_is_backed_up_whatever_its_files_look_like_meanwhile(
    config: EventLogConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def torn(database: Path, same_boot: bool) -> None:
        asked.append(same_boot)
        raise LogUnavailable(Reason.CORRUPT, "read while it was written")

    monkeypatch.setattr(backup, "require_whole", torn)
    async with opened(config) as log:
        await log.create_session("s", "u", records=records(1, 3))
        back_up(config.directory, tmp_path / "backup")
    assert asked == [True]
    assert await events_of(tmp_path / "backup") == [event(n) for n in (1, 2, 3)]


async def test_a_backup_beside_the_write_ahead_log_of_another_log_is_refused(
    crashed: EventLogConfig, tmp_path: Path
) -> None:
    async with opened(EventLogConfig(directory=tmp_path / "other")) as log:
        await log.create_session("s", "u", records=records(1, 40, size=3000))
        made = back_up(tmp_path / "other", tmp_path / "backup")
    shutil.copyfile(made, crashed.directory / "events.db")
    before = contents(crashed.directory)
    with pytest.raises(LogUnavailable, match="not of the backup"):
        await SqliteEventLog.open(crashed)
    assert contents(crashed.directory) | {"lock": b""} == before | {"lock": b""}
    for left in (WAL, "events.db-shm"):
        (crashed.directory / left).unlink()
    assert await events_of(crashed.directory) == [event(n, 3000) for n in range(1, 41)]


async def test_no_backup_is_put_beside_what_another_log_left(
    config: EventLogConfig, tmp_path: Path
) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / WAL).write_bytes(b"of another log")
    async with opened(config) as log:
        await log.create_session("s", "u")
        with pytest.raises(BackupExists, match=WAL):
            back_up(config.directory, tmp_path / "backup")
    assert contents(tmp_path / "backup") == {WAL: b"of another log"}


async def test_of_two_backups_into_one_directory_the_first_stays(
    config: EventLogConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "backup" / "events.db"
    monkeypatch.setattr(backup, "verify_all", lambda _: made.write_bytes(b"the first"))
    async with opened(config) as log:
        await log.create_session("s", "u")
        with pytest.raises(BackupExists):
            back_up(config.directory, made.parent)
    assert contents(made.parent) == {"events.db": b"the first"}
