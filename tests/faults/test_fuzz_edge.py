"""Class of fault: requests that nobody sane would send.

Budget: 1,500 calls in the short form, 100,000 in the long one: random bytes, truncated and mutated
messages, and messages whose fields hold whatever their types allow. Each gets a status of the
contract, with one ErrorInfo; never INTERNAL or UNKNOWN, nothing unexpected in the log, and the
daemon serves on.
"""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor, message_factory
from grpc import aio

from agentstream.v1 import service_pb2
from tests.faults.scale import randomness, scaled
from tests.support.daemon import Daemon, daemon
from tests.support.grpc_edge import details

SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]
CALLS = scaled(1_500, 100_000)
SECONDS = 5.0
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
TEXTS = ("", "s", "mock", "\0", "-x", "../..", "é" * 200, "a" * 3000, "/tmp", "{", "0", "%s")
BYTES = (b"", b"\0", b"\xff" * 100, b"x" * 70_000)
INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1, 7)
MAX_DEPTH = 6


def value(field: descriptor.FieldDescriptor, chance: random.Random, depth: int) -> Any:
    """A value that the type of a field can hold."""
    match field.cpp_type:
        case descriptor.FieldDescriptor.CPPTYPE_MESSAGE:
            assert field.message_type is not None
            return filled(field.message_type, chance, depth + 1)
        case descriptor.FieldDescriptor.CPPTYPE_STRING:
            if field.type == descriptor.FieldDescriptor.TYPE_BYTES:
                return chance.choice(BYTES)
            return chance.choice(TEXTS)
        case descriptor.FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case descriptor.FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice((0, 1, 2, 3, 77, -5))
        case descriptor.FieldDescriptor.CPPTYPE_DOUBLE | descriptor.FieldDescriptor.CPPTYPE_FLOAT:
            return chance.choice((0.0, -1.5, float("inf"), float("nan")))
        case _:
            return chance.choice(INTEGERS)


def filled(kind: descriptor.Descriptor, chance: random.Random, depth: int = 0) -> Any:
    """A message of a type with some of its fields set."""
    made: Any = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        if depth >= MAX_DEPTH or chance.random() < 0.4:
            continue
        try:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                entries = getattr(made, field.name)
                for _ in range(chance.randrange(3)):
                    entries[chance.choice(TEXTS)] = chance.choice(TEXTS)
            elif field.is_repeated:
                getattr(made, field.name).extend(
                    value(field, chance, depth) for _ in range(chance.randrange(4))
                )
            elif field.message_type is not None:
                getattr(made, field.name).CopyFrom(value(field, chance, depth))
            else:
                setattr(made, field.name, value(field, chance, depth))
        except (ValueError, TypeError):
            continue  # out of the field's range
    return made


def requests(chance: random.Random) -> Iterator[tuple[descriptor.MethodDescriptor, bytes]]:
    """Methods and what to send them."""
    while True:
        method = chance.choice(SERVICE.methods)
        data = filled(method.input_type, chance).SerializeToString()
        match chance.randrange(5):
            case 0:
                data = chance.randbytes(chance.randrange(200))
            case 1:
                data = data[: chance.randrange(len(data) + 1)]
            case 2 if data:
                broken = bytearray(data)
                broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
                data = bytes(broken)
        yield method, data


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path / "data", "--interrupt-grace-seconds=0.2") as made:
        yield made


async def call(
    channel: Any, method: descriptor.MethodDescriptor, data: bytes
) -> aio.AioRpcError | None:
    """Make a call; how it failed, if it did."""
    path = f"/{SERVICE.full_name}/{method.name}"
    try:
        if method.server_streaming:
            stream = channel.unary_stream(path)(data, timeout=SECONDS)
            try:
                await stream.read()
            finally:
                stream.cancel()
        else:
            await channel.unary_unary(path)(data, timeout=SECONDS)
    except aio.AioRpcError as error:
        return error
    return None


async def test_whatever_is_sent_gets_a_status_of_the_contract(running: Daemon) -> None:
    chance = randomness("edge")
    async with running.aio_channel() as channel:
        for _, (method, data) in zip(range(CALLS), requests(chance), strict=False):
            error = await call(channel, method, data)
            # It may wait for an agent that was told to be silent.
            if error is None or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                continue
            assert error.code() not in NEVER, (method.name, data, error.details())
            assert details(error).info.reason, (method.name, data)
        stub: Any = channel.unary_unary(f"/{SERVICE.full_name}/ListAgents")
        answer = service_pb2.ListAgentsResponse.FromString(await stub(b""))
        assert answer.agents
    assert "unexpected error" not in running.stderr
    assert "Traceback" not in running.stderr
