"""The directory of the event log: its lock, its files, connections to it."""

import contextlib
import fcntl
import logging
import os
import sqlite3
from pathlib import Path

from . import wal
from .config import EventLogConfig
from .errors import DataDirInUse, LogUnavailable, Reason, unavailable
from .privacy import keep_private
from .schema import migrate

DATABASE = "events.db"
"""Name of the database in the log's directory."""
_LOCK = "lock"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_PAGE_SIZE_AT = 16  # offset in the database
_SMALL_TABLES = ("sessions", "blobs", "garbage", "sqlite_sequence")
"""A row for each session and blob, at the most: looked at whole when the log is opened."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class Database:
    """The directory of the log, locked by us from `open` to `close`.

    Blocking; used off the event loop. The lock is released by the kernel when the process dies,
    provided that no child holds its descriptor: children must be made by exec.
    """

    def __init__(self, config: EventLogConfig) -> None:
        self._config = config
        self._lock: int | None = None
        self._same_boot = False  # whether who had it last ran since the machine was started
        self.path = config.directory / DATABASE
        self._wal = Path(f"{self.path}-wal")

    def open(self) -> None:
        """Makes the directory and the database where they are missing, locks and migrates.

        Raises:
            DataDirInUse: somebody else has it open.
            OpenToOthers: other users can get at it, and that can't be changed.
            SchemaTooNew: a newer program wrote it.
            LogUnavailable: it can't be read or written.
        """
        try:
            self._acquire()
            try:
                if self.path.exists():
                    self._require_whole()
                else:
                    self._make()
                self._keep_others_out()
                with contextlib.closing(self.connect()) as connection:
                    migrate(connection)
                    _check(connection)
                    connection.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                self.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise unavailable(error) or error from error

    def close(self) -> None:
        """Releases the lock; all connections must be closed before."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def connect(self) -> sqlite3.Connection:
        """Gives a connection in autocommit mode, to be used by one thread at a time."""
        return self._connect(self.path)

    def _connect(self, path: Path) -> sqlite3.Connection:
        config = self._config
        connection = sqlite3.connect(
            path,
            timeout=config.busy_timeout_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute(f"PRAGMA synchronous = {config.synchronous}")
        # Checkpoints are made by the checkpointer, never in the middle of an append.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # Some builds overwrite whatever is deleted: as much to write as the events were. Freed
        # pages are used again by later events; until then they keep what they held.
        connection.execute("PRAGMA secure_delete = FAST")
        # To cut the file short stops the next commit for some 20 ms: only where it grew too long.
        connection.execute(f"PRAGMA journal_size_limit = {config.wal_bytes}")
        return connection

    def _make(self) -> None:
        """Makes a new database, which has its name only once it is whole."""
        if _size(self._wal):
            raise LogUnavailable(Reason.CORRUPT, f"{self.path} is gone, {self._wal} is not")
        fresh = self.path.with_name(f"{DATABASE}.new")
        for left in (fresh, Path(f"{fresh}-journal")):
            left.unlink(missing_ok=True)
        # SQLite gives its other files the mode of this one.
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))
        with contextlib.closing(self._connect(fresh)) as connection:
            migrate(connection)
        fresh.rename(self.path)

    def _require_whole(self) -> None:
        """Raises where SQLite would begin anew without a word, or go on without the end."""
        if not _size(self.path):
            raise LogUnavailable(Reason.CORRUPT, f"{self.path} is empty")
        # A checkpoint onto a full disk may leave a part of a page, but keeps the write-ahead log.
        if _has_part_of_a_page(self.path) and not _size(self._wal):
            raise LogUnavailable(Reason.CORRUPT, f"{self.path} is cut short")
        if not wal.is_cut(self.path):
            return
        if self._same_boot:
            raise LogUnavailable(Reason.CORRUPT, f"commits are missing at the end of {self._wal}")
        # A power cut does that to a log that isn't synchronous, and who starts anew knows of it.
        _log.warning("commits are missing at the end of the write-ahead log: the newest are lost")

    def _keep_others_out(self) -> None:
        """Narrows what was made by others, or was opened up since."""
        directory = self._config.directory
        paths = (directory, self.path, self._wal, Path(f"{self.path}-shm"), directory / _LOCK)
        for path in paths:
            keep_private(path)

    def _acquire(self) -> None:
        directory = self._config.directory
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        # flock and not lockf: it also keeps a second log in this process out.
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, _ = _read_lock(lock)
            os.close(lock)
            raise DataDirInUse(str(directory), holder) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        _, boot_before = _read_lock(lock)
        boot = _boot_id()
        self._same_boot = bool(boot) and boot == boot_before
        # That a full disk keeps it from being written must not keep us out.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n{boot}\n".encode(), 0)


def _read_lock(lock: int) -> tuple[str, str]:
    """Process and boot of who has the lock, or had it last."""
    lines = os.pread(lock, 128, 0).decode("ascii", "replace").splitlines()
    return lines[0].strip() if lines else "", lines[1].strip() if len(lines) > 1 else ""


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _check(connection: sqlite3.Connection) -> None:
    """Raises where a small table is damaged, in which a row that is lost would not be missed."""
    for table in _SMALL_TABLES:
        (said,) = connection.execute(f"PRAGMA integrity_check({table})").fetchone()
        if said != "ok":
            raise LogUnavailable(Reason.CORRUPT, f"table {table}: {said.splitlines()[-1]}")


def _has_part_of_a_page(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(_PAGE_SIZE_AT + 2)
    page = int.from_bytes(header[_PAGE_SIZE_AT:], "big")
    return bool(_size(path) % (page if page > 1 else 65536))  # 1 stands for 65536


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
