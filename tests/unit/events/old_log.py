"""What the logs in `logs/` hold; each was filled by the program that had its schema as newest.

A new version gets a log of its own: run `python -m tests.unit.events.old_log DIRECTORY` with the
program that introduces it, and check the file in. Files of versions that were released never
change.
"""

import asyncio
import sys
from pathlib import Path

from agentstreamd.events import EventLogConfig, Record, SqliteEventLog

UID = "uid-of-the-old-log"
EVENTS = 300
KEPT_FROM = 5
BLOB = bytes(range(256)) * 40


def old_event(sequence: int) -> bytes:
    """An event; its bytes without the raw."""
    return f"event {sequence} of an old log ".encode() + b"." * (sequence % 90)


def old_raw(sequence: int) -> bytes:
    """Its raw; three events in a row share one."""
    return b"raw %d " % (sequence // 3)


def old_kind(sequence: int) -> int:
    """Its kind."""
    return sequence % 5 + 1


def _records(first: int, count: int) -> list[Record]:
    return [Record(old_event(n), old_raw(n), old_kind(n)) for n in range(first, first + count)]


async def fill(directory: Path) -> None:
    """Make a log with a session in several chunks, an empty one, one cut short, one deleted."""
    log = await SqliteEventLog.open(EventLogConfig(directory=directory, chunk_bytes=4096))
    await log.create_session("full", UID, puts={"a/1": b"one", "a/2": b"two", "b": b""})
    await log.create_session("empty", UID)
    await log.create_session("gone", UID, records=_records(1, 10), puts={"a/1": b"gone"})
    await log.create_session("cut", UID, records=_records(1, KEPT_FROM - 1))
    at = 0
    for count in (1, 2, 120, EVENTS - 123):
        at = await log.append("full", at, _records(at + 1, count))
    await log.append("full", at, [], blobs=[("blob", BLOB)], puts={"a/2": b"changed"})
    await log.append("cut", KEPT_FROM - 1, [Record(old_event(9) * 200, b"raw", 1)])
    await log.append("cut", KEPT_FROM, _records(KEPT_FROM + 1, 3))
    await log.compact("cut", KEPT_FROM)
    await log.delete_session("gone")
    await log.close()


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1])))
