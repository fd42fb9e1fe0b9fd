"""Settings of the SQLite event log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogConfig:
    """Settings of the SQLite event log; sizes in bytes, times in seconds.

    Attributes:
        directory: the log's own directory; made with mode 0700 where it is missing.
        synchronous: NORMAL survives a kill of the process at any moment; FULL also a power cut,
            at one fsync per commit.
        queue_bytes: what may wait for the writer thread; further appends wait for room.
        commit_bytes: one commit takes no more of the queue than this (and at least one append).
        chunk_bytes: a stored row of events holds about this much.
        small_chunk_bytes: a last row smaller than this is written again together with the next
            events, so that slow sessions don't leave a row per event.
        tail_session_bytes: newest events kept in memory per session with appends.
        tail_total_bytes: the same over all sessions.
        read_bytes: one read from disk takes about this much: each needs a thread's turn.
        page_cache_bytes: rows read lately for readers that are behind the tail.
        idle_seconds: a session without an append for this long leaves the memory.
        reader_threads: threads, each with its connection, for reads from disk.
        busy_timeout_seconds: how long SQLite waits for a lock.
        checkpoint_bytes: after this much has been written, the write-ahead log is copied into the
            database, in a thread of its own.
        wal_bytes: bound of the write-ahead log: beyond it the writer waits until a checkpoint has
            emptied it (a commit and a reader's snapshot may add to it once).
    """

    directory: Path
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    queue_bytes: int = 32 * MIB
    commit_bytes: int = 4 * MIB
    chunk_bytes: int = 256 * KIB
    small_chunk_bytes: int = 4 * KIB
    tail_session_bytes: int = 1 * MIB
    tail_total_bytes: int = 64 * MIB
    read_bytes: int = 1 * MIB
    page_cache_bytes: int = 16 * MIB
    idle_seconds: float = 30.0
    reader_threads: int = 2
    busy_timeout_seconds: float = 5.0
    checkpoint_bytes: int = 8 * MIB
    wal_bytes: int = 64 * MIB
