"""Class of fault: the machine is lost, and what is left is a backup made while the daemon worked.

Budget: none; a backup is one moment of the log, whole, and a daemon goes on from it.
"""

import asyncio
import sqlite3
import stat
import sys
from pathlib import Path

from agentstream.v1 import event_pb2
from agentstreamd.laws import check
from tests.support.e2e import COMPLETED, FAILED, Bench, Session, lab


async def back_up(source: Path, target: Path) -> tuple[int, str]:
    """Run `agentstreamd backup`; exit code and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentstreamd", "backup", str(target), f"--data-dir={source}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr.decode()


def files_of(directory: Path) -> list[str]:
    """Names of what is in a directory; none where it is not there."""
    return [path.name for path in directory.iterdir()] if directory.exists() else []


def same(restored: Session, original: list[event_pb2.Event], count: int) -> None:
    """The first `count` events are those that the original's readers saw."""
    pairs = zip(restored.events[:count], original[:count], strict=True)
    assert next((a for a, b in pairs if a != b), None) is None


async def test_a_backup_made_while_the_daemon_works_is_served_by_another(tmp_path: Path) -> None:
    async with lab(tmp_path / "first", {}) as first, asyncio.timeout(120):
        bench = Bench(first, "mock", tmp_path, {})
        done = await bench.session()
        await done.turn("say before")
        await done.end()
        await done.stream_ended()
        busy = await bench.session()
        await busy.turn("say early")
        seen_before = len(busy.events)
        await busy.send("repeat 100000\ntext 2KB\ndelay 1ms\nend")
        await busy.until(lambda: len(busy.events) > seen_before + 50)
        seen_at_start = len(busy.events)
        assert await back_up(tmp_path / "first/data", tmp_path / "second/data") == (0, "")
        assert busy.stream_error is None
        await busy.interrupt()
        await bench.finish()

    async with lab(tmp_path / "second", {}) as second, asyncio.timeout(120):
        after = Bench(second, "mock", tmp_path, {})
        old_done, old_busy = Session(second, done.created), Session(second, busy.created)
        await old_done.follow()
        await old_done.verify()
        same(old_done, done.events, len(done.events))
        await old_busy.follow()
        # What anyone had seen when the backup began is in it; what was under way is closed.
        ended = await old_busy.find("turn_ended", lambda e: e.turn_ended.status == FAILED)
        at = old_busy.events.index(ended)
        assert at >= seen_at_start
        same(old_busy, busy.events, seen_at_start)
        assert (await old_busy.turn("say after")).status == COMPLETED
        assert old_busy.texts[-1] == "after"
        await old_busy.end()
        await old_busy.verify()
        assert check(old_busy.events, complete=True) == []
        taken = {second.new_id() for _ in bench.sessions}  # a lab counts from 1 again
        assert taken == {done.id, busy.id}
        assert (await (await after.session()).turn("say new")).status == COMPLETED
        await after.finish()


async def test_a_backup_is_whole_private_and_never_over_another(tmp_path: Path) -> None:
    data, target = tmp_path / "lab/data", tmp_path / "backup"
    async with lab(tmp_path / "lab", {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        await (await bench.session()).turn("say once")
        await bench.finish()
        assert await back_up(data, target) == (0, "")
    made = target / "events/events.db"
    assert files_of(made.parent) == ["events.db"]
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    before = made.read_bytes()
    connection = sqlite3.connect(made)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()
    code, said = await back_up(data, target)
    assert code == 2
    assert "exists already" in said
    assert made.read_bytes() == before


async def test_what_is_no_log_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    code, said = await back_up(tmp_path / "nothing", tmp_path / "backup")
    assert code == 3
    assert "there is no event log" in said
    assert "Traceback" not in said
    (tmp_path / "other/events").mkdir(parents=True)
    (tmp_path / "other/events/events.db").write_bytes(
        b"not a database, and longer than a header" * 9
    )
    code, said = await back_up(tmp_path / "other", tmp_path / "backup")
    assert code == 3
    assert "Traceback" not in said
    assert files_of(tmp_path / "backup/events") == []
