"""What can go wrong in the event log, as types."""

import enum
import errno
import sqlite3


class EventLogError(Exception):
    """Base of every error the event log raises on purpose."""


class SessionNotFound(EventLogError):
    """The log has no session of this id."""

    def __init__(self, session_id: str) -> None:
        """Names the session that is not there."""
        super().__init__(f"session {session_id!r} is not in the log")
        self.session_id = session_id


class SessionDeleted(SessionNotFound):
    """The session was deleted while a reader stood on it."""


class SessionExists(EventLogError):
    """A session of this id is already there; `uid` is the uid of that one."""

    def __init__(self, session_id: str, uid: str) -> None:
        """Names the session and the uid it has."""
        super().__init__(f"session {session_id!r} is already in the log")
        self.session_id = session_id
        self.uid = uid


class SequenceConflict(EventLogError):
    """An append expected the log at another sequence than `latest`, where it is."""

    def __init__(self, session_id: str, expected: int, latest: int) -> None:
        """Gives what was expected and what is true."""
        super().__init__(
            f"append to session {session_id!r} expected sequence {expected}, the log is at {latest}"
        )
        self.session_id = session_id
        self.expected = expected
        self.latest = latest


class CursorCompacted(EventLogError):
    """The events right after the cursor are no longer kept."""

    def __init__(self, after_sequence: int, earliest: int, latest: int) -> None:
        """Gives the cursor and the sequences that are there."""
        super().__init__(
            f"events after {after_sequence} were compacted; the log has {earliest} to {latest}"
        )
        self.after_sequence = after_sequence
        self.earliest = earliest
        self.latest = latest


class CursorInFuture(EventLogError):
    """The cursor is beyond the newest event."""

    def __init__(self, after_sequence: int, latest: int) -> None:
        """Gives the cursor and the newest sequence."""
        super().__init__(f"cursor {after_sequence} is beyond the newest event {latest}")
        self.after_sequence = after_sequence
        self.latest = latest


class InvalidPageCursor(EventLogError):
    """A page cursor that this log never gave out."""


class BlobNotFound(EventLogError):
    """The session has no blob of this id."""

    def __init__(self, session_id: str, blob_id: str) -> None:
        """Names the blob that is not there."""
        super().__init__(f"session {session_id!r} has no blob {blob_id!r}")
        self.session_id = session_id
        self.blob_id = blob_id


class BlobOffsetOutOfRange(EventLogError):
    """An offset beyond the end of a blob; `size` is the blob's size in bytes."""

    def __init__(self, offset: int, size: int) -> None:
        """Gives the offset and the size, both in bytes."""
        super().__init__(f"offset {offset} is beyond the blob's {size} bytes")
        self.offset = offset
        self.size = size


class Reason(enum.StrEnum):
    """Why a log can't be used right now."""

    DISK_FULL = "disk_full"
    READ_ONLY = "read_only"
    CORRUPT = "corrupt"
    IO_ERROR = "io_error"
    BUSY = "busy"
    CLOSED = "closed"
    INTERNAL = "internal"


_ADVICE = {Reason.CORRUPT: "; the log is damaged: restore a backup"}


class LogUnavailable(EventLogError):
    """The log could not be read or written; nothing of the failed append was stored.

    After `DISK_FULL` the log works again once there is space.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        """Gives the reason for programs and the detail for people."""
        advice = _ADVICE.get(reason, "")
        super().__init__(f"event log unavailable ({reason.value}): {detail}{advice}")
        self.reason = reason
        self.detail = detail


class DataDirInUse(EventLogError):
    """Another process (or another log in this one) has the directory open."""

    def __init__(self, directory: str, holder: str) -> None:
        """Names the directory and who holds it, as far as that is known."""
        super().__init__(f"data directory {directory} is in use by process {holder or 'unknown'}")
        self.directory = directory
        self.holder = holder


class OpenToOthers(EventLogError):
    """Other users can get at a file or directory of the log, and that can't be changed."""

    def __init__(self, path: str, why: str) -> None:
        """Names the path and says why its mode is left as it is."""
        super().__init__(
            f"{path} is open to other users, and {why}: name a directory that is the daemon's own"
        )
        self.path = path


class BackupExists(EventLogError):
    """Where a backup was to go there is a log already."""

    def __init__(self, path: str) -> None:
        """Names the file that is in the way."""
        super().__init__(f"{path} exists already: back up into a new directory")
        self.path = path


class SchemaTooNew(EventLogError):
    """The log was written by a newer version of this program."""

    def __init__(self, found: int, supported: int) -> None:
        """Gives the version found and the newest one this program reads."""
        super().__init__(
            f"the event log has schema version {found}, this program reads up to {supported}: "
            "use the version that wrote it, or a newer one"
        )
        self.found = found
        self.supported = supported


_SQLITE_REASONS = {
    sqlite3.SQLITE_FULL: Reason.DISK_FULL,
    sqlite3.SQLITE_READONLY: Reason.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: Reason.CORRUPT,
    sqlite3.SQLITE_NOTADB: Reason.CORRUPT,
    sqlite3.SQLITE_IOERR: Reason.IO_ERROR,
    sqlite3.SQLITE_CANTOPEN: Reason.IO_ERROR,
    sqlite3.SQLITE_PERM: Reason.IO_ERROR,
    sqlite3.SQLITE_BUSY: Reason.BUSY,
    sqlite3.SQLITE_LOCKED: Reason.BUSY,
    sqlite3.SQLITE_PROTOCOL: Reason.BUSY,
    sqlite3.SQLITE_NOMEM: Reason.INTERNAL,
}

_OS_REASONS = {
    errno.ENOSPC: Reason.DISK_FULL,
    errno.EDQUOT: Reason.DISK_FULL,
    errno.EROFS: Reason.READ_ONLY,
}


_NO_TEXT = "Could not decode to UTF-8"  # the binding's words for text that is none
_NO_FORMAT = "unsupported file format"  # a damaged header; the code says nothing


def unavailable(error: BaseException) -> LogUnavailable | None:
    """Gives the error as `LogUnavailable` where storage is at fault, else None."""
    if isinstance(error, LogUnavailable):
        return error
    if isinstance(error, sqlite3.Error):
        # The low byte is the primary code, the rest says more of the same. An error raised
        # without a code comes from the binding, not from storage.
        code: int | None = getattr(error, "sqlite_errorcode", None)
        if (code is None and _NO_TEXT in str(error)) or _NO_FORMAT in str(error):
            return LogUnavailable(Reason.CORRUPT, str(error))
        reason = _SQLITE_REASONS.get(code & 0xFF) if code is not None else None
        return None if reason is None else LogUnavailable(reason, str(error))
    if isinstance(error, UnicodeDecodeError):  # SQLite quotes a damaged schema in its message
        return LogUnavailable(Reason.CORRUPT, "the schema or a text is not what was written")
    if isinstance(error, OSError):
        return LogUnavailable(_OS_REASONS.get(error.errno or 0, Reason.IO_ERROR), str(error))
    return None
