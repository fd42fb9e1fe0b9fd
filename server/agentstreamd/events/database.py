"""The directory of the event log: its lock, its files, connections to it."""

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path

from . import lock as locks
from .config import EventLogConfig
from .errors import DataDirInUse, LogUnavailable, Reason, unavailable
from .privacy import keep_private
from .schema import migrate
from .soundness import require_sound
from .whole import require_whole, size, wal_of

DATABASE = "events.db"
"""Name of the database in the log's directory."""
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


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
        self._wal = wal_of(self.path)

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
                    require_whole(self.path, self._same_boot)
                else:
                    self._make()
                self._keep_others_out()
                with contextlib.closing(self.connect()) as connection:
                    migrate(connection)
                    require_sound(connection)
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
        if size(self._wal):
            raise LogUnavailable(Reason.CORRUPT, f"{self.path} is gone, {self._wal} is not")
        fresh = self.path.with_name(f"{DATABASE}.new")
        for left in (fresh, Path(f"{fresh}-journal")):
            left.unlink(missing_ok=True)
        # SQLite gives its other files the mode of this one.
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))
        with contextlib.closing(self._connect(fresh)) as connection:
            migrate(connection)
        fresh.rename(self.path)

    def _keep_others_out(self) -> None:
        """Narrows what was made by others, or was opened up since."""
        directory = self._config.directory
        paths = (directory, self.path, self._wal, Path(f"{self.path}-shm"), directory / locks.LOCK)
        for path in paths:
            keep_private(path)

    def _acquire(self) -> None:
        directory = self._config.directory
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        # flock and not lockf: it also keeps a second log in this process out.
        lock = os.open(directory / locks.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = locks.holder(lock).process
            os.close(lock)
            raise DataDirInUse(str(directory), process) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        self._same_boot = locks.holder(lock).same_boot
        # That a full disk keeps it from being written must not keep us out.
        with contextlib.suppress(OSError):
            locks.sign(lock)
