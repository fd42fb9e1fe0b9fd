"""One commit of the writer: gathers jobs, then writes what they come to.

Jobs are checked when they are gathered, so that one that can't be done fails alone; nothing is
written before `commit`. What the writer remembers of sessions changes only after it.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .checksums import checksum, chunk_row
from .config import EventLogConfig
from .errors import SequenceConflict, SessionExists, SessionNotFound
from .frames import Chunk, pack
from .jobs import Appended, AppendJob, Change, Compacted, CompactJob, CreateJob, Deleted, Job
from .queries import load_session
from .schema import MAX_SEQUENCE, PIECE_BITS, PIECE_BYTES, chunk_id

_REMEMBERED = 1024  # sessions; with their open chunks a few MiB

_INSERT_SESSION = "INSERT INTO sessions (key, session_id, uid) VALUES (?, ?, ?)"
_DELETE_SESSION = "DELETE FROM sessions WHERE key = ?"
_SET_EARLIEST = "UPDATE sessions SET earliest = ? WHERE key = ?"
_PUT_CHUNK = """
    INSERT INTO chunks (id, kinds, tags, lengths, frames, raw_lengths, raws)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET kinds = excluded.kinds, tags = excluded.tags,
        lengths = excluded.lengths, frames = excluded.frames,
        raw_lengths = excluded.raw_lengths, raws = excluded.raws
"""
_PUT_VALUE = """
    INSERT INTO state (session, key, value, checksum) VALUES (?, ?, ?, ?)
    ON CONFLICT (session, key) DO UPDATE SET
        value = excluded.value, checksum = excluded.checksum
"""
_DELETE_VALUE = "DELETE FROM state WHERE session = ? AND key = ?"
_PUT_BLOB = """
    INSERT INTO blobs (key, session, blob_id, sequence, size) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET sequence = excluded.sequence
"""
_PUT_PIECE = "INSERT INTO blob_pieces (id, data, checksum) VALUES (?, ?, ?)"
_PUT_GARBAGE = """
    INSERT INTO garbage (session, before, whole) VALUES (?, ?, ?)
    ON CONFLICT (session) DO UPDATE SET
        before = max(before, excluded.before), whole = max(whole, excluded.whole)
"""

# In the order of writing: a deleted session's id must be free for the one that follows it.
_ORDER = (
    _DELETE_SESSION,
    _INSERT_SESSION,
    _SET_EARLIEST,
    _PUT_CHUNK,
    _DELETE_VALUE,
    _PUT_VALUE,
    _PUT_BLOB,
    _PUT_PIECE,
    _PUT_GARBAGE,
)


@dataclass(slots=True)
class Known:
    """What the writer knows of a session; `open` is its last chunk while that is small."""

    session_id: str
    uid: str
    key: int
    earliest: int
    last: int
    open: Chunk | None = None
    is_new: bool = False
    appended: Appended | None = None


class Memory:
    """Sessions that the writer knows, and the next free keys; true to what is committed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.sessions: OrderedDict[str, Known] = OrderedDict()
        keys = dict(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        self.next_session: int = keys.get("sessions", 0) + 1
        self.next_blob: int = keys.get("blobs", 0) + 1


class Transaction:
    """The jobs of one commit."""

    def __init__(
        self, connection: sqlite3.Connection, memory: Memory, config: EventLogConfig
    ) -> None:
        self._connection = connection
        self._memory = memory
        self._config = config
        self._staged: dict[str, Known | None] = {}  # None: deleted
        self._values: dict[tuple[int, str], bytes | None] = {}
        self._blobs: dict[tuple[int, str], tuple[int, int, int, bytes | None]] = {}
        self._next_session = memory.next_session
        self._next_blob = memory.next_blob
        self._compacted: dict[int, int] = {}
        self._deleted: list[int] = []
        self._changes: list[Change] = []
        self.has_garbage = False

    def add(self, job: Job) -> None:
        """Takes a job in; raises where it can't be done, and is then without it."""
        match job:
            case CreateJob():
                self._create(job)
            case AppendJob():
                self._append(job, self._find(job.session_id))
            case CompactJob():
                self._compact(job)
            case _:
                self._delete(job)

    def commit(self) -> tuple[list[Change], int]:
        """Writes everything in one transaction; gives the changes, and the bytes written.

        Raises what SQLite raises; nothing is written then.
        """
        plan = self._plan()
        rows = sum(len(arguments) for _, arguments in plan)
        connection = self._connection
        if rows == 1:
            # A statement is atomic by itself: two steps less, each of which gives the
            # interpreter lock away.
            connection.execute(plan[0][0], plan[0][1][0])
        elif rows:
            # What an earlier rollback that failed itself may have left.
            _roll_back(connection)
            try:
                connection.execute("BEGIN IMMEDIATE")
                for statement, arguments in plan:
                    connection.executemany(statement, arguments)
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        self._remember()
        return self._changes, sum(
            len(value)
            for _, arguments in plan
            for row in arguments
            for value in row
            if isinstance(value, (bytes, memoryview))
        )

    def _find(self, session_id: str) -> Known:
        if session_id in self._staged:
            known = self._staged[session_id]
            if known is None:
                raise SessionNotFound(session_id)
            return known
        remembered = self._memory.sessions.get(session_id)
        if remembered is not None:
            known = replace(remembered, appended=None, is_new=False)
        else:
            session = load_session(self._connection, session_id)
            known = Known(session_id, session.uid, session.key, session.earliest, session.latest)
        self._staged[session_id] = known
        return known

    def _create(self, job: CreateJob) -> None:
        try:
            existing = self._find(job.session_id)
        except SessionNotFound:
            known = Known(job.session_id, job.uid, self._next_session, 1, 0, is_new=True)
            before = self._staged.get(job.session_id)
            self._staged[job.session_id] = known
            try:
                self._append(job, known)
            except BaseException:
                self._staged[job.session_id] = before
                raise
            self._next_session += 1
        else:
            raise SessionExists(job.session_id, existing.uid)

    def _append(self, job: AppendJob, known: Known) -> None:
        if job.expected != known.last:
            raise SequenceConflict(job.session_id, job.expected, known.last)
        if job.chunks and job.chunks[-1].last > MAX_SEQUENCE:
            raise OverflowError("a session has no more than 2^36 - 1 events")
        blobs = [(blob_id, *self._find_blob(known, blob_id)) for blob_id, _ in job.blobs]
        if job.chunks:
            if known.appended is None:
                known.appended = Appended(
                    known.session_id, known.uid, known.key, known.earliest, []
                )
                self._changes.append(known.appended)
            known.appended.chunks += job.chunks
            known.last = job.chunks[-1].last
        for name in job.deletes:
            self._values[known.key, name] = None
        for name, value in job.puts.items():
            self._values[known.key, name] = value
        for (blob_id, blob_key, size), (_, data) in zip(blobs, job.blobs, strict=True):
            at = (known.key, blob_id)
            if blob_key:
                self._blobs[at] = (blob_key, known.last, size, None)
            elif at in self._blobs:
                blob_key, _, size, pending = self._blobs[at]
                self._blobs[at] = (blob_key, known.last, size, pending)
            else:
                self._blobs[at] = (self._next_blob, known.last, len(data), data)
                self._next_blob += 1
        job.result = known.last

    def _find_blob(self, known: Known, blob_id: str) -> tuple[int, int]:
        row = self._connection.execute(
            "SELECT key, size FROM blobs WHERE session = ? AND blob_id = ?", (known.key, blob_id)
        ).fetchone()
        return (row[0], row[1]) if row else (0, 0)

    def _delete(self, job: Job) -> None:
        known = self._find(job.session_id)
        if known.is_new:
            self._values = {at: v for at, v in self._values.items() if at[0] != known.key}
            self._blobs = {at: v for at, v in self._blobs.items() if at[0] != known.key}
        else:
            self._deleted.append(known.key)
        self._staged[job.session_id] = None
        self._changes.append(Deleted(job.session_id))
        job.result = known.last

    def _compact(self, job: CompactJob) -> None:
        """Must be the only job of its transaction: it looks at what is committed."""
        known = self._find(job.session_id)
        if job.uid and known.uid != job.uid:
            raise SessionNotFound(job.session_id)
        before = min(job.before, known.last + 1)
        if before > known.last:
            earliest = before
        else:
            (found,) = self._connection.execute(
                "SELECT max(id) FROM chunks WHERE id > ? AND id <= ?",
                (chunk_id(known.key, 0), chunk_id(known.key, max(before, 0))),
            ).fetchone()
            earliest = known.earliest if found is None else found & MAX_SEQUENCE
        if earliest > known.earliest:
            known.earliest = earliest
            if known.open is not None and known.open.first < earliest:
                known.open = None
            self._compacted[known.key] = earliest
            self._changes.append(Compacted(job.session_id, earliest))
        job.result = known.earliest

    def _plan(self) -> list[tuple[str, list[tuple[object, ...]]]]:
        rows: dict[str, list[tuple[object, ...]]] = {statement: [] for statement in _ORDER}
        gone = set(self._deleted)
        for known in self._staged.values():
            if known is None:
                continue
            if known.is_new:
                rows[_INSERT_SESSION].append((known.key, known.session_id, known.uid))
            if known.appended is not None:
                rows[_PUT_CHUNK] += self._chunk_rows(known)
        for key in self._deleted:
            rows[_DELETE_SESSION].append((key,))
            rows[_PUT_GARBAGE].append((key, MAX_SEQUENCE, 1))
        for key, earliest in self._compacted.items():
            rows[_SET_EARLIEST].append((earliest, key))
            rows[_PUT_GARBAGE].append((key, earliest, 0))
        for (key, name), value in self._values.items():
            if key in gone:
                continue
            if value is None:
                rows[_DELETE_VALUE].append((key, name))
            else:
                rows[_PUT_VALUE].append((key, name, value, checksum(value)))
        for (key, blob_id), (blob_key, sequence, size, data) in self._blobs.items():
            if key in gone:
                continue
            rows[_PUT_BLOB].append((blob_key, key, blob_id, sequence, size))
            rows[_PUT_PIECE] += _piece_rows(blob_key, data or b"")
        self.has_garbage = bool(rows[_PUT_GARBAGE])
        return [(statement, arguments) for statement, arguments in rows.items() if arguments]

    def _chunk_rows(self, known: Known) -> list[tuple[object, ...]]:
        assert known.appended is not None
        # Jobs of one commit become one chunk, here and in the tail.
        known.appended.chunks = pack(known.appended.chunks, self._config.chunk_bytes)
        chunks = known.appended.chunks
        if known.open is not None:
            chunks = pack([known.open, *chunks], self._config.chunk_bytes)
        last = chunks[-1]
        known.open = last if last.stored_bytes < self._config.small_chunk_bytes else None
        return [chunk_row(known.key, chunk) for chunk in chunks]

    def _remember(self) -> None:
        memory = self._memory
        memory.next_session, memory.next_blob = self._next_session, self._next_blob
        for session_id, known in self._staged.items():
            if known is None:
                memory.sessions.pop(session_id, None)
            else:
                known.appended = None
                memory.sessions[session_id] = known
                memory.sessions.move_to_end(session_id)
        while len(memory.sessions) > _REMEMBERED:
            memory.sessions.popitem(last=False)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # after some errors SQLite has done it by itself
        connection.execute("ROLLBACK")


def _piece_rows(key: int, data: bytes) -> Iterable[tuple[object, ...]]:
    view = memoryview(data)
    pieces = [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]
    return [
        (key << PIECE_BITS | number, piece, checksum(piece)) for number, piece in enumerate(pieces)
    ]
