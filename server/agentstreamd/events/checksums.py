"""Checksums of what is stored: SQLite finds a broken tree, but not a byte that changed in a value.

A page of the file that was lost or overwritten would else come back as other events. What a log
held before it had checksums has none, and is looked at only as far as its lengths go.
"""

import sqlite3
import struct
import zlib

from .errors import LogUnavailable, Reason
from .frames import Chunk
from .schema import MAX_SEQUENCE, SEQUENCE_BITS, chunk_id, schema_version, signed, unsigned

_VERSION = 2  # of the schema, since when there are columns for checksums
_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct("<qq")
_TAGS_WITH_RAW = bytes(range(0x40, 0x80))


def checksum(*parts: bytes | memoryview) -> int:
    """Gives the CRC-32 of the parts, one after the other."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def verified(value: bytes, stored: int | None, what: str) -> bytes:
    """Gives the value back; raises LogUnavailable where it is not the one that was stored."""
    if not isinstance(value, bytes) or (stored is not None and checksum(value) != stored):
        raise _damaged(what)
    return value


def verify_all(connection: sqlite3.Connection) -> None:
    """Reads all that is stored; takes as long as reading the whole file.

    Raises:
        LogUnavailable: something differs from what was written, or is missing.
    """
    earliest = dict(connection.execute("SELECT key, earliest FROM sessions"))
    session, reached = 0, 0
    for row in connection.execute(
        "SELECT id, kinds, tags, lengths, frames, raw_lengths, raws FROM chunks ORDER BY id"
    ):
        chunk = read_chunk(*row)
        if row[0] >> SEQUENCE_BITS != session:
            session = row[0] >> SEQUENCE_BITS
            # What retention removed may still be there, and so may a session that was deleted.
            reached = min(chunk.first, earliest.get(session, chunk.first)) - 1
        if chunk.first != reached + 1:
            raise LogUnavailable(Reason.CORRUPT, f"event {reached + 1} is missing from the log")
        reached = chunk.last
    if schema_version(connection) < _VERSION:
        return
    for value, stored in connection.execute("SELECT value, checksum FROM state"):
        verified(value, stored, "a value of a session")
    for data, stored in connection.execute("SELECT data, checksum FROM blob_pieces"):
        verified(data, stored, "a piece of a blob")


def chunk_row(key: int, chunk: Chunk) -> tuple[object, ...]:
    """Gives a chunk of session `key` as it is stored.

    The checksums stand at the end of the two columns of lengths: in a column of their own, behind
    the raws, they would have to be looked for past these.
    """
    id_, kinds = chunk_id(key, chunk.first), signed(chunk.kinds)
    head = _HEAD.pack(id_, kinds)
    events = checksum(head, chunk.tags, chunk.lengths, chunk.frames)
    raws = checksum(head, chunk.raw_lengths, chunk.raws or b"")
    return (
        id_,
        kinds,
        chunk.tags,
        chunk.lengths + _CHECKSUM.pack(events),
        chunk.frames,
        chunk.raw_lengths + _CHECKSUM.pack(raws),
        chunk.raws,
    )


def read_chunk(
    id_: int,
    kinds: int,
    tags: bytes,
    lengths: bytes,
    frames: bytes,
    raw_lengths: bytes,
    raws: bytes | None,
) -> Chunk:
    """Gives the chunk of a row; `raws` is None where they were not read.

    Raises:
        LogUnavailable: it is not what was stored.
    """
    first = id_ & MAX_SEQUENCE
    what = f"the stored chunk of event {first}"
    columns = (tags, lengths, frames, raw_lengths, b"" if raws is None else raws)
    if not isinstance(kinds, int) or not all(isinstance(column, bytes) for column in columns):
        raise _damaged(what)  # a broken row may have values of any type
    head = _HEAD.pack(id_, kinds)
    lengths, stored = _split(lengths, len(tags), what)
    if stored is not None:
        if checksum(head, tags, lengths, frames) != stored:
            raise _damaged(what)
    elif sum(struct.unpack(f"<{len(tags)}I", lengths)) != len(frames):
        raise _damaged(what)
    if raws is not None:
        count = len(tags) - len(tags.translate(None, _TAGS_WITH_RAW))
        raw_lengths, stored = _split(raw_lengths, count, what)
        if stored is not None:
            if checksum(head, raw_lengths, raws) != stored:
                raise _damaged(what)
        elif sum(struct.unpack(f"<{count}I", raw_lengths)) != len(raws):
            raise _damaged(what)
    return Chunk(first, tags, lengths, frames, raw_lengths, raws, unsigned(kinds))


def _split(lengths: bytes, count: int, what: str) -> tuple[bytes, int | None]:
    end = 4 * count
    if len(lengths) == end:
        return lengths, None
    if len(lengths) != end + _CHECKSUM.size:
        raise _damaged(what)
    return lengths[:end], _CHECKSUM.unpack_from(lengths, end)[0]


def _damaged(what: str) -> LogUnavailable:
    return LogUnavailable(Reason.CORRUPT, f"{what} is not what was written")
