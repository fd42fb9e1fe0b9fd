"""Calls, statuses, health, reflection, tokens and sockets on a real server in this process."""

import asyncio
import logging
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from agentstream.v1 import (
    blob_pb2,
    error_pb2,
    interaction_pb2,
    service_pb2,
    service_pb2_grpc,
    session_pb2,
)
from agentstreamd.model import Kind
from agentstreamd.service.auth import TokenAuth
from agentstreamd.service.grants import Grant
from agentstreamd.service.limits import CallLimits
from agentstreamd.service.listen import Address
from agentstreamd.sessions.errors import SessionError
from tests.support.grpc_edge import Running, details, running
from tests.support.sessions import FakeSessions, fake_sessions

SERVICE = "agentstream.v1.AgentService"
CONFIG = session_pb2.SessionConfig(agent="mock", working_directory="/tmp")


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[FakeSessions]:
    async with fake_sessions(tmp_path / "log") as made:
        await made.add("s")
        yield made


@pytest.fixture
async def server(sessions: FakeSessions) -> AsyncIterator[Running]:
    async with running(sessions) as made:
        yield made


async def failure(call: object) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def raw_call(server: Running, path: str, request: bytes) -> Any:
    """A call of any method, in bytes."""
    make: Any = server.channel.unary_stream
    return make(path)(request)


async def test_every_unary_call_reaches_the_sessions(
    server: Running, sessions: FakeSessions
) -> None:
    stub = server.stub
    pb = service_pb2
    assert (await stub.ListAgents(pb.ListAgentsRequest())).agents[0].name == "mock"
    assert (await stub.GetAgent(pb.GetAgentRequest(name="mock"))).agent.name == "mock"
    created = await stub.CreateSession(pb.CreateSessionRequest(session_id="t", config=CONFIG))
    assert created.session.session_id == "t"
    assert (await stub.GetSession(pb.GetSessionRequest(session_id="t"))).session.uid == "uid-t"
    assert len((await stub.ListSessions(pb.ListSessionsRequest())).sessions) == 2
    send = pb.SendMessageRequest(session_id="t", parts=[pb.InputPart(text="hi")])
    assert (await stub.SendMessage(send)).sequence == 7
    update = pb.UpdateSessionRequest(session_id="t")
    update.update_mask.paths.append("title")
    assert (await stub.UpdateSession(update)).session.session_id == "t"
    assert (await stub.InterruptTurn(pb.InterruptTurnRequest(session_id="t"))).sequence == 9
    respond = pb.RespondRequest(
        session_id="t", request_id="r", permission=interaction_pb2.PermissionAnswer()
    )
    assert (await stub.Respond(respond)).sequence == 11
    assert (await stub.EndSession(pb.EndSessionRequest(session_id="t"))).session.uid == "uid-t"
    await stub.DeleteSession(pb.DeleteSessionRequest(session_id="t"))
    assert list(sessions.states) == ["s"]


async def test_every_method_of_the_contract_is_served(server: Running) -> None:
    reasons = {}
    for method in service_pb2.DESCRIPTOR.services_by_name["AgentService"].methods:
        try:
            await raw_call(server, f"/{SERVICE}/{method.name}", b"").read()
            reasons[method.name] = "OK"
        except aio.AioRpcError as error:
            reasons[method.name] = details(error).info.reason
    assert reasons.pop("ListAgents") == reasons.pop("ListSessions") == "OK"
    assert set(reasons.values()) == {"INVALID_FIELD"}


async def test_a_refused_call_has_its_reason_and_fields(
    server: Running, sessions: FakeSessions
) -> None:
    sessions.fail = SessionError(
        error_pb2.ERROR_REASON_SESSION_EXISTS, "taken", {"session_id": "s"}, [("config.model", "x")]
    )
    error = await failure(
        server.stub.CreateSession(service_pb2.CreateSessionRequest(session_id="s", config=CONFIG))
    )
    found = details(error)
    assert error.code() == grpc.StatusCode.ALREADY_EXISTS
    assert error.details() == "taken"
    assert found.info.reason == "SESSION_EXISTS"
    assert dict(found.info.metadata) == {"session_id": "s"}
    assert found.violations == {"config.model": "x"}


async def test_a_wrong_request_never_reaches_the_sessions(
    server: Running, sessions: FakeSessions
) -> None:
    error = await failure(server.stub.SendMessage(service_pb2.SendMessageRequest()))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details(error).violations.keys() == {"session_id", "parts"}
    assert sessions.calls == []


async def test_bytes_that_are_no_request_are_refused(server: Running) -> None:
    for method in ("GetSession", "StreamEvents"):
        call = raw_call(server, f"/{SERVICE}/{method}", b"\xff\xff\xff")
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details(caught.value).info.reason == "INVALID_FIELD"


async def test_an_unknown_method_is_not_implemented(server: Running) -> None:
    for path in (f"/{SERVICE}/Nothing", "/other.Service/Method"):
        with pytest.raises(aio.AioRpcError) as caught:
            await raw_call(server, path, b"\x0a\x01x").read()
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert details(caught.value).info.reason == "NOT_IMPLEMENTED"


async def test_an_unforeseen_error_tells_the_log_and_not_the_caller(
    server: Running, sessions: FakeSessions, caplog: pytest.LogCaptureFixture
) -> None:
    sessions.fail = ValueError("a secret detail")
    with caplog.at_level(logging.INFO):
        error = await failure(
            server.stub.GetSession(
                service_pb2.GetSessionRequest(session_id="s"),
                metadata=(("x-request-id", "request-42"),),
            )
        )
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(error.details())
    assert dict(details(error).info.metadata) == {"request_id": "request-42"}
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == 1
    assert vars(logged[0])["request_id"] == "request-42"
    assert "a secret detail" in str(logged[0].exc_info)


async def test_calls_are_logged_with_method_code_and_duration(
    server: Running, sessions: FakeSessions, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await server.stub.GetSession(service_pb2.GetSessionRequest(session_id="s"))
        await failure(server.stub.GetSession(service_pb2.GetSessionRequest(session_id="x")))
    fields = [vars(record) for record in caplog.records if record.message == "call"]
    assert [(one["method"], one["code"], one.get("reason")) for one in fields] == [
        (f"{SERVICE}/GetSession", "OK", None),
        (f"{SERVICE}/GetSession", "NOT_FOUND", "SESSION_NOT_FOUND"),
    ]
    assert all(one["duration_ms"] >= 0 and len(one["request_id"]) == 32 for one in fields)


async def test_a_request_id_that_could_forge_a_log_is_not_taken(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await server.stub.GetSession(
            service_pb2.GetSessionRequest(session_id="s"),
            metadata=(("x-request-id", "a b"),),
        )
    assert len(vars(caplog.records[-1])["request_id"]) == 32


async def test_a_cancelled_call_is_cancelled_inside(
    server: Running, sessions: FakeSessions, caplog: pytest.LogCaptureFixture
) -> None:
    sessions.gate = asyncio.Event()
    call = server.stub.InterruptTurn(service_pb2.InterruptTurnRequest(session_id="s"))
    async with asyncio.timeout(10):
        task = asyncio.ensure_future(call)
        await sessions.entered.wait()
        with caplog.at_level(logging.INFO):
            task.cancel()
            await sessions.cancelled.wait()
    assert [vars(one)["code"] for one in caplog.records if one.message == "call"] == ["CANCELLED"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_large_message_is_taken(server: Running, sessions: FakeSessions) -> None:
    image = service_pb2.InputImage(media_type="image/png", data=bytes(20 * 1024 * 1024))
    parts = [service_pb2.InputPart(image=image)] * 3
    await server.stub.SendMessage(service_pb2.SendMessageRequest(session_id="s", parts=parts))
    assert len(sessions.calls) == 1


async def test_blobs_are_read_whole_and_in_parts(server: Running, sessions: FakeSessions) -> None:
    content = bytes(range(256)) * 4096
    await sessions.log.append("s", 0, [], blobs=[("a" * 64, content)])
    sessions.blobs["a" * 64] = blob = blob_pb2.BlobRef(
        blob_id="a" * 64, size_bytes=len(content), media_type="image/png"
    )

    async def read(**more: int) -> tuple[list[service_pb2.ReadBlobResponse], bytes]:
        request = service_pb2.ReadBlobRequest(session_id="s", blob_id="a" * 64, **more)
        responses = [one async for one in server.stub.ReadBlob(request)]
        return responses, b"".join(one.data for one in responses)

    responses, whole = await read()
    assert whole == content
    assert responses[0].blob == blob
    assert [one.HasField("blob") for one in responses] == [True] + [False] * (len(responses) - 1)
    assert (await read(offset_bytes=1000, limit_bytes=300_000))[1] == content[1000:301_000]
    responses, nothing = await read(offset_bytes=len(content))
    assert (len(responses), nothing) == (1, b"")
    with pytest.raises(aio.AioRpcError) as caught:
        await read(offset_bytes=len(content) + 1)
    assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert details(caught.value).violations.keys() == {"offset_bytes"}


async def test_an_unknown_blob_is_not_found(server: Running) -> None:
    call = server.stub.ReadBlob(service_pb2.ReadBlobRequest(session_id="s", blob_id="b"))
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert details(caught.value).info.reason == "BLOB_NOT_FOUND"


async def test_health_is_serving_until_the_server_drains(server: Running) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await server.server.drain()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", SERVICE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_other_calls_go_on_while_the_server_drains(server: Running) -> None:
    await server.server.drain()
    request = service_pb2.GetSessionRequest(session_id="s")
    assert (await server.stub.GetSession(request)).session.session_id == "s"


async def list_services(server: Running) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for response in stub.ServerReflectionInfo(iter([request])):
        return [one.name for one in response.list_services_response.service]
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    "symbol",
    [
        SERVICE,
        f"{SERVICE}.Respond",
        "agentstream.v1.Event",
        "agentstream.v1.Event.payload",
        "agentstream.v1.Event.sequence",
        "agentstream.v1.ErrorReason",
    ],
)
async def test_reflection_finds_the_file_of_each_symbol(server: Running, symbol: str) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    async for response in stub.ServerReflectionInfo(iter([request])):
        assert response.file_descriptor_response.file_descriptor_proto
        return
    raise AssertionError("no answer")


async def test_reflection_does_not_find_what_is_not_there(server: Running) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    for symbol in (f"{SERVICE}.Nothing", "agentstream.v1.Event.nothing", "nothing.Respond"):
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        async for response in stub.ServerReflectionInfo(iter([request])):
            assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
            break


async def test_reflection_lists_the_service_unless_turned_off(
    server: Running, sessions: FakeSessions
) -> None:
    assert SERVICE in await list_services(server)
    async with running(sessions, reflection=False) as without:
        with pytest.raises(aio.AioRpcError) as caught:
            await list_services(without)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_flood_of_calls_is_refused_and_leaves_room_when_it_is_over(
    sessions: FakeSessions,
) -> None:
    request = service_pb2.GetSessionRequest(session_id="s")
    async with running(sessions, limits=CallLimits(max_calls=1)) as server, asyncio.timeout(20):
        sessions.gate = asyncio.Event()
        waiting = server.stub.InterruptTurn(service_pb2.InterruptTurnRequest(session_id="s"))
        task = asyncio.ensure_future(waiting)
        await sessions.entered.wait()
        for _ in range(50):
            refused = details(await failure(server.stub.GetSession(request)))
            assert refused.info.reason == "LIMIT_EXCEEDED"
            assert dict(refused.info.metadata) == {"limit": "max_calls", "value": "1"}
        # Probes get through, whatever the load, and streams have a limit of their own.
        await health_pb2_grpc.HealthStub(server.channel).Check(health_pb2.HealthCheckRequest())
        stream = server.stub.StreamEvents(service_pb2.StreamEventsRequest(session_id="s"))
        responses = [one.WhichOneof("response") async for one in stream]
        assert responses[:1] == ["opened"]
        sessions.gate.set()
        await task
        assert (await server.stub.GetSession(request)).session.session_id == "s"


async def test_a_token_is_required_where_there_is_one(sessions: FakeSessions) -> None:
    request = service_pb2.GetSessionRequest(session_id="s")
    async with running(sessions, auth=TokenAuth([("right", Grant())])) as server:
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "right"),)):
            error = await failure(server.stub.GetSession(request, metadata=metadata))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert details(error).info.reason == "UNAUTHENTICATED"
        stream = server.stub.StreamEvents(service_pb2.StreamEventsRequest(session_id="s"))
        with pytest.raises(aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(aio.AioRpcError) as caught:
            await list_services(server)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        good = (("authorization", "Bearer right"),)
        assert (await server.stub.GetSession(request, metadata=good)).session.session_id == "s"
        # Probes carry no token.
        health = health_pb2_grpc.HealthStub(server.channel)
        await health.Check(health_pb2.HealthCheckRequest())


async def test_a_unix_socket_serves_its_owner_alone(sessions: FakeSessions, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    await sessions.write("s", Kind.SESSION_STARTED)
    async with running(sessions, listen=[Address(path=path)]) as server:
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        async with aio.insecure_channel(f"unix:{path}") as channel:
            stub = service_pb2_grpc.AgentServiceStub(channel)
            request = service_pb2.StreamEventsRequest(session_id="s")
            responses = [one async for one in stub.StreamEvents(request)]
            assert [len(one.batch.events) for one in responses] == [0, 1]
        assert server.target == f"unix:{path}"
    assert not path.exists()
