"""What Envoy repeats after UNAVAILABLE, proven on a daemon that says nothing else."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agentstream.v1 import service_pb2
from tests.support.envoy import Certificates, Envoy, call_bytes, code_of, envoy

SERVICE = "agentstream.v1.AgentService"
REPEATED = {
    *("ListAgents", "GetAgent", "GetSession", "ListSessions", "StreamEvents", "ReadBlob"),
    *("EndSession", "Respond", "UpdateSession"),
}
VOUCHED = {"CreateSession", "SendMessage"}
METHODS = service_pb2.DESCRIPTOR.services_by_name["AgentService"].methods_by_name


class Refusing(grpc.GenericRpcHandler):
    """Answers every call with UNAVAILABLE, and counts them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.metadata: dict[str, str | bytes] = {}

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        name = str(details.method)
        if not name.startswith(f"/{SERVICE}/"):
            return None

        self.metadata = dict(details.invocation_metadata)

        async def refuse(request: bytes, context: Any) -> bytes:
            self.calls[name.rsplit("/", 1)[1]] += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not today")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
async def refusing(
    tmp_path: Path, certificates: Certificates
) -> AsyncIterator[tuple[Envoy, Refusing]]:
    chain, key = certificates.daemon
    refuser = Refusing()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((refuser,))
    servicer = health.aio.HealthServicer()
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])
    )
    await server.start()
    try:
        async with envoy(tmp_path, certificates, upstream=port) as proxy:
            await proxy.healthy(True)
            yield proxy, refuser
    finally:
        with contextlib.suppress(grpc.RpcError):
            await server.stop(0)


async def attempts(proxy: Envoy, refuser: Refusing, method: str, **metadata: str) -> int:
    """How often a call that is made once, and fails, reaches the daemon."""
    before = refuser.calls[method]
    async with proxy.client() as client:
        named = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        with pytest.raises(grpc.RpcError) as caught:
            await call_bytes(client.channel, f"/{SERVICE}/{method}", named)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
    return refuser.calls[method] - before


async def test_only_calls_that_the_contract_calls_idempotent_are_repeated(
    refusing: tuple[Envoy, Refusing],
) -> None:
    made = {method: await attempts(*refusing, method) for method in METHODS}
    assert {method for method, count in made.items() if count > 1} == REPEATED, made
    assert all(count >= 1 for count in made.values())


async def test_calls_with_an_id_are_repeated_when_the_client_says_that_they_have_one(
    refusing: tuple[Envoy, Refusing],
) -> None:
    for method in set(METHODS) - REPEATED:
        count = await attempts(*refusing, method, idempotency_key="m-1")
        assert (count > 1) == (method in VOUCHED), method


async def test_headers_of_the_caller_reach_the_daemon_as_they_are(
    refusing: tuple[Envoy, Refusing],
) -> None:
    sent = {
        "authorization": "Bearer of-the-caller",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=value",
        "x_request_id": "request-of-the-caller",
    }
    proxy, refuser = refusing
    await attempts(proxy, refuser, "SendMessage", **sent)
    for name, value in sent.items():
        assert refuser.metadata[name.replace("_", "-")] == value
