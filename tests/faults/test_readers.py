"""Class of fault: readers that stall, come and go in crowds, or ask for more than there is.

Budget: one of 100 followers that stalls while 80 MiB of events pass costs the daemon at most 32 MiB
(a page cache fills meanwhile, and memory that was freed is not given back at once); 1,000
streams opened and dropped leave no descriptor and no more than 16 MiB behind, and are counted no
more: as many as a client may have open can be opened after them, and not one more.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from agentstream.v1 import service_pb2, service_pb2_grpc
from tests.faults.scale import scaled
from tests.faults.usage import descriptors, resident_mib
from tests.support.e2e import Bench, Session, lab
from tests.support.grpc_edge import details

FOLLOWERS = scaled(19, 99)
LOAD_MIB = 40
STALLED_MIB = 32
STREAMS = 1_000
DROPPED_MIB = 16


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with lab(tmp_path, {}) as daemon:
        made = Bench(daemon, "mock", tmp_path, {})
        yield made
        await made.finish()


class Follower:
    """A reader of a session on a connection of its own."""

    def __init__(self, session: Session) -> None:
        # A window of the size that every client has at first: what it stalls is not buffered.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        self._channel = aio.insecure_channel(session.lab.daemon.target, options=options)
        stub: Any = service_pb2_grpc.AgentServiceStub(self._channel)
        self.call = stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id=session.id, follow=True)
        )
        self.sequence = 0

    async def open(self) -> None:
        """Wait until the stream is open, and read no further."""
        assert (await self.call.read()).HasField("opened")

    async def read(self, until: int) -> None:
        """Read up to an event; each comes once and in order."""
        while self.sequence < until:
            response = await self.call.read()
            for event in response.batch.events:
                assert event.sequence == self.sequence + 1
                self.sequence = event.sequence

    async def close(self) -> None:
        await self._channel.close()


async def test_a_stalled_reader_costs_nothing_and_misses_nothing(bench: Bench) -> None:
    session = await bench.session()
    followers = [Follower(session) for _ in range(FOLLOWERS)]
    for follower in followers:
        await follower.open()

    async def load() -> int:
        """Make 40 MiB of events, and let the followers read them; the sequence of the last."""
        # Each text is in a delta and in the completed message.
        sent = await session.send(f"repeat {LOAD_MIB * 8}\ntext 64KB\nend")
        ended = await session.find("turn_ended", lambda event: event.turn_id == sent.turn_id)
        await asyncio.gather(*(follower.read(ended.sequence) for follower in followers))
        return ended.sequence

    await load()
    stalled = Follower(session)
    await stalled.open()
    before = resident_mib(bench.lab.daemon)
    # The others are done while one has not read a single event, twice.
    await load()
    last = await load()
    assert stalled.sequence == 0
    assert resident_mib(bench.lab.daemon) - before < STALLED_MIB
    await stalled.read(last)
    for follower in (*followers, stalled):
        await follower.close()


async def test_streams_that_are_opened_and_dropped_leave_nothing_behind(bench: Bench) -> None:
    session = await bench.session()
    await session.turn("repeat 200 say one two three")

    async def open_and_drop(number: int) -> None:
        call = session.lab.stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id=session.id, follow=True)
        )
        for _ in range(number % 4):
            await call.read()
        call.cancel()

    await asyncio.gather(*(open_and_drop(number) for number in range(100)))
    await session.get()
    before, open_before = resident_mib(bench.lab.daemon), descriptors(bench.lab.daemon)
    for start in range(0, STREAMS, 100):
        await asyncio.gather(*(open_and_drop(start + number) for number in range(100)))
    await session.get()
    assert resident_mib(bench.lab.daemon) - before < DROPPED_MIB
    assert descriptors(bench.lab.daemon) <= open_before
    await _fill(session)


async def _fill(session: Session) -> None:
    """Open as many streams as a client may have; one more is refused."""
    request = service_pb2.StreamEventsRequest(session_id=session.id, follow=True)
    held: list[Any] = []
    async with asyncio.timeout(60):
        # The session's own follower has one.
        while len(held) < STREAMS - 1:
            call = session.lab.stub.StreamEvents(request)
            try:
                assert (await call.read()).HasField("opened")
            except aio.AioRpcError as error:
                # The daemon may still be taking note of the streams that were dropped.
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            else:
                held.append(call)
    with pytest.raises(aio.AioRpcError) as caught:
        await session.lab.stub.StreamEvents(request).read()
    assert dict(details(caught.value).info.metadata)["limit"] == "max_streams_per_client"
    for call in held:
        call.cancel()
