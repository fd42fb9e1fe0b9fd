"""Readers in a process of their own, on another core: `python -m bench.follower ...`.

They keep what they receive as bytes, so that decoding is not measured, and check it afterwards:
every sequence once and in order, or the figure is void.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop
from grpc import aio

from agentstream.v1 import service_pb2

METHOD = "/agentstream.v1.AgentService/StreamEvents"


async def _follow(
    channel: aio.Channel, request: bytes, ready: asyncio.Semaphore
) -> list[tuple[int, bytes]]:
    open_stream: Any = channel.unary_stream(METHOD)  # bytes in, bytes out
    call = open_stream(request)
    received: list[tuple[int, bytes]] = []
    async for response in call:
        if not received:
            ready.release()
        received.append((time.monotonic_ns(), response))
    return received


def _check(received: list[tuple[int, bytes]], latencies: list[int]) -> int:
    """How many events came; raises where one is missing, came twice or out of order."""
    last = 0
    for at_ns, encoded in received:
        response = service_pb2.StreamEventsResponse.FromString(encoded)
        for event in response.batch.events:
            if event.sequence != last + 1:
                raise ValueError(f"sequence {event.sequence} came after {last}")
            last = event.sequence
            text = event.item_delta.text
            if text[:1].isdigit():
                latencies.append(at_ns - int(text))
    return last


async def _main(address: str, session_id: str, readers: int, follow: bool) -> None:
    request = service_pb2.StreamEventsRequest(session_id=session_id, follow=follow)
    encoded = request.SerializeToString()
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    channels = [aio.insecure_channel(address, options=options) for _ in range(readers)]
    for channel in channels:
        await channel.channel_ready()
    ready = asyncio.Semaphore(0)
    begun_ns = time.monotonic_ns()
    tasks = [asyncio.create_task(_follow(channel, encoded, ready)) for channel in channels]
    for _ in tasks:
        await ready.acquire()
    print("ready", flush=True)
    results = await asyncio.gather(*tasks)
    ended_ns = max(received[-1][0] for received in results)
    latencies: list[int] = []
    events = {_check(received, latencies) for received in results}
    if len(events) != 1:
        raise ValueError(f"readers received different numbers of events: {events}")
    figures = {
        "events": events.pop(),
        "begun_ns": begun_ns,
        "ended_ns": ended_ns,
        "bytes": sum(len(encoded) for _, encoded in results[0]),
        "latencies_ns": latencies,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    uvloop.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), follow=sys.argv[4] == "follow"))
