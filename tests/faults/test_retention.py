"""Class of fault: what a client wants was removed by retention, while others read and write on.

Budget: none; whoever asks for what is gone is told so and from where on there is something, who
reads what is kept notices nothing, and a restart changes nothing of it.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from agentstream.v1 import blob_pb2, event_pb2, service_pb2, service_pb2_grpc
from agentstreamd.laws import check
from tests.support.e2e import COMPLETED, Bench, Lab, Session, lab, refused
from tests.support.grpc_edge import details

KEPT_BYTES = 400_000
# The second flag makes the daemon look at all sessions each second.
FLAGS = (f"--retention-session-bytes={KEPT_BYTES}", "--retention-ended-sessions-seconds=10")

GONE = (grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND")


async def removed_up_to(session: Session, sequence: int) -> int:
    """Wait until the event of this sequence is gone; where the stream begins now."""
    async with asyncio.timeout(60):
        while (earliest := (await session.get()).earliest_sequence) <= sequence:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
    return earliest


async def read(daemon: Lab, session_id: str, after: int) -> list[event_pb2.Event]:
    """What is in the stream after a sequence."""
    request = service_pb2.StreamEventsRequest(session_id=session_id, after_sequence=after)
    events: list[event_pb2.Event] = []
    async for response in daemon.stub.StreamEvents(request):
        events += response.batch.events
    return events


async def require_compacted(session: Session, after: int) -> None:
    """A reader that wants what comes after `after` is told what there is."""
    for follow in (False, True):
        before = await session.get()
        request = service_pb2.StreamEventsRequest(
            session_id=session.id, after_sequence=after, follow=follow
        )
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in session.lab.stub.StreamEvents(request):
                pass
        assert refused(caught.value) == (grpc.StatusCode.OUT_OF_RANGE, "EVENTS_COMPACTED")
        said = details(caught.value).info.metadata
        # More may be removed at any moment.
        now = await session.get()
        assert before.earliest_sequence <= int(said["earliest_sequence"]) <= now.earliest_sequence
        assert said["latest_sequence"] == str(now.latest_sequence)


async def require_no_future(session: Session) -> None:
    """A cursor beyond the newest event has an error of its own, whatever was removed."""
    latest = (await session.get()).latest_sequence
    request = service_pb2.StreamEventsRequest(session_id=session.id, after_sequence=latest + 1)
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in session.lab.stub.StreamEvents(request):
            pass
    assert refused(caught.value) == (grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_IN_FUTURE")
    assert details(caught.value).info.metadata["latest_sequence"] == str(latest)


async def blob_refusal(session: Session, blob: blob_pb2.BlobRef) -> tuple[grpc.StatusCode, str]:
    """How a blob is refused, waited for: it is cleared away a little after its event."""
    async with asyncio.timeout(60):
        while True:
            try:
                await session.blob(blob)
            except aio.AioRpcError as error:
                return refused(error)


async def test_what_retention_removed_is_told_and_what_is_kept_is_served(tmp_path: Path) -> None:
    async with lab(tmp_path, {}, *FLAGS) as daemon:
        session = await Bench(daemon, "mock", tmp_path, {}).session()
        await session.turn("text 3MB")
        blob = session.items[-1].content[0].external
        whole = await session.blob(blob)
        assert hashlib.sha256(whole).hexdigest() == blob.sha256
        last = session.events[-1].sequence
        for _ in range(8):
            await session.turn("text 100KB")
        earliest = await removed_up_to(session, last)

        # The follower has read from the first event on, and goes on.
        assert session.stream_error is None
        assert (await session.turn("say more")).status == COMPLETED
        sequences = [event.sequence for event in session.events]
        assert sequences == list(range(1, sequences[-1] + 1))
        for after in (0, earliest - 2):
            await require_compacted(session, after)
        await require_no_future(session)
        newest = sequences[-1] - 3
        assert await read(daemon, session.id, newest) == session.events[newest:]
        assert await blob_refusal(session, blob) == GONE

    async with lab(tmp_path, {}) as daemon:  # removes nothing more
        after_restart = Session(daemon, session.created)
        after_restart.events = session.events
        earliest = (await after_restart.get()).earliest_sequence
        assert earliest > last
        for after in (0, earliest - 2):
            await require_compacted(after_restart, after)
        await require_no_future(after_restart)
        assert await blob_refusal(after_restart, blob) == GONE
        await after_restart.follow()  # from where it was left
        assert (await after_restart.turn("say again")).status == COMPLETED
        for after in (earliest - 1, earliest):
            assert await read(daemon, session.id, after) == after_restart.events[after:]
        assert after_restart.texts[-2:] == ["more", "again"]
        # What is kept is the end of what was seen whole, and that is lawful.
        assert check(after_restart.events, complete=True) == []


async def test_a_reader_that_retention_overtakes_is_told_and_has_no_gap(tmp_path: Path) -> None:
    async with lab(tmp_path, {}, *FLAGS) as daemon:
        session = await Bench(daemon, "mock", tmp_path, {}).session()
        # A window of the size that every client has at first, and little is buffered beyond it.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        async with aio.insecure_channel(daemon.daemon.target, options=options) as channel:
            stub: Any = service_pb2_grpc.AgentServiceStub(channel)
            call = stub.StreamEvents(
                service_pb2.StreamEventsRequest(session_id=session.id, follow=True)
            )
            assert (await call.read()).HasField("opened")
            assert (await session.turn("repeat 100\ntext 64KB\nend")).status == COMPLETED
            await removed_up_to(session, len(session.events) // 2)
            got: list[event_pb2.Event] = []

            async def read_on() -> None:
                while True:
                    got.extend((await call.read()).batch.events)

            with pytest.raises(aio.AioRpcError) as caught:
                await read_on()
        assert refused(caught.value) == (grpc.StatusCode.OUT_OF_RANGE, "EVENTS_COMPACTED")
        assert 0 < len(got) < len(session.events)
        assert got == session.events[: len(got)]
        said = details(caught.value).info.metadata
        earliest = int(said["earliest_sequence"])
        assert earliest > len(got) + 1
        assert said["latest_sequence"] == str(session.events[-1].sequence)
        # From where it is sent it goes on.
        assert await read(daemon, session.id, earliest - 1) == session.events[earliest - 1 :]
