"""Takes deleted and compacted data out of the database, in small steps between commits."""

import sqlite3

from .log import blob_value_key
from .schema import MAX_SEQUENCE, PIECE_BITS, chunk_id

_STEP_ROWS = 4  # of up to 256 KiB: a step keeps the writer for a millisecond
_STEP_VALUES = 256


def has_garbage(connection: sqlite3.Connection) -> bool:
    """Tells whether something is left to delete."""
    return connection.execute("SELECT 1 FROM garbage LIMIT 1").fetchone() is not None


def collect(connection: sqlite3.Connection) -> bool:
    """Deletes a little, in one transaction; tells whether there is more."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        row = connection.execute("SELECT session, before, whole FROM garbage LIMIT 1").fetchone()
        if row is not None:
            session, before, whole = row
            more = _chunks(connection, session, before) or _blobs(connection, session, before)
            if not more and whole:
                more = _values(connection, session)
            if not more:
                connection.execute("DELETE FROM garbage WHERE session = ?", (session,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return row is not None


def _chunks(connection: sqlite3.Connection, session: int, before: int) -> bool:
    cursor = connection.execute(
        "DELETE FROM chunks WHERE id IN "
        "(SELECT id FROM chunks WHERE id > ? AND id < ? ORDER BY id LIMIT ?)",
        (chunk_id(session, 0), chunk_id(session, min(before, MAX_SEQUENCE)), _STEP_ROWS),
    )
    return cursor.rowcount == _STEP_ROWS


def _blobs(connection: sqlite3.Connection, session: int, before: int) -> bool:
    row = connection.execute(
        "SELECT key, blob_id FROM blobs WHERE session = ? AND sequence < ? LIMIT 1",
        (session, before),
    ).fetchone()
    if row is None:
        return False
    key, blob_id = row
    if isinstance(blob_id, str):
        # Its id is free from the first piece on: the same content that is stored again meanwhile
        # must not be taken for what is being deleted. Bytes equal no id, which is text.
        connection.execute("UPDATE blobs SET blob_id = CAST(key AS BLOB) WHERE key = ?", (key,))
        connection.execute(
            "DELETE FROM state WHERE session = ? AND key = ?", (session, blob_value_key(blob_id))
        )
    first = key << PIECE_BITS
    cursor = connection.execute(
        "DELETE FROM blob_pieces WHERE id IN "
        "(SELECT id FROM blob_pieces WHERE id >= ? AND id < ? LIMIT ?)",
        (first, first + (1 << PIECE_BITS), _STEP_ROWS),
    )
    if cursor.rowcount < _STEP_ROWS:
        connection.execute("DELETE FROM blobs WHERE key = ?", (key,))
    return True


def _values(connection: sqlite3.Connection, session: int) -> bool:
    cursor = connection.execute(
        "DELETE FROM state WHERE session = ? AND key IN "
        "(SELECT key FROM state WHERE session = ? LIMIT ?)",
        (session, session, _STEP_VALUES),
    )
    return cursor.rowcount == _STEP_VALUES
