"""Reads from the database; blocking, run by reader threads."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from .checksums import read_chunk, verified
from .errors import BlobNotFound, LogUnavailable, SessionNotFound
from .frames import Chunk, pack
from .live import Session
from .log import SessionInfo
from .schema import MAX_SEQUENCE, PIECE_BITS, PIECE_BYTES, chunk_id, signed

# The newest event: the newest chunk's first one, and how many it has.
_LATEST = f"""
    coalesce(
        (SELECT (c.id & {MAX_SEQUENCE}) + length(c.tags) - 1 FROM chunks c
         WHERE c.id > s.key * {MAX_SEQUENCE + 1} AND c.id <= s.key * {MAX_SEQUENCE + 1}
            + {MAX_SEQUENCE}
         ORDER BY c.id DESC LIMIT 1),
        s.earliest - 1
    )
"""
_SESSION = f"SELECT s.uid, s.key, s.earliest, {_LATEST} FROM sessions s WHERE s.session_id = ?"
_LIST = f"""
    SELECT s.key, s.session_id, s.uid, s.earliest, {_LATEST}, v.value, v.checksum
    FROM sessions s LEFT JOIN state v ON v.session = s.key AND v.key = :name
    WHERE s.key > :after ORDER BY s.key LIMIT :limit
"""
_CHUNKS = """
    SELECT id, kinds, tags, lengths, frames, {raws} FROM chunks
    WHERE id >= coalesce(
            (SELECT max(id) FROM chunks WHERE id > :low AND id <= :next), :next
        ) AND id <= :high {filtered}
    ORDER BY id
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Chunks as stored at one moment.

    Attributes:
        earliest: sequence of the session's oldest event; None where the session is gone.
        chunks: in order; where a filter was given, those without a matching event are left out.
        end: there is no matching event after the last chunk up to here.
    """

    earliest: int | None
    chunks: Sequence[Chunk]
    end: int


def load_session(connection: sqlite3.Connection, session_id: str) -> Session:
    """Loads uid, key and bounds of a session, or raises `SessionNotFound`."""
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    return Session(session_id, *row)


def load_chunks(
    connection: sqlite3.Connection,
    key: int,
    after: int,
    latest: int,
    mask: int | None,
    with_raws: bool,
    want_bytes: int,
    chunk_bytes: int,
) -> Loaded:
    """Loads chunks with events after `after`: at least one, about `want_bytes` at most.

    Small neighbours are joined up to `chunk_bytes`.

    A gap up to the first chunk is of events that the filter hides.
    """
    sql = _CHUNKS.format(
        raws="raw_lengths, raws" if with_raws else "x'', NULL",
        filtered="" if mask is None else "AND kinds & :mask",
    )
    arguments = {
        "low": chunk_id(key, 0),
        "next": chunk_id(key, after + 1),
        "high": chunk_id(key, MAX_SEQUENCE),
        "mask": signed(mask or 0),
    }
    chunks: list[Chunk] = []
    size, end = 0, latest
    connection.execute("BEGIN")
    try:
        row = connection.execute("SELECT earliest FROM sessions WHERE key = ?", (key,)).fetchone()
        if row is None or row[0] > after + 1:
            return Loaded(row and row[0], (), after)
        for columns in connection.execute(sql, arguments):
            chunk = read_chunk(*columns)
            if mask is None and chunks and chunk.first != chunks[-1].last + 1:
                break  # a gap is damage: the reader that comes to it is told
            chunks.append(chunk)
            end = max(latest, chunk.last)
            size += chunk.stored_bytes
            if size >= want_bytes:
                end = chunk.last
                break
    except (LogUnavailable, sqlite3.DatabaseError):
        if not chunks:
            raise
        end = chunks[-1].last  # what is whole comes first: who reads on is told
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
    if mask is None and chunks:
        # Slow sessions leave small chunks; joined they are found and sent at less cost.
        chunks = pack(chunks, chunk_bytes)
    return Loaded(row[0], chunks, end)


def first_within(connection: sqlite3.Connection, session_id: str, size_bytes: int) -> int:
    """Gives where the newest chunks that have at most `size_bytes` together begin."""
    session = load_session(connection, session_id)
    first, size = session.latest + 1, 0
    # Lengths stand at the head of a row: the content is not read.
    for id_, length in connection.execute(
        "SELECT id, length(frames) + length(raws) FROM chunks WHERE id >= ? AND id <= ? "
        "ORDER BY id DESC",
        (chunk_id(session.key, session.earliest), chunk_id(session.key, MAX_SEQUENCE)),
    ):
        size += length
        if size > size_bytes:
            break
        first = id_ & MAX_SEQUENCE
    return first


def list_sessions(
    connection: sqlite3.Connection, after: int, limit: int, name: str | None
) -> list[tuple[int, SessionInfo]]:
    """Lists sessions with a key beyond `after`, by key."""
    rows = connection.execute(_LIST, {"after": after, "limit": limit, "name": name})
    return [
        (
            key,
            SessionInfo(
                session_id,
                uid,
                earliest,
                latest,
                None if value is None else verified(value, stored, _value_of(session_id, name)),
            ),
        )
        for key, session_id, uid, earliest, latest, value, stored in rows
    ]


def get_value(connection: sqlite3.Connection, session_id: str, name: str) -> bytes | None:
    """Gives a value of a session's state."""
    row = connection.execute(
        "SELECT v.value, v.checksum FROM sessions s "
        "LEFT JOIN state v ON v.session = s.key AND v.key = ? WHERE s.session_id = ?",
        (name, session_id),
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    value, stored = row
    return None if value is None else verified(value, stored, _value_of(session_id, name))


def get_values(connection: sqlite3.Connection, session_id: str, prefix: str) -> dict[str, bytes]:
    """Gives the values of a session's state whose key begins with `prefix`."""
    rows = connection.execute(
        "SELECT v.key, v.value, v.checksum FROM sessions s LEFT JOIN state v ON v.session = s.key "
        "AND v.key >= ? AND substr(v.key, 1, ?) = ? WHERE s.session_id = ? ORDER BY v.key",
        (prefix, len(prefix), prefix, session_id),
    ).fetchall()
    if not rows:
        raise SessionNotFound(session_id)
    return {
        key: verified(value, stored, _value_of(session_id, key))
        for key, value, stored in rows
        if key is not None
    }


def having(connection: sqlite3.Connection, prefix: str) -> set[str]:
    """Gives the ids of sessions with a key that begins with `prefix`."""
    # One look into the index for each session, however many keys these have.
    rows = connection.execute(
        "SELECT s.session_id FROM sessions s WHERE EXISTS "
        "(SELECT 1 FROM state v WHERE v.session = s.key AND v.key >= ? AND v.key < ?)",
        (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)),
    )
    return {session_id for (session_id,) in rows}


def find_blob(connection: sqlite3.Connection, session_id: str, blob_id: str) -> tuple[int, int]:
    """Gives key and size of a blob."""
    row = connection.execute(
        "SELECT b.key, b.size FROM sessions s LEFT JOIN blobs b "
        "ON b.session = s.key AND b.blob_id = ? WHERE s.session_id = ?",
        (blob_id, session_id),
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    if row[0] is None:
        raise BlobNotFound(session_id, blob_id)
    return row[0], row[1]


def blob_piece(connection: sqlite3.Connection, key: int, offset: int) -> bytes | None:
    """Gives the bytes from `offset` to the end of its piece; None where they are gone."""
    number, skip = divmod(offset, PIECE_BYTES)
    row = connection.execute(
        "SELECT data, checksum FROM blob_pieces WHERE id = ?", (key << PIECE_BITS | number,)
    ).fetchone()
    return None if row is None else verified(row[0], row[1], "a piece of a blob")[skip:]


def _value_of(session_id: str, name: str | None) -> str:
    return f"the value {name!r} of session {session_id!r}"
