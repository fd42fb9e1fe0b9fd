"""The daemon as a process of its own: start, refusals, a session of the mock agent, stop, crash."""

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentstream.v1 import event_pb2, interaction_pb2, service_pb2_grpc, session_pb2
from agentstream.v1 import service_pb2 as pb
from agentstreamd import daemon as daemon_module
from agentstreamd.laws.checker import check
from tests.support.daemon import Daemon, DaemonFailed, daemon, start
from tests.support.grpc_edge import details

ASK = "ask permission command ls\n"


class Client:
    """A session of the mock agent, seen by a client."""

    def __init__(self, channel: aio.Channel, directory: Path) -> None:
        self.stub: Any = service_pb2_grpc.AgentServiceStub(channel)
        self.directory = directory

    async def create(self, session_id: str, **more: Any) -> session_pb2.Session:
        config = session_pb2.SessionConfig(
            agent="mock", working_directory=str(self.directory), **more
        )
        request = pb.CreateSessionRequest(session_id=session_id, config=config)
        session: session_pb2.Session = (await self.stub.CreateSession(request)).session
        return session

    async def send(self, session_id: str, script: str) -> pb.SendMessageResponse:
        parts = [pb.InputPart(text=script)]
        request = pb.SendMessageRequest(session_id=session_id, parts=parts)
        response: pb.SendMessageResponse = await self.stub.SendMessage(request)
        return response

    def stream(self, session_id: str, after: int = 0) -> "Follower":
        request = pb.StreamEventsRequest(session_id=session_id, after_sequence=after, follow=True)
        return Follower(self.stub.StreamEvents(request))


class Follower:
    """A followed stream; `events` are those that were looked at so far."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.events: list[event_pb2.Event] = []
        self._ahead: deque[event_pb2.Event] = deque()

    async def until(self, payload: str) -> event_pb2.Event:
        """Go on until an event with this payload."""
        while True:
            while self._ahead:
                self.events.append(self._ahead.popleft())
                if self.events[-1].WhichOneof("payload") == payload:
                    return self.events[-1]
            response = await self.call.read()
            assert response is not aio.EOF, f"the stream ended before {payload}"
            self._ahead += response.batch.events


def breaches(events: list[event_pb2.Event], *, complete: bool = True) -> list[str]:
    return [str(one) for one in check(events, complete=complete)]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def client(running: Daemon, tmp_path: Path) -> AsyncIterator[Client]:
    async with running.aio_channel() as channel:
        yield Client(channel, tmp_path)


async def test_it_says_where_it_listens_in_one_line(running: Daemon) -> None:
    host, port = running.target.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert await running.stop() == 0
    assert running.stdout == f"agentstreamd listening on {running.target}\n".encode()


async def test_a_one_shot_session_ends_and_its_stream_with_it(client: Client) -> None:
    await client.create("one", one_shot=True)
    stream = client.stream("one")
    await client.send("one", "say hello\n")
    await stream.until("session_ended")
    assert await stream.call.read() is aio.EOF
    assert await stream.call.code() == grpc.StatusCode.OK
    assert breaches(stream.events) == []


async def test_a_permission_is_asked_and_answered(client: Client) -> None:
    await client.create("asks")
    stream = client.stream("asks")
    await client.send("asks", ASK)
    asked = await stream.until("permission_requested")
    request_id = asked.permission_requested.request_id
    snapshot = (await client.stub.GetSession(pb.GetSessionRequest(session_id="asks"))).session
    assert [one.permission.request_id for one in snapshot.pending_requests] == [request_id]
    answer = pb.RespondRequest(session_id="asks", request_id=request_id)
    answer.permission.decision = interaction_pb2.PERMISSION_DECISION_ACCEPT
    responded = await client.stub.Respond(answer)
    resolved = await stream.until("permission_resolved")
    assert resolved.sequence == responded.sequence
    await stream.until("turn_ended")
    assert breaches(stream.events) == []


async def test_a_repeated_create_gives_the_session_and_another_is_refused(client: Client) -> None:
    first = await client.create("same", title="x")
    assert (await client.create("same", title="x")).uid == first.uid
    with pytest.raises(aio.AioRpcError) as caught:
        await client.create("same", title="y")
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert details(caught.value).info.reason == "SESSION_EXISTS"


async def test_sigterm_drains_and_a_restart_closes_what_was_open(
    running: Daemon, client: Client, tmp_path: Path
) -> None:
    await client.create("open")
    stream = client.stream("open")
    await client.send("open", ASK)
    await stream.until("permission_requested")
    async with running.aio_channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await stream.until("session_ended")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    found = details(caught.value)
    assert found.info.reason == "SERVER_DRAINING"
    assert found.retry_delay_seconds
    assert await running.wait() == 0
    await _resumes_and_ends_the_turn(stream, tmp_path)


async def test_a_kill_loses_nothing_that_was_seen(
    running: Daemon, client: Client, tmp_path: Path
) -> None:
    await client.create("open")
    stream = client.stream("open")
    await client.send("open", ASK)
    await stream.until("permission_requested")
    await running.kill()
    with pytest.raises(aio.AioRpcError) as caught:
        await stream.until("session_ended")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await _resumes_and_ends_the_turn(stream, tmp_path)


async def _resumes_and_ends_the_turn(before: Follower, tmp_path: Path) -> None:
    seen = before.events
    async with daemon(tmp_path / "data") as again, again.aio_channel() as channel:
        client = Client(channel, tmp_path)
        stream = client.stream("open")
        await stream.until("turn_ended")
        assert stream.events[: len(seen)] == seen
        resumed = client.stream("open", seen[-1].sequence)
        await resumed.until("turn_ended")
        assert seen + resumed.events == stream.events
        kinds = [event.WhichOneof("payload") for event in stream.events]
        assert kinds.count("permission_resolved") == 1
        assert breaches(stream.events) == []
        await client.send("open", "say again\n")
        await stream.until("turn_ended")
        assert breaches(stream.events) == []


async def test_agent_processes_end_with_the_daemon(
    running: Daemon, client: Client, tmp_path: Path
) -> None:
    await client.create("process", agent_options={"process": "true"})
    stream = client.stream("process")
    await client.send("process", ASK)
    await stream.until("permission_requested")
    marker = (tmp_path / "data" / "instance-id").read_text().strip()
    assert _marked(marker)
    assert await running.stop() == 0
    assert _marked(marker) == []


def _marked(instance_id: str) -> list[str]:
    """The processes that carry the mark of a data directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"AGENTSTREAM_PROCESS={instance_id}/".encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


async def refused(tmp_path: Path, *arguments: str, **more: Any) -> DaemonFailed:
    with pytest.raises(DaemonFailed) as caught:
        await start(tmp_path / "data", *arguments, **more)
    return caught.value


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.test:50051"])
async def test_it_refuses_to_listen_off_loopback_in_the_open(tmp_path: Path, address: str) -> None:
    failed = await refused(tmp_path, listen=[address])
    assert failed.code == 2
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"agentstreamd: Refusing to listen on {address}: ")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--log-level=loud"], "--log-level"),
        (["--agent-executables=nobody=/bin/true"], "nobody"),
        (["--token-file=/nonexistent/token"], "/nonexistent/token"),
        (["--tls-certificate-file=/none", "--tls-key-file=/none"], "/none"),
    ],
)
async def test_wrong_settings_are_one_sentence(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    failed = await refused(tmp_path, *arguments)
    assert failed.code == 2
    assert failed.stderr.count("\n") == 1
    assert said in failed.stderr


async def test_a_data_directory_has_one_daemon(running: Daemon) -> None:
    with pytest.raises(DaemonFailed) as caught:
        await start(running.data_dir)
    assert caught.value.code == 3
    assert caught.value.stderr.count("\n") == 1
    assert f"in use by process {running.process.pid}" in caught.value.stderr


async def test_a_data_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    failed = await refused(tmp_path)
    assert failed.code == 3
    assert failed.stderr.count("\n") == 1


async def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = await refused(tmp_path, listen=[address])
    assert failed.code == 4
    assert failed.stderr == f"agentstreamd: Can't listen on {address}: Address already in use.\n"


async def test_the_data_directory_is_private(running: Daemon) -> None:
    for path in (running.data_dir, running.data_dir / "events", running.data_dir / "agents"):
        assert path.stat().st_mode & 0o777 == 0o700


async def test_a_data_directory_that_others_could_read_is_narrowed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with daemon(data):
        pass
    opened_up = [data, *data.rglob("*")]
    for path in opened_up:
        path.chmod(0o777 if path.is_dir() else 0o666)
    async with daemon(data):
        reachable = [
            path.name
            for path in (data, data / "agents", data / "events", *data.glob("events/*"))
            if path.stat().st_mode & 0o077
        ]
    assert reachable == []
    assert (data / "events/events.db") in opened_up


@pytest.mark.parametrize("directory", ["data", "data/events"])
async def test_a_directory_of_others_is_refused_where_they_can_reach_it(
    tmp_path: Path, directory: str
) -> None:
    path = tmp_path / directory
    path.mkdir(parents=True, mode=0o700)
    path.chmod(0o1777)  # as of temporary files, which all users share
    failed = await refused(tmp_path)
    assert failed.code == 3
    assert failed.stderr.count("\n") == 1
    assert f"{path} is open to other users" in failed.stderr
    assert path.stat().st_mode & 0o7777 == 0o1777
    if os.geteuid() == 0:
        path.chmod(0o755)
        os.chown(path, 65534, 65534)
        assert "belongs to another user" in (await refused(tmp_path)).stderr


async def test_a_unix_socket_and_a_port_serve_at_once(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen = ["127.0.0.1:0", f"unix:{path}"]
    async with daemon(tmp_path / "data", listen=listen) as running:
        assert running.addresses[1] == f"unix:{path}"
        for address in running.addresses:
            async with aio.insecure_channel(address) as channel:
                stub: Any = service_pb2_grpc.AgentServiceStub(channel)
                agents = (await stub.ListAgents(pb.ListAgentsRequest())).agents
                assert "mock" in [agent.name for agent in agents]
        await running.stop()
        assert not path.exists()


async def test_off_loopback_with_tls_and_a_token(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    flags = [
        f"--tls-certificate-file={certificate}",
        f"--tls-key-file={key}",
        f"--token-file={token}",
    ]
    async with daemon(tmp_path / "data", *flags, listen=["0.0.0.0:0"]) as running:
        port = running.target.rsplit(":", 1)[1]
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        async with aio.secure_channel(f"localhost:{port}", credentials) as channel:
            stub: Any = service_pb2_grpc.AgentServiceStub(channel)
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListAgents(pb.ListAgentsRequest())
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            metadata = (("authorization", "Bearer t0ken"),)
            assert (await stub.ListAgents(pb.ListAgentsRequest(), metadata=metadata)).agents
        async with aio.insecure_channel(f"127.0.0.1:{port}") as plain:
            stub = service_pb2_grpc.AgentServiceStub(plain)
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListAgents(pb.ListAgentsRequest(), metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "t0ken" not in running.stderr


def _certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", str(key), "-out", str(certificate)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


async def test_the_second_signal_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    signals = daemon_module._StopSignals()
    loop = asyncio.get_running_loop()
    try:
        signals._take(signal.SIGTERM)
        await signals.wait()
        assert exits == []
        signals._take(signal.SIGINT)
        assert exits == [128 + signal.SIGINT]
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
