"""Class of fault: the disk is full, or becomes read-only, under a daemon that works.

Budget: none of time; what was seen is still there when the disk is back, calls say LOG_UNAVAILABLE
until then, and the session goes on by itself. Mounting needs root.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from tests.support import daemon as daemons
from tests.support.e2e import COMPLETED, Bench, Lab, lab, refused
from tests.support.grpc_edge import details

SMALL = "size=8m"
LARGE = "size=256m"


class Disk:
    """A disk of its own for the data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def mount(self, options: str) -> None:
        """Mount it."""
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory))

    def remount(self, options: str) -> None:
        """Change it while it is in use."""
        _run("mount", "-o", f"remount,{options}", str(self.directory))

    def unmount(self) -> None:
        """Unmount it."""
        _run("umount", "--lazy", str(self.directory))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    made = Disk(tmp_path / "disk")
    made.directory.mkdir()
    made.mount(SMALL)
    yield made
    made.unmount()


async def log_is_out(daemon: Lab, bench: Bench) -> aio.AioRpcError:
    """Ask for new sessions until that is refused; how it is."""
    while True:
        try:
            await bench.session(follow=False)
        except aio.AioRpcError as error:
            return error


async def test_a_full_disk_loses_nothing_that_was_seen(tmp_path: Path, disk: Disk) -> None:
    async with lab(disk.directory, {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        await session.turn("say before")
        sent = await session.send("repeat 40\ntext 500KB\nend")
        error = await log_is_out(daemon, bench)
        assert refused(error) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
        assert "full" in details(error).info.metadata["detail"]
        # What is there can be read; only what is durable was shown.
        assert (await session.get()).latest_sequence >= session.events[-1].sequence
        assert (disk.directory / "data").exists()
        disk.remount(LARGE)
        assert (await session.turn_ended(sent.turn_id)).status == COMPLETED
        assert (await session.turn("say after")).status == COMPLETED
        assert session.texts[0] == "before"
        assert session.texts[-1] == "after"
        assert len(session.texts) == 42
        await bench.finish()


async def test_a_daemon_killed_on_a_full_disk_comes_back_with_all_that_was_seen(
    tmp_path: Path, disk: Disk
) -> None:
    async with lab(disk.directory, {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        sent = await session.send("repeat 40\ntext 500KB\nend")
        await log_is_out(daemon, bench)
        await daemon.kill()
        await session.stream_ended()
        disk.remount(LARGE)
        await daemon.start()
        await session.follow()
        await session.turn_ended(sent.turn_id)
        assert (await session.turn("say after")).status == COMPLETED
        await bench.finish()


async def test_a_disk_that_becomes_read_only_is_said_and_survived(
    tmp_path: Path, disk: Disk
) -> None:
    async with lab(disk.directory, {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        await session.turn("say before")
        await daemon.kill()
        await session.stream_ended()
        disk.remount("ro")
        with pytest.raises(daemons.DaemonFailed) as failed:
            await daemon.start()
        assert failed.value.code == 3
        assert "read-only" in failed.value.stderr.lower()
        assert "Traceback" not in failed.value.stderr
        disk.remount("rw")
        await daemon.start()
        await session.follow()
        assert (await session.turn("say after")).status == COMPLETED
        assert session.texts == ["before", "after"]
        await bench.finish()
