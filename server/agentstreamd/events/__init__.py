"""The durable event log; knows nothing but sessions, sequences and bytes."""

from .config import EventLogConfig
from .errors import (
    BlobNotFound,
    BlobOffsetOutOfRange,
    CursorCompacted,
    CursorInFuture,
    DataDirInUse,
    EventLogError,
    InvalidPageCursor,
    LogUnavailable,
    Reason,
    SchemaTooNew,
    SequenceConflict,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from .log import Batch, EventLog, Reader, Record, SessionInfo, SessionPage
from .sqlite import SqliteEventLog

__all__ = [
    "Batch",
    "BlobNotFound",
    "BlobOffsetOutOfRange",
    "CursorCompacted",
    "CursorInFuture",
    "DataDirInUse",
    "EventLog",
    "EventLogConfig",
    "EventLogError",
    "InvalidPageCursor",
    "LogUnavailable",
    "Reader",
    "Reason",
    "Record",
    "SchemaTooNew",
    "SequenceConflict",
    "SessionDeleted",
    "SessionExists",
    "SessionInfo",
    "SessionNotFound",
    "SessionPage",
    "SqliteEventLog",
]
