"""What the tests of the event log share."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentstreamd.events import EventLogConfig, Reader, Record, SqliteEventLog


def event(sequence: int, size: int = 12) -> bytes:
    return f"event {sequence} ".encode().ljust(size, b".")


def records(first: int, count: int, *, size: int = 12, kind: int = 1) -> list[Record]:
    return [Record(event(n, size), b"", kind) for n in range(first, first + count)]


def decode(data: bytes) -> list[bytes]:
    """Reads `repeated bytes = 1` as any protobuf parser does."""
    out, at = [], 0
    while at < len(data):
        assert data[at] == 0x0A
        at, length, shift = at + 1, 0, 0
        while True:
            byte = data[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        assert at + length <= len(data)
        out.append(data[at : at + length])
        at += length
    return out


async def read_all(
    reader: Reader,
    after: int = 0,
    *,
    kinds: frozenset[int] | None = None,
    include_raw: bool = False,
    max_events: int = 256,
    max_bytes: int = 1 << 20,
) -> list[bytes]:
    """Reads to the tail, and checks that every read moves the cursor and counts right."""
    out: list[bytes] = []
    while after < reader.latest:
        batch = await reader.read(
            after,
            kinds=kinds,
            include_raw=include_raw,
            max_events=max_events,
            max_bytes=max_bytes,
        )
        events = decode(batch.data)
        assert batch.last_sequence > after
        assert len(events) == batch.count <= max_events
        out += events
        after = batch.last_sequence
    return out


class Gate:
    """Stands before each commit: counts, holds it up, or makes it fail."""

    def __init__(self) -> None:
        self.commits = 0
        self.reached = threading.Event()
        self.error: Exception | None = None
        self._open = threading.Event()
        self._open.set()

    def __call__(self) -> None:
        self.commits += 1
        self.reached.set()
        assert self._open.wait(60)
        if self.error is not None:
            raise self.error

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()


def disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def rows(directory: Path, sql: str, arguments: Sequence[object] = ()) -> list[tuple[object, ...]]:
    """Asks the database itself, as another process sees it."""
    connection = sqlite3.connect(directory / "events.db")
    try:
        return connection.execute(sql, arguments).fetchall()
    finally:
        connection.close()


@asynccontextmanager
async def opened(config: EventLogConfig, gate: Gate | None = None) -> AsyncIterator[SqliteEventLog]:
    log = await SqliteEventLog.open(config, before_commit=gate)
    try:
        yield log
    finally:
        if gate is not None:
            gate.open()
        await log.close()
