"""Limits: who has how many streams, how large requests are, what they hold together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from agentstream.v1 import blob_pb2, service_pb2, service_pb2_grpc, session_pb2
from agentstreamd.config import load
from agentstreamd.daemon import server_settings
from agentstreamd.model import Kind
from agentstreamd.service.auth import TokenAuth
from agentstreamd.service.grants import Grant
from agentstreamd.service.limits import MIB, CallLimits
from agentstreamd.service.listen import Address
from tests.support.daemon import daemon
from tests.support.grpc_edge import Running, details, running
from tests.support.sessions import FakeSessions, fake_sessions

BLOB = "a" * 64
REFUSED = {"limit": "max_streams_per_client", "value": "2"}
TWO = CallLimits(max_streams_per_client=2)


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[FakeSessions]:
    async with fake_sessions(tmp_path / "log") as made:
        await made.add("s")
        await made.write("s", Kind.SESSION_STARTED)
        yield made


def follow(stub: Any, token: str = "", session_id: str = "s") -> Any:
    """A stream of the client with this token."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    request = service_pb2.StreamEventsRequest(session_id=session_id, follow=True)
    return stub.StreamEvents(request, metadata=metadata)


async def opened(call: Any) -> Any:
    """The call, once its stream is open."""
    assert (await call.read()).HasField("opened")
    return call


async def refusal(call: Any) -> dict[str, str]:
    """The limit that a call was refused for."""
    with pytest.raises(aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    info = details(caught.value).info
    assert info.reason == "LIMIT_EXCEEDED"
    return dict(info.metadata)


async def until_free(server: Running) -> None:
    """Wait until no call is counted any more."""
    admission = server.server.admission
    async with asyncio.timeout(20):
        # The client's end is none for the server: it announces nothing when it takes note.
        while (  # noqa: ASYNC110
            admission.streams.open or admission.room.calls or admission.room.bytes
        ):
            await asyncio.sleep(0.005)


async def test_a_client_has_so_many_streams_and_others_have_theirs(sessions: FakeSessions) -> None:
    auth = TokenAuth([("one", Grant()), ("two", Grant())])
    async with running(sessions, auth=auth, limits=TWO) as server:
        # All on one connection, as behind a mesh: the token tells who it is.
        first, _ = [await opened(follow(server.stub, "one")) for _ in range(2)]
        assert await refusal(follow(server.stub, "one")) == REFUSED
        await opened(follow(server.stub, "two"))
        first.cancel()
        async with asyncio.timeout(20):
            while sum(server.server.admission.streams.open.values()) > 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await opened(follow(server.stub, "one"))
        assert await refusal(follow(server.stub, "one")) == REFUSED


async def test_without_a_token_a_client_is_an_address_whatever_its_connections(
    sessions: FakeSessions, tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    listen = [Address.parse("127.0.0.1:0"), Address(path=socket)]
    async with running(sessions, limits=TWO, listen=listen) as server:
        calls = []
        for target, count in ((server.target, 2), (f"unix:{socket}", 2), (server.target, 0)):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [aio.insecure_channel(target, options=options) for _ in range(count + 1)]
            for channel in channels[:count]:
                stub: Any = service_pb2_grpc.AgentServiceStub(channel)
                calls.append(await opened(follow(stub)))
            stub = service_pb2_grpc.AgentServiceStub(channels[-1])
            assert await refusal(follow(stub)) == REFUSED
            for call in calls[len(calls) - count :]:
                assert not call.done()


async def test_no_limit_for_one_client_where_there_is_none(sessions: FakeSessions) -> None:
    limits = CallLimits(max_streams_per_client=0)
    async with running(sessions, limits=limits, max_streams=30) as server:
        for _ in range(30):
            await opened(follow(server.stub))
        assert (await refusal(follow(server.stub)))["limit"] == "max_streams"


async def _cancelled(server: Running) -> None:
    (await opened(follow(server.stub))).cancel()


async def _cancelled_at_once(server: Running) -> None:
    follow(server.stub).cancel()


async def _failed(server: Running) -> None:
    with pytest.raises(aio.AioRpcError):
        await follow(server.stub, session_id="nothing").read()


async def _ended(server: Running) -> None:
    request = service_pb2.StreamEventsRequest(session_id="s")
    assert [one async for one in server.stub.StreamEvents(request)]


async def _late(server: Running) -> None:
    request = service_pb2.StreamEventsRequest(session_id="s", follow=True)
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in server.stub.StreamEvents(request, timeout=0.05):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def _cut(server: Running) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(server.target, options=options) as channel:
        await opened(follow(service_pb2_grpc.AgentServiceStub(channel)))


async def _stalled_blob(server: Running) -> None:
    call = server.stub.ReadBlob(service_pb2.ReadBlobRequest(session_id="s", blob_id=BLOB))
    await call.read()
    call.cancel()


async def _reflection(server: Running) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await call.read()
    call.cancel()


async def _watch(server: Running) -> None:
    call = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
    await call.read()
    call.cancel()


async def _unknown(server: Running) -> None:
    make: Any = server.channel.unary_stream
    with pytest.raises(aio.AioRpcError):
        await make("/nothing.at.All/Here")(b"x").read()


WAYS = [
    *(_cancelled, _cancelled_at_once, _failed, _ended, _late, _cut),
    *(_stalled_blob, _reflection, _watch, _unknown),
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_is_counted_until_its_end_however_it_ends(
    sessions: FakeSessions, way: Callable[[Running], Awaitable[None]]
) -> None:
    await sessions.log.append("s", 1, [], blobs=[(BLOB, bytes(8 * MIB))])
    sessions.blobs[BLOB] = blob_pb2.BlobRef(blob_id=BLOB, size_bytes=8 * MIB)
    async with running(sessions) as server:
        await asyncio.gather(*(way(server) for _ in range(20)))
        await until_free(server)
        assert server.server.streams.count == 0


async def test_streams_that_a_drain_ends_are_counted_no_more(sessions: FakeSessions) -> None:
    async with running(sessions) as server:
        for _ in range(5):
            await opened(follow(server.stub))
        assert list(server.server.admission.streams.open.values()) == [5]
        await server.server.drain()
        await until_free(server)


def message(size: int) -> service_pb2.SendMessageRequest:
    """A message that takes exactly so many bytes, encoded."""
    made = service_pb2.SendMessageRequest(session_id="s", parts=[service_pb2.InputPart(text="x")])
    made.parts[0].text = "x" * (size - 16)
    made.parts[0].text += "x" * (size - made.ByteSize())
    assert made.ByteSize() == size
    return made


async def test_a_request_beyond_the_limit_is_refused_by_its_size_and_the_next_one_served(
    sessions: FakeSessions,
) -> None:
    async with running(sessions, limits=CallLimits(max_request_bytes=MIB)) as server:
        await server.stub.SendMessage(message(MIB))
        with pytest.raises(aio.AioRpcError) as caught:
            await server.stub.SendMessage(message(MIB + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MIB) in str(caught.value.details())
        assert len(sessions.calls) == 1
        await server.stub.SendMessage(message(MIB))


async def test_metadata_beyond_16_kib_is_refused_and_less_is_taken(sessions: FakeSessions) -> None:
    request = service_pb2.GetSessionRequest(session_id="s")
    async with running(sessions) as server:
        for _ in range(5):
            found = await server.stub.GetSession(request, metadata=(("x-large", "x" * 15_000),))
            assert found.session.session_id == "s"
        with pytest.raises(aio.AioRpcError) as caught:
            await server.stub.GetSession(request, metadata=(("x-large", "x" * 20_000),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_is_worked_on_holds_so_many_bytes_and_no_more(sessions: FakeSessions) -> None:
    limits = CallLimits(max_pending_bytes=MIB)
    async with running(sessions, limits=limits) as server, asyncio.timeout(20):
        sessions.gate = asyncio.Event()
        # One alone gets in, however large.
        first = asyncio.ensure_future(server.stub.SendMessage(message(2 * MIB)))
        await sessions.entered.wait()
        assert await refusal(server.stub.SendMessage(message(100))) == {
            "limit": "max_pending_bytes",
            "value": str(MIB),
        }
        sessions.gate.set()
        await first
        await until_free(server)
        await asyncio.gather(*(server.stub.SendMessage(message(MIB // 3)) for _ in range(3)))
        await until_free(server)


def test_the_settings_are_the_limits() -> None:
    limits = {
        "max_calls": 2,
        "max_pending_bytes": 100_001,
        "max_request_bytes": 100_002,
        "max_streams_per_client": 5,
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    config = load([*flags, "--max-streams=6"], {"HOME": "/home/me"}).config
    settings = server_settings(config, {})
    assert settings.limits == CallLimits(**limits)
    assert settings.streams.max_streams == 6


async def test_a_daemon_refuses_what_is_beyond_its_limits_and_goes_on(tmp_path: Path) -> None:
    flags = ["--max-running-sessions=1", "--max-queued-messages=2", "--max-queued-bytes=2000"]
    async with daemon(tmp_path / "data", *flags) as made, made.aio_channel() as channel:
        stub: Any = service_pb2_grpc.AgentServiceStub(channel)

        def send(session_id: str, text: str) -> Any:
            parts = [service_pb2.InputPart(text=text)]
            return stub.SendMessage(
                service_pb2.SendMessageRequest(
                    session_id=session_id,
                    parts=parts,
                    when_busy=service_pb2.WHEN_BUSY_QUEUE,
                )
            )

        config = session_pb2.SessionConfig(agent="mock", working_directory=str(tmp_path))
        for name in ("s", "t"):
            await stub.CreateSession(
                service_pb2.CreateSessionRequest(session_id=name, config=config)
            )
        await send("s", "wait interrupt")
        assert await refusal(send("t", "say x")) == {
            "limit": "max_running_sessions",
            "value": "1",
        }
        assert await refusal(send("s", "say " + "x" * 2000)) == {
            "limit": "max_queued_bytes",
            "value": "2000",
        }
        for _ in range(2):
            await send("s", "say x")
        assert (await refusal(send("s", "say x")))["limit"] == "max_queued_messages"
        call = follow(stub)
        await opened(call)
        await stub.InterruptTurn(service_pb2.InterruptTurnRequest(session_id="s"))
        ended = 0
        while ended < 3:  # the turn that was interrupted, and the two that waited
            response = await call.read()
            ended += sum(event.HasField("turn_ended") for event in response.batch.events)
        await send("t", "say x")
