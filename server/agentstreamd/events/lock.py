"""The lock of a log's directory: who works on the log, or did last."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

LOCK = "lock"
"""Name of the lock's file in the log's directory."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the lock, or had it last.

    Attributes:
        process: Its number; empty where that is not known.
        same_boot: Whether it ran since the machine was started.
    """

    process: str
    same_boot: bool


def holder(lock: int) -> Holder:
    """Reads an open lock file."""
    lines = os.pread(lock, 128, 0).decode("ascii", "replace").splitlines()
    boot = lines[1].strip() if len(lines) > 1 else ""
    return Holder(lines[0].strip() if lines else "", bool(boot) and boot == _boot_id())


def sign(lock: int) -> None:
    """Writes this process into a lock file that it has locked."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n{_boot_id()}\n".encode(), 0)


def last_holder(directory: Path) -> Holder | None:
    """Gives who had the log last; None while somebody works on it."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Holder("", False)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return holder(lock)
    except BlockingIOError:
        return None
    finally:
        os.close(lock)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
