"""Whether a database is what it was when it was left: its schema, and what all sessions need."""

import contextlib
import sqlite3

from .errors import LogUnavailable, Reason
from .schema import MAX_SEQUENCE, MIGRATIONS, SEQUENCE_BITS, migrate, schema_version

_SMALL_TABLES = ("sessions", "blobs", "garbage", "sqlite_sequence")
"""A row for each session and blob, at the most: looked at whole, as a lost row isn't missed."""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
_SHARED = "SELECT 1 FROM sqlite_schema WHERE rootpage GROUP BY rootpage HAVING count(*) > 1"
_NEWEST = "(SELECT max(seq) FROM sqlite_sequence WHERE name = '{0}')"
# Else keys would be given twice.
_BEHIND = "SELECT 1 FROM {0} WHERE key > coalesce(" + _NEWEST + ", 0) LIMIT 1"
# Else what a session keeps would be deleted.
_NOT_GARBAGE = f"""
    SELECT 1 FROM garbage WHERE whole NOT IN (0, 1) OR typeof(before) <> 'integer'
        OR before NOT BETWEEN 0 AND {MAX_SEQUENCE}
        OR session NOT BETWEEN 1 AND coalesce({_NEWEST.format("sessions")}, 0)
        OR (whole AND session IN (SELECT key FROM sessions))
        OR before > coalesce((SELECT earliest FROM sessions WHERE key = session), before)
    LIMIT 1
"""
# Else events that are there would pass for removed ones.
_HIDDEN = f"""
    SELECT 1 FROM sessions s WHERE earliest > 1 AND key NOT IN (SELECT session FROM garbage)
        AND EXISTS (
            SELECT 1 FROM chunks c
            WHERE c.id > s.key << {SEQUENCE_BITS} AND c.id < s.key << {SEQUENCE_BITS} | s.earliest
        )
    LIMIT 1
"""


def require_sound(connection: sqlite3.Connection) -> None:
    """Does nothing where no session can be harmed; looks at no event, value or blob.

    Raises:
        LogUnavailable: what every session needs is damaged.
    """
    _require_schema(connection)
    for table in _SMALL_TABLES:
        _require_trees(connection, table)
    odd = (_NOT_GARBAGE, _BEHIND.format("sessions"), _BEHIND.format("blobs"), _HIDDEN)
    if any(connection.execute(query).fetchone() for query in odd):
        raise LogUnavailable(Reason.CORRUPT, "the tables of sessions and blobs contradict others")


def require_sound_throughout(connection: sqlite3.Connection) -> None:
    """Does nothing where SQLite finds no damage at all; reads the whole file.

    Raises:
        LogUnavailable: something is damaged.
    """
    require_sound(connection)
    _require_trees(connection)


def _require_trees(connection: sqlite3.Connection, table: str | None = None) -> None:
    of_what = "" if table is None else f"({table})"
    (said,) = connection.execute(f"PRAGMA integrity_check{of_what}").fetchone()
    if said != "ok":
        where = "" if table is None else f"table {table}: "
        raise LogUnavailable(Reason.CORRUPT, f"{where}{said.splitlines()[-1]}")


def _require_schema(connection: sqlite3.Connection) -> None:
    """SQLite would take other columns for ours: what the tables are like is compared."""
    version = schema_version(connection)
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        migrate(model, MIGRATIONS[:version])
        tables = [name for (name,) in model.execute(_TABLES)]
        try:
            as_meant = all(_shape(connection, name) == _shape(model, name) for name in tables)
        except sqlite3.OperationalError as error:
            # Where the binding itself raises, there is no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code != sqlite3.SQLITE_ERROR:
                raise
            as_meant = False  # a name that can't be
    if not as_meant or connection.execute(_SHARED).fetchone():
        raise LogUnavailable(Reason.CORRUPT, "the schema is not what was written")


def _shape(connection: sqlite3.Connection, table: str) -> list[object]:
    indexes = connection.execute(
        "SELECT i.name, i.[unique], c.seqno, c.name FROM pragma_index_list(?) i, "
        "pragma_index_info(i.name) c ORDER BY i.name, c.seqno",
        (table,),
    )
    columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (table,))
    return [columns.fetchall(), indexes.fetchall()]
