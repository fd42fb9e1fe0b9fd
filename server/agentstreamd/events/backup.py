"""A copy of an event log at one moment, made while a daemon works on it or not."""

import contextlib
import os
import sqlite3
from pathlib import Path

from .checksums import verify_all
from .config import EventLogConfig
from .database import DATABASE
from .errors import BackupExists, LogUnavailable, Reason, SchemaTooNew, unavailable
from .lock import last_holder
from .schema import APPLICATION_ID, MIGRATIONS, schema_version
from .soundness import require_sound, require_sound_throughout
from .whole import require_whole, size, wal_of


def back_up(source: Path, target: Path) -> Path:
    """Copies the log in directory `source` into directory `target`; gives the file made.

    The copy holds what was durable at one moment, whatever is written meanwhile, and appears only
    when it is whole. Blocking; meanwhile the write-ahead log of `source` grows.

    Raises:
        BackupExists: `target` has a log already; it is left as it is.
        SchemaTooNew: a newer program wrote the log.
        LogUnavailable: there is no log in `source`, it is damaged, or `target` can't be written.
    """
    made = target / DATABASE
    partial = target / f"{DATABASE}.partial-{os.getpid()}"
    try:
        for there in (made, wal_of(made)):
            # SQLite would take the write-ahead log of another log for the copy's.
            if there.exists():
                raise BackupExists(str(there))
        _require_whole(source / DATABASE)
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        # Made first, and empty, for its mode: SQLite would make it readable by others.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with contextlib.closing(_connect(source / DATABASE)) as connection:
                # Of a page that is damaged a copy may have just what could be made out.
                require_sound_throughout(connection)
                connection.execute("VACUUM INTO ?", (str(partial),))
            with contextlib.closing(_connect(partial)) as connection:
                # A damaged copy must not take the place of one that was made before the damage.
                require_sound(connection)
                verify_all(connection)
            _sync(partial)
            _give_name(partial, made)
            _sync(target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise unavailable(error) or error from error
    return made


def _require_whole(database: Path) -> None:
    """Raises where connecting would take away what tells that commits are missing."""
    try:
        if size(database):
            require_whole(database, same_boot=True)
    except LogUnavailable:
        # While a daemon works the files change under our eyes, and all that counts is there.
        last = last_holder(database.parent)
        if last is not None:
            require_whole(database, last.same_boot)


def _give_name(partial: Path, made: Path) -> None:
    try:
        os.link(partial, made)  # unlike a rename, never replaces what another backup made
    except FileExistsError:
        raise BackupExists(str(made)) from None
    except OSError:
        partial.rename(made)  # a file system without links


def _connect(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LogUnavailable(Reason.IO_ERROR, f"there is no event log {path}")
    timeout_seconds = EventLogConfig(directory=path.parent).busy_timeout_seconds
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None)
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise LogUnavailable(Reason.CORRUPT, "the file is not an event log")
        version = schema_version(connection)
        if version > len(MIGRATIONS):
            raise SchemaTooNew(version, len(MIGRATIONS))
    except BaseException:
        connection.close()
        raise
    return connection


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
