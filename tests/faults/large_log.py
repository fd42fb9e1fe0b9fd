"""Makes a log with very many events, and measures what it costs to open it and to read it.

    python -m tests.faults.large_log fill DIRECTORY COUNT
    python -m tests.faults.large_log measure DIRECTORY

DIRECTORY is that of the log, `events/` of a data directory. Where it has a session, that one gets
the events, so that a daemon can serve them; else a new session does. The answer is JSON.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from agentstream.v1 import event_pb2, session_pb2
from agentstreamd.events import EventLogConfig, Record, SqliteEventLog
from agentstreamd.sessions import stored

BATCH = 1000
IN_FLIGHT = 8
MIB = 1 << 20


def delta(session_id: str, sequence: int) -> event_pb2.Event:
    """A piece of text, as most events are."""
    event = event_pb2.Event(
        event_id=f"event-{sequence:012}",
        sequence=sequence,
        session_id=session_id,
        turn_id="turn-of-many-events",
        source=event_pb2.EVENT_SOURCE_AGENT,
    )
    event.time.FromNanoseconds(1_700_000_000_000_000_000 + sequence * 1_000_000)
    event.item_delta.item_id = "item-of-many-deltas"
    event.item_delta.kind = event_pb2.DELTA_KIND_TEXT
    event.item_delta.text = f"{sequence} pieces of text so far "
    return event


def read_bytes() -> int:
    """Bytes that this process has asked the system to read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar:")).split()[1])


def memory_bytes(field: str) -> int:
    """A field of this process's status: VmRSS is its memory now, VmHWM the most it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def forget_most_memory() -> None:
    """Make the most memory that this process had what it has now."""
    Path("/proc/self/clear_refs").write_text("5")


async def fill(directory: Path, count: int) -> dict[str, float]:
    """Append `count` events to the log's first session."""
    log = await SqliteEventLog.open(EventLogConfig(directory=directory))
    page = await log.list_sessions(limit=1, key=stored.SESSION)
    if not page.sessions:
        await log.create_session("large", "uid of large")
        page = await log.list_sessions(limit=1, key=stored.SESSION)
    (session,) = page.sessions
    kind = event_pb2.Event.ITEM_DELTA_FIELD_NUMBER
    pending: list[asyncio.Future[int]] = []
    at = session.latest
    end = at + count
    while at < end:
        batch = [
            Record(delta(session.session_id, n).SerializeToString(), b"", kind)
            for n in range(at + 1, min(at + BATCH, end) + 1)
        ]
        puts = {}
        if session.value is not None and at + len(batch) == end:
            record = session_pb2.Session.FromString(session.value)
            record.latest_sequence = end
            puts[stored.SESSION] = record.SerializeToString()
        pending.append(log.append(session.session_id, at, batch, puts=puts))
        at += len(batch)
        if len(pending) >= IN_FLIGHT:
            await pending.pop(0)
    await asyncio.gather(*pending)
    await log.close()
    return {"latest": at, "file_mib": (directory / "events.db").stat().st_size / MIB}


async def measure(directory: Path) -> dict[str, float]:
    """Open the log and page its first session through."""
    before, started = read_bytes(), time.perf_counter()
    log = await SqliteEventLog.open(EventLogConfig(directory=directory))
    open_seconds, open_bytes = time.perf_counter() - started, read_bytes() - before
    (session,) = (await log.list_sessions(limit=1)).sessions
    forget_most_memory()
    memory, started = memory_bytes("VmRSS"), time.perf_counter()
    seen, after, most = 0, 0, 0
    with await log.open_reader(session.session_id) as reader:
        while after < reader.latest:
            batch = await reader.read(after)
            seen += batch.count
            after = batch.last_sequence
            most = max(most, len(batch.data))
    growth = memory_bytes("VmHWM") - memory
    page_seconds = time.perf_counter() - started
    await log.close()
    return {
        "open_seconds": open_seconds,
        "open_bytes": open_bytes,
        "events": seen,
        "latest": after,
        "largest_batch": most,
        "page_seconds": page_seconds,
        "memory_growth": growth,
        "memory": memory,
    }


def main() -> None:
    """Do what the arguments say; the answer goes to standard output."""
    command, directory, *rest = sys.argv[1:]
    work = fill(Path(directory), int(rest[0])) if command == "fill" else measure(Path(directory))
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
