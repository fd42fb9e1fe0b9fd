"""Class of fault: files of the log are damaged while no daemon runs, above all at their end.

Budget: none; a daemon refuses to start (exit code 3, and what to do), or it serves what is whole
and says LOG_UNAVAILABLE for the rest. It never serves anything else than what was stored.
"""

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio

from agentstream.v1 import blob_pb2, event_pb2, service_pb2
from tests.faults.scale import randomness
from tests.support import daemon as daemons
from tests.support.e2e import Bench, Lab, Session, lab, refused
from tests.support.grpc_edge import details

PAGE = 4096
DATABASE = "events/events.db"


@dataclass
class Worked:
    """What a daemon left that was stopped, or killed.

    Attributes:
        data: Its data directory.
        streams: What was in each session's stream, raws included.
    """

    data: Path
    streams: dict[str, list[event_pb2.Event]]


async def read(daemon: Lab, session_id: str) -> list[event_pb2.Event]:
    """Read a stream to its end."""
    request = service_pb2.StreamEventsRequest(session_id=session_id, include_raw=True)
    events: list[event_pb2.Event] = []
    async for response in daemon.stub.StreamEvents(request):
        events += response.batch.events
    return events


async def work(daemon: Lab, directory: Path) -> dict[str, list[event_pb2.Event]]:
    """Let two sessions work in `daemon`; what is in their streams."""
    bench = Bench(daemon, "mock", directory, {})
    sessions: list[Session] = []
    for _ in range(2):
        session = await bench.session()
        await session.turn("say before")
        await session.turn("repeat 6\ntext 40KB\nsay between\nend")
        sessions.append(session)
    # The last page is one of this.
    await sessions[-1].turn("text 150KB")
    return {session.id: await read(daemon, session.id) for session in sessions}


@pytest.fixture
async def stopped(tmp_path: Path) -> Worked:
    async with lab(tmp_path / "made", {}) as daemon:
        streams = await work(daemon, tmp_path)
    connection = sqlite3.connect(tmp_path / "made/data" / DATABASE)
    # Until something is stored in the last page.
    connection.execute("PRAGMA incremental_vacuum").fetchall()
    connection.close()
    return Worked(tmp_path / "made/data", streams)


@pytest.fixture
async def killed(tmp_path: Path) -> Worked:
    async with lab(tmp_path / "made", {}) as daemon:
        streams = await work(daemon, tmp_path)
        await daemon.kill()
        await daemon.no_processes(10)
        shutil.copytree(tmp_path / "made/data", tmp_path / "kept")
        await daemon.start()
    return Worked(tmp_path / "kept", streams)


async def refusal(directory: Path) -> str:
    """Start a daemon that refuses; its one sentence."""
    with pytest.raises(daemons.DaemonFailed) as failed:
        await daemons.start(directory / "data")
    assert failed.value.code == 3
    assert failed.value.stderr.count("\n") == 1, failed.value.stderr
    assert "restore a backup" in failed.value.stderr
    return failed.value.stderr


async def serves_blobs(daemon: Lab, session_id: str, events: list[event_pb2.Event]) -> bool:
    """Whether every blob of the events was served; if not, it was LOG_UNAVAILABLE."""
    whole = True
    for blob_id in {blob.blob_id for event in events for blob in blobs_in(event)}:
        request = service_pb2.ReadBlobRequest(session_id=session_id, blob_id=blob_id)
        try:
            content = b"".join([piece.data async for piece in daemon.stub.ReadBlob(request)])
        except aio.AioRpcError as error:
            told: tuple[object, ...] | None = refused(error)
            whole = False
        else:
            told = None
            assert hashlib.sha256(content).hexdigest() == blob_id
        assert told in (None, (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE"))
    return whole


def blobs_in(message: Message) -> Iterator[blob_pb2.BlobRef]:
    """Every blob that a message refers to, however deep."""
    if isinstance(message, blob_pb2.BlobRef):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if isinstance(value, Message) else tuple(value):
                if isinstance(part, Message):
                    yield from blobs_in(part)


async def served(directory: Path, worked: Worked) -> bool:
    """Whether a daemon on `directory` serves all of each session; see `serves`."""
    async with lab(directory, {}) as daemon:
        whole = [await serves(daemon, *stream) for stream in worked.streams.items()]
        whole += [await serves_blobs(daemon, *stream) for stream in worked.streams.items()]
        return all(whole)


async def serves(daemon: Lab, session_id: str, expected: list[event_pb2.Event]) -> bool:
    """Whether all was served; if not, it was a beginning of it and then LOG_UNAVAILABLE."""
    got: list[event_pb2.Event] = []
    request = service_pb2.StreamEventsRequest(session_id=session_id, include_raw=True)
    try:
        async for response in daemon.stub.StreamEvents(request, timeout=60):
            got += response.batch.events
    except aio.AioRpcError as error:
        told: tuple[object, ...] | None = (*refused(error), details(error).info.metadata["detail"])
        expected = expected[: len(got)]
    else:
        told = None
    assert told in (None, (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", "corrupt"))
    assert len(got) == len(expected)
    assert next((a for a, b in zip(got, expected, strict=True) if a != b), None) is None
    return told is None


def read_bytes(path: Path) -> bytes:
    """A file's content."""
    return path.read_bytes()


def zeros(content: bytes) -> bytes:
    return content[:-PAGE] + bytes(PAGE)


def garbage(content: bytes) -> bytes:
    return content[:-PAGE] + randomness("corruption").randbytes(PAGE)


def one_byte(content: bytes) -> bytes:
    return content[: -PAGE // 2] + b"\xaa\x55" + content[2 - PAGE // 2 :]


def middle_of_page(content: bytes) -> bytes:
    return content[: -PAGE // 2]


def without_last_page(content: bytes) -> bytes:
    return content[:-PAGE]


def header_zeros(content: bytes) -> bytes:
    return bytes(100) + content[100:]


def header_garbage(content: bytes) -> bytes:
    return randomness("header").randbytes(PAGE) + content[PAGE:]


def nothing(content: bytes) -> bytes:
    return b""


async def test_a_damaged_last_page_is_told_and_all_else_is_served(
    tmp_path: Path, stopped: Worked
) -> None:
    database = stopped.data / DATABASE
    content = read_bytes(database)
    for damage in (zeros, garbage, one_byte):
        database.write_bytes(damage(content))
        assert await served(tmp_path / "made", stopped) is False, damage.__name__
    database.write_bytes(content)
    assert await served(tmp_path / "made", stopped)


async def test_a_database_that_is_not_whole_is_refused_and_left_as_it_is(
    tmp_path: Path, stopped: Worked
) -> None:
    database = stopped.data / DATABASE
    content = read_bytes(database)
    ways = (middle_of_page, without_last_page, header_zeros, header_garbage, nothing)
    for damage in ways:
        database.write_bytes(damage(content))
        await refusal(tmp_path / "made")
        assert read_bytes(database) == damage(content), damage.__name__


async def test_a_write_ahead_log_that_was_cut_is_refused_and_whole_again_served(
    tmp_path: Path, killed: Worked
) -> None:
    log = Path(f"{killed.data / DATABASE}-wal")
    content = read_bytes(log)
    directory = tmp_path / "torn"
    for cut in (100, PAGE + 24 + 100, len(content) // 2):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(killed.data, directory / "data")
        (directory / "data" / log.relative_to(killed.data)).write_bytes(content[:-cut])
        assert "events.db-wal" in await refusal(directory)
    (directory / "data" / log.relative_to(killed.data)).write_bytes(content)
    assert await served(directory, killed)


async def test_who_goes_on_without_the_end_of_the_write_ahead_log_has_whole_commits(
    tmp_path: Path, killed: Worked
) -> None:
    log = Path(f"{killed.data / DATABASE}-wal")
    content = read_bytes(log)
    directory = tmp_path / "torn"
    shutil.copytree(killed.data, directory / "data")
    torn = directory / "data" / log.relative_to(killed.data)
    torn.write_bytes(content[: -len(content) // 3])
    torn.with_name("events.db-shm").unlink()
    async with lab(directory, {}) as daemon:
        session_id, stored = list(killed.streams.items())[-1]
        got = await read(daemon, session_id)
        common = next(
            (i for i, (a, b) in enumerate(zip(got, stored, strict=False)) if a != b), len(got)
        )
        assert 0 < common < len(stored)
        # What follows was written by this daemon, which closed what was under way.
        assert all(event.source == event_pb2.EVENT_SOURCE_DAEMON for event in got[common:])
        # Whoever saw more is told so.
        request = service_pb2.StreamEventsRequest(
            session_id=session_id, after_sequence=stored[-1].sequence
        )
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in daemon.stub.StreamEvents(request):
                pass
        assert refused(caught.value)[0] is grpc.StatusCode.OUT_OF_RANGE


async def test_a_session_is_not_served_under_another_uid(tmp_path: Path, stopped: Worked) -> None:
    connection = sqlite3.connect(stopped.data / DATABASE)
    connection.execute("UPDATE sessions SET uid = 'another' WHERE key = 1")
    connection.commit()
    connection.close()
    assert "the uid of" in await refusal(tmp_path / "made")


async def test_a_schema_that_is_damaged_is_refused(tmp_path: Path, stopped: Worked) -> None:
    database = stopped.data / DATABASE
    content = read_bytes(database)
    for damaged in (b"uie TEXT", b"\xdf\xdfd TEXT"):
        database.write_bytes(content.replace(b"uid TEXT", damaged, 1))
        await refusal(tmp_path / "made")


async def test_a_session_that_lost_its_newest_events_is_not_served_without_them(
    tmp_path: Path, stopped: Worked
) -> None:
    connection = sqlite3.connect(stopped.data / DATABASE)
    connection.execute("DELETE FROM chunks WHERE id = (SELECT max(id) FROM chunks)")
    connection.commit()
    connection.close()
    assert "has events up to" in await refusal(tmp_path / "made")
