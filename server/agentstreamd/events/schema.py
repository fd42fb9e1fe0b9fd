"""The tables of the event log, and how they came to be.

`chunks.id` is the session's key and the first event's sequence in one number, so that the events
of a session lie together, in order, in one tree without a further index. `blob_pieces.id` is the
blob's key and the number of the piece.
"""

import sqlite3

from .errors import LogUnavailable, Reason, SchemaTooNew

APPLICATION_ID = 0x61677374
SEQUENCE_BITS = 36
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
PIECE_BITS = 20
PIECE_BYTES = 256 * 1024

# Each entry brings a log from the version of its index to the next one. Entries that were
# released are never edited.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            session_id TEXT NOT NULL UNIQUE,
            uid TEXT NOT NULL,
            earliest INTEGER NOT NULL DEFAULT 1
        )
        """,
        # The raws come last: who doesn't want them doesn't have to read past them.
        """
        CREATE TABLE chunks (
            id INTEGER PRIMARY KEY,
            kinds INTEGER NOT NULL,
            tags BLOB NOT NULL,
            lengths BLOB NOT NULL,
            frames BLOB NOT NULL,
            raw_lengths BLOB NOT NULL,
            raws BLOB NOT NULL
        )
        """,
        """
        CREATE TABLE state (
            session INTEGER NOT NULL,
            key TEXT NOT NULL,
            value BLOB NOT NULL,
            PRIMARY KEY (session, key)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE blobs (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            session INTEGER NOT NULL,
            blob_id TEXT NOT NULL,
            sequence INTEGER NOT NULL,
            size INTEGER NOT NULL,
            UNIQUE (session, blob_id)
        )
        """,
        "CREATE TABLE blob_pieces (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        # What is left to delete: chunks and blobs of a session before a sequence, or all of it.
        """
        CREATE TABLE garbage (
            session INTEGER PRIMARY KEY,
            before INTEGER NOT NULL,
            whole INTEGER NOT NULL
        )
        """,
    ),
    # Checksums. Chunks have theirs at the end of `lengths` and of `raw_lengths`. What was stored
    # before has none.
    (
        "ALTER TABLE state ADD COLUMN checksum INTEGER",
        "ALTER TABLE blob_pieces ADD COLUMN checksum INTEGER",
    ),
)


def schema_version(connection: sqlite3.Connection) -> int:
    """Gives the version of the log's schema; 0 where the file is new."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(
    connection: sqlite3.Connection, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS
) -> None:
    """Brings the log to the newest schema, all steps in one transaction.

    Raises:
        SchemaTooNew: a newer program wrote the log; it is left as it is.
        LogUnavailable: the file is another program's database.
    """
    version = schema_version(connection)
    if version > len(migrations):
        raise SchemaTooNew(version, len(migrations))
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    is_new = version == 0 and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and not is_new:
        raise LogUnavailable(Reason.CORRUPT, "the file is not an event log")
    if is_new:
        # Must be set before the first table is made; lets retention give space back.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if version == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def chunk_id(key: int, sequence: int) -> int:
    """Gives the id of the chunk of session `key` that begins at `sequence`."""
    return key << SEQUENCE_BITS | sequence


def signed(mask: int) -> int:
    """Gives a mask of 64 bits as SQLite's signed integer."""
    return mask - (1 << 64) if mask >> 63 else mask


def unsigned(value: int) -> int:
    """Gives SQLite's signed integer as a mask of 64 bits."""
    return value & ((1 << 64) - 1)
