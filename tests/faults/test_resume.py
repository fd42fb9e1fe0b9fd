"""Class of fault: connections that are cut, delayed and halved at any byte.

Budget: 200 cuts in the short form, 10,000 in the long one; every event is received exactly once, as
it is stored, whatever was under way when the connection broke.
"""

import asyncio
import hashlib
from pathlib import Path

from agentstream.client import Backoff, connect_aio
from agentstream.v1 import event_pb2
from tests.faults.scale import randomness, scaled
from tests.support.e2e import Bench, lab
from tests.support.fault_proxy import FaultProxy, Faults, fault_proxy

CUTS = scaled(200, 10_000)
READERS = 4

# Batches of a backlog have 256 events, here of 0.4 KB: a cut within 300 KB hits the first, one of
# the next, or the middle of either.
BACKLOG = Faults(cut_after_bytes=300_000, delay_seconds=0.0005, halves=0.2)
# Live events are a few hundred bytes each.
LIVE = Faults(cut_after_bytes=20_000, delay_seconds=0.002, halves=0.2)
# The reader's own patience is not what is tested.
TIRELESS = Backoff(initial=0.0, maximum=0.0, attempts=10_000)
# A connection that breaks before it is up is tried again after gRPC's own backoff; the default
# second of it would be most of the test.
ONE_CONNECTION = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


async def read(proxy: FaultProxy, session_id: str, after: int = 0) -> list[bytes]:
    """The session's stream to its end, through the proxy."""
    seen: list[bytes] = []
    async with (
        connect_aio(proxy.target, options=ONE_CONNECTION) as client,
        client.follow(session_id, after, backoff=TIRELESS) as events,
    ):
        async for event in events:
            assert event.sequence == after + len(seen) + 1
            seen.append(event.SerializeToString(deterministic=True))
    return seen


def digest(events: list[bytes]) -> str:
    """Tells streams apart; comparing long lists themselves takes pytest minutes to explain."""
    return hashlib.sha256(b"\0".join(events)).hexdigest()


def encoded(events: list[event_pb2.Event]) -> list[bytes]:
    return [event.SerializeToString(deterministic=True) for event in events]


async def test_a_backlog_is_received_as_stored_over_any_number_of_cuts(tmp_path: Path) -> None:
    chance = randomness("backlog")
    async with lab(tmp_path, {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        await session.turn('repeat 800\nsay one two three four\ntool Bash {"n":1} => done\nend')
        await session.end()
        await session.verify()
        stored = encoded(session.events)
        async with fault_proxy(daemon.daemon.target, BACKLOG, chance) as proxy:

            async def read_again_and_again() -> int:
                passes = 0
                while proxy.total_cuts < CUTS:
                    after = chance.randrange(len(stored)) if passes else 0
                    seen = await read(proxy, session.id, after)
                    assert len(seen) == len(stored) - after
                    assert digest(seen) == digest(stored[after:])
                    passes += 1
                return passes

            passes = await asyncio.gather(*(read_again_and_again() for _ in range(READERS)))
            assert all(passes)
            assert all(proxy.cuts.values())


async def test_a_live_stream_is_received_as_stored_over_any_number_of_cuts(
    tmp_path: Path,
) -> None:
    chance = randomness("live")
    async with lab(tmp_path, {}) as daemon:
        bench = Bench(daemon, "mock", tmp_path, {})
        cuts = 0
        while cuts < CUTS // 4:
            session = await bench.session(one_shot=True)
            async with fault_proxy(daemon.daemon.target, LIVE, chance) as proxy:
                readers = [asyncio.ensure_future(read(proxy, session.id)) for _ in range(READERS)]
                await session.turn("repeat 150\ndelta some of it\ndelay 2ms\nend")
                received = await asyncio.gather(*readers)
                cuts += proxy.total_cuts
            assert await session.stream_ended() is None
            stored = digest(encoded(session.events))
            assert [digest(one) for one in received] == [stored] * READERS
        await bench.finish()
