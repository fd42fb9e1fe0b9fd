"""Calls, streams and identities through Envoy as it is shipped."""

import asyncio
import contextlib
import subprocess
import uuid
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentstream.client import AsyncClient, AsyncSession, Internal, Unauthenticated, Unavailable
from agentstream.v1 import service_pb2, session_pb2
from tests.mesh.conftest import TOKEN, Mesh, meshed
from tests.support.envoy import CONFIGURATION, Certificates, call_bytes, code_of, program
from tests.support.model_server import DEADLINE

LIST = service_pb2.ListAgentsRequest()


async def new_session(client: AsyncClient, directory: Path) -> AsyncSession:
    config = session_pb2.SessionConfig(agent="mock", working_directory=str(directory))
    return await client.create(config)


def test_the_configuration_as_shipped_is_valid(certificates: Certificates) -> None:
    done = subprocess.run(
        [program(), "--mode", "validate", "--config-path", str(CONFIGURATION)],
        cwd=certificates.directory,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deprecated" not in (done.stdout + done.stderr).lower()


async def test_a_turn_is_run_and_followed(mesh: Mesh, tmp_path: Path) -> None:
    async with mesh.envoy.client(TOKEN) as client, asyncio.timeout(DEADLINE):
        session = await new_session(client, tmp_path)
        async with session.follow() as events:
            await events.open()
            await session.send("say Through the mesh.")
            kinds = []
            async for event in events:
                kinds.append(event.WhichOneof("payload"))
                if kinds[-1] == "turn_ended":
                    await session.end()
        assert kinds[0] == "session_started"
        assert kinds[-1] == "session_ended"


async def test_a_megabyte_passes_both_ways(mesh: Mesh, tmp_path: Path) -> None:
    async with mesh.envoy.client(TOKEN) as client, asyncio.timeout(DEADLINE):
        session = await new_session(client, tmp_path)
        text = "mega " * 200_000
        await session.send(text)
        said = []
        async with session.follow() as events:
            async for event in events:
                if event.WhichOneof("payload") == "item_completed":
                    said += [part.text.text for part in event.item_completed.item.content]
                if event.WhichOneof("payload") == "turn_ended":
                    break
        assert said == [text, text]


async def test_a_resumed_stream_begins_after_the_cursor(mesh: Mesh, tmp_path: Path) -> None:
    async with mesh.envoy.client(TOKEN) as client, asyncio.timeout(DEADLINE):
        session = await new_session(client, tmp_path)
        await session.send("repeat 50 say Again.")
        async with session.follow() as events:
            async for event in events:
                if event.WhichOneof("payload") == "turn_ended":
                    await session.end()
        async with client.follow(session.session_id, after=100) as rest:
            sequences = [event.sequence async for event in rest]
        assert sequences == list(range(101, event.sequence + 1))


async def test_a_dead_daemon_is_unavailable_or_internal_and_the_reader_comes_back(
    mesh: Mesh, tmp_path: Path
) -> None:
    cuts: list[object] = []
    async with mesh.envoy.client(TOKEN) as client, asyncio.timeout(DEADLINE):
        session = await new_session(client, tmp_path)
        events = client.follow(
            session.session_id, on_reconnect=lambda error, delay: cuts.append(error)
        )
        async with events:
            await events.open()
            await mesh.daemon.kill()
            await mesh.start_again()
            await mesh.envoy.healthy(True)
            await session.end()
            sequences = [event.sequence async for event in events]
    assert sequences == list(range(1, len(sequences) + 1))
    assert cuts
    assert all(isinstance(error, Unavailable | Internal) for error in cuts), cuts


async def test_progress_keeps_a_quiet_stream_open_beyond_the_idle_timeout(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        meshed(
            tmp_path, certificates, "--progress-interval-seconds=0.2", stream_idle_timeout="1s"
        ) as mesh,
        mesh.envoy.client(TOKEN) as client,
    ):
        session = await new_session(client, tmp_path)
        stream = client.stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id=session.session_id, follow=True)
        )
        quiet = 0
        async for response in stream:
            quiet += response.WhichOneof("response") == "progress"
            if quiet == 10:  # twice the idle timeout
                break
        stream.cancel()
    assert quiet == 10


async def test_a_stream_without_progress_is_cut_by_the_idle_timeout(
    tmp_path: Path, certificates: Certificates
) -> None:
    """The counterpart: the timeout of the test before is one that cuts."""
    async with (
        asyncio.timeout(DEADLINE),
        meshed(
            tmp_path, certificates, "--progress-interval-seconds=10", stream_idle_timeout="0.5s"
        ) as mesh,
        mesh.envoy.client(TOKEN) as client,
    ):
        session = await new_session(client, tmp_path)
        stream = client.stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id=session.session_id, follow=True)
        )
        with pytest.raises(grpc.RpcError):
            async for _ in stream:
                pass


async def test_who_has_no_certificate_of_the_authority_is_refused(mesh: Mesh) -> None:
    stranger = mesh.envoy.certificates.stranger
    async with mesh.envoy.client(TOKEN, identity=stranger) as client:
        with pytest.raises(grpc.RpcError) as caught:
            await client.stub.ListAgents(LIST, timeout=DEADLINE)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


async def test_the_daemon_takes_no_connection_past_envoy(mesh: Mesh) -> None:
    trusted = grpc.ssl_channel_credentials(mesh.envoy.certificates.ca.read_bytes())
    async with grpc.aio.secure_channel(mesh.daemon.target, trusted) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await call_bytes(channel, "/agentstream.v1.AgentService/ListAgents")
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


async def test_the_daemon_judges_the_token(mesh: Mesh, tmp_path: Path) -> None:
    async with mesh.envoy.client("another-token") as client:
        with pytest.raises(Unauthenticated):
            await new_session(client, tmp_path)


async def test_ids_of_the_caller_reach_the_log_of_the_daemon_and_envoys(mesh: Mesh) -> None:
    request_id = f"test-{uuid.uuid4().hex}"
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with mesh.envoy.client(TOKEN) as client:
        call = client.stub.ListAgents(
            LIST, metadata=(("x-request-id", request_id), ("traceparent", parent))
        )
        await call
        answered = dict(await call.initial_metadata())
    assert answered["x-request-id"] == request_id
    # Both logs are written when the call is over already; the daemon's last.
    logged = await mesh.envoy.logged(request_id)
    assert await mesh.daemon.stop() == 0
    assert request_id in mesh.daemon.stderr
    assert logged["traceparent"] == parent
    assert logged["client_certificate"] is not None
    assert TOKEN not in bytes(mesh.envoy.log).decode()


async def test_a_call_without_an_id_gets_one(mesh: Mesh) -> None:
    async with mesh.envoy.client(TOKEN) as client:
        call = client.stub.ListAgents(LIST)
        await call
        answered = dict(await call.initial_metadata())
    assert uuid.UUID(str(answered["x-request-id"]))


async def test_a_method_that_is_not_there_is_unimplemented(mesh: Mesh) -> None:
    async with mesh.envoy.client(TOKEN) as client:
        with pytest.raises(grpc.RpcError) as caught:
            await call_bytes(client.channel, "/admin.Service/Everything")
    assert code_of(caught.value) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_of_the_caller_ends_the_call(mesh: Mesh, tmp_path: Path) -> None:
    async with mesh.envoy.client(TOKEN) as client, asyncio.timeout(DEADLINE):
        session = await new_session(client, tmp_path)
        stream = client.stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id=session.session_id, follow=True),
            timeout=0.5,
        )
        with pytest.raises(grpc.RpcError) as caught:
            async for _ in stream:
                pass
    assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_probes_see_health_without_tls_and_nothing_else(mesh: Mesh) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.envoy.probes}") as channel:
        check = health_pb2.HealthCheckRequest(service="agentstream.v1.AgentService")
        health = await health_pb2_grpc.HealthStub(channel).Check(check)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        token = (("authorization", f"Bearer {TOKEN}"),)
        with pytest.raises(grpc.RpcError) as caught:
            await call_bytes(channel, "/agentstream.v1.AgentService/ListAgents", token)
    assert code_of(caught.value) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_crowd_of_readers_that_comes_at_once_is_served(mesh: Mesh, tmp_path: Path) -> None:
    """As after a restart. Defaults of Envoy (1024 calls) and of gRPC (1000) would refuse some."""
    request = service_pb2.StreamEventsRequest(follow=True)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE):
        clients = [await stack.enter_async_context(mesh.envoy.client(TOKEN)) for _ in range(2)]
        request.session_id = (await new_session(clients[0], tmp_path)).session_id

        async def opened(client: AsyncClient) -> bool:
            return (await anext(aiter(client.stub.StreamEvents(request)))).HasField("opened")

        assert all(await asyncio.gather(*(opened(client) for client in clients * 800)))
