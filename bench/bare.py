"""A gRPC server that sends prepared messages and does nothing else: `python -m bench.bare`.

It is as fast as a server of this kind can be (grpc.aio, uvloop, bytes sent as they are).
"""

import os

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import uvloop
from grpc import aio


async def _serve(address: str, data: bytes) -> None:
    messages, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at + 4 : end])
        at = end

    async def stream(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    server = aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "agentstream.v1.AgentService", {"StreamEvents": handler}
            ),
        )
    )
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], Path(sys.argv[2]).read_bytes()))
