"""Both clients against a real server in this process."""

from collections.abc import AsyncIterator, Callable
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from agentstream.client import (
    AgentstreamError,
    AsyncClient,
    Backoff,
    NotFound,
    SessionReplaced,
    Unavailable,
    connect,
    connect_aio,
    typed_errors,
)
from agentstream.client.channel import channel_options, is_local
from agentstream.v1 import agent_pb2, service_pb2, service_pb2_grpc
from tests.unit.client.stream_responses import batch, opened, status_details

Responses = tuple[service_pb2.StreamEventsResponse, ...]
OK = grpc.StatusCode.OK


class Daemon(service_pb2_grpc.AgentServiceServicer):
    """Plays one scripted stream per call, and notes what it was asked."""

    def __init__(self) -> None:
        self.streams: list[tuple[Responses, grpc.StatusCode, str]] = []
        self.requests: list[service_pb2.StreamEventsRequest] = []
        self.tokens: list[object] = []

    def GetAgent(self, request, context):  # type: ignore[no-untyped-def]
        self._note(context)
        if request.name == "huge":
            agent = agent_pb2.Agent(name="x" * (8 * 1024 * 1024))
            return service_pb2.GetAgentResponse(agent=agent)
        context.set_trailing_metadata(
            status_details(grpc.StatusCode.NOT_FOUND, "no agent x", "AGENT_NOT_FOUND")
        )
        context.abort(grpc.StatusCode.NOT_FOUND, "no agent x")

    def StreamEvents(self, request, context):  # type: ignore[no-untyped-def]
        self._note(context)
        self.requests.append(request)
        responses, code, reason = self.streams.pop(0)
        yield from responses
        if code is not OK:
            if reason:
                context.set_trailing_metadata(status_details(code, "it broke", reason))
            context.abort(code, "it broke")

    def _note(self, context: grpc.ServicerContext) -> None:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()  # type: ignore[abstract]


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, daemon: Daemon, tmp_path: Path):  # type: ignore[no-untyped-def]
    server = grpc.server(futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_AgentServiceServicer_to_server(daemon, server)
    if request.param == "tcp":
        name = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        name = f"unix:{tmp_path / 'socket'}"
        server.add_insecure_port(name)
    server.start()
    yield name
    server.stop(None).wait()


@pytest.fixture
async def aio(address: str) -> AsyncIterator[AsyncClient]:
    async with connect_aio(address, token="secret") as client:
        yield client


def no_wait(slept: list[float]) -> Callable[[float], object]:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return sleep


def test_a_failed_call_is_typed_and_carries_the_token(daemon: Daemon, address: str) -> None:
    with (
        connect(address, token="secret") as client,
        pytest.raises(NotFound) as caught,
        typed_errors(),
    ):
        client.stub.GetAgent(service_pb2.GetAgentRequest(name="x"))
    assert caught.value.reason == "AGENT_NOT_FOUND"
    assert daemon.tokens == ["Bearer secret"]


def test_a_message_above_grpcs_default_limit_is_received(address: str) -> None:
    with connect(address) as client:
        answer = client.stub.GetAgent(service_pb2.GetAgentRequest(name="huge"))
    assert len(answer.agent.name) == 8 * 1024 * 1024


def test_a_sync_stream_is_resumed_on_a_real_channel(daemon: Daemon, address: str) -> None:
    daemon.streams = [
        ((opened(), batch(1)), grpc.StatusCode.UNAVAILABLE, ""),
        ((opened(), batch(2, ended=True)), OK, ""),
    ]
    slept: list[float] = []
    with (
        connect(address, token="secret") as client,
        client.follow("s", sleep=slept.append, backoff=Backoff(jitter=0)) as events,
    ):
        assert [event.sequence for event in events] == [1, 2]
    assert slept == [0.1]
    assert daemon.tokens == ["Bearer secret"] * 2


async def test_an_async_stream_is_resumed_with_its_token(daemon: Daemon, aio: AsyncClient) -> None:
    daemon.streams = [
        ((opened("u"), batch(1, 2)), grpc.StatusCode.INTERNAL, ""),
        ((opened("u"), batch(2, 3, ended=True)), OK, ""),
    ]
    slept: list[float] = []
    stream = aio.follow("s", sleep=no_wait(slept), backoff=Backoff(jitter=0))  # type: ignore[arg-type]
    async with stream:
        assert (await stream.open()).uid == "u"
        assert [event.sequence async for event in stream] == [1, 2, 3]
        assert stream.last_sequence == 3
    assert [(r.after_sequence, r.expected_session_uid) for r in daemon.requests] == [
        (0, ""),
        (2, "u"),
    ]
    assert slept == [0.1]
    assert daemon.tokens == ["Bearer secret"] * 2


async def test_an_async_stream_that_cannot_be_resumed_raises(
    daemon: Daemon, aio: AsyncClient
) -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    daemon.streams = [((), code, "SESSION_REPLACED")]
    with pytest.raises(SessionReplaced):
        await anext(aio.follow("s", expected_session_uid="old"))


def test_a_stream_of_a_closed_client_says_so(address: str) -> None:
    client = connect(address)
    stream = client.follow("s")
    client.close()
    with pytest.raises(AgentstreamError, match="the connection is closed"):
        next(stream)


async def test_an_async_stream_of_a_closed_client_says_so(address: str) -> None:
    client = connect_aio(address)
    stream = client.follow("s")
    await client.close()
    with pytest.raises(AgentstreamError, match="the connection is closed"):
        await anext(stream)


async def test_an_unreachable_daemon_is_unavailable(tmp_path: Path) -> None:
    async with connect_aio(f"unix:{tmp_path / 'nobody'}") as client:
        with pytest.raises(Unavailable):
            await anext(client.follow("s", backoff=Backoff(attempts=0)))


def test_proxies_are_for_other_machines() -> None:
    assert [is_local(a) for a in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/x")] == [True] * 4
    assert not is_local("agents.example:443")
    assert ("grpc.enable_http_proxy", 0) in channel_options("127.0.0.1:1")
    assert ("grpc.enable_http_proxy", 0) not in channel_options("agents.example:443")


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ValueError, match="needs its key"):
        connect("agents.example:443", tls_cert="cert.pem")
