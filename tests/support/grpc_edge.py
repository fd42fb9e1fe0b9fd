"""A real server in this process, its channel, and reading rich statuses."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from google.rpc import error_details_pb2, status_pb2
from grpc import aio

from agentstream.v1 import service_pb2_grpc
from agentstreamd.service.listen import Address
from agentstreamd.service.ports import Sessions
from agentstreamd.service.server import Server, ServerSettings
from agentstreamd.service.stream import StreamSettings


@dataclasses.dataclass
class Running:
    """A server that runs, and a connection to it."""

    server: Server
    channel: aio.Channel
    stub: "service_pb2_grpc.AgentServiceAsyncStub"

    @property
    def target(self) -> str:
        """Where to connect."""
        return str(self.server.addresses[0])


@contextlib.asynccontextmanager
async def running(
    sessions: Sessions,
    *,
    progress_interval_seconds: float = 60.0,
    max_streams: int = 100,
    **more: Any,
) -> AsyncIterator[Running]:
    """Serve the sessions on a port of its own. Progress is rare unless asked for."""
    settings = ServerSettings(
        **{"listen": [Address.parse("127.0.0.1:0")], **more},
        streams=StreamSettings(
            progress_interval_seconds=progress_interval_seconds, max_streams=max_streams
        ),
    )
    server = Server(sessions, settings)
    await server.start()
    try:
        async with aio.insecure_channel(str(server.addresses[0])) as channel:
            stub: Any = service_pb2_grpc.AgentServiceStub(channel)
            yield Running(server, channel, stub)
    finally:
        await server.stop(0)


@dataclasses.dataclass
class Details:
    """The details of a failed call, by type."""

    info: error_details_pb2.ErrorInfo
    violations: dict[str, str]
    retry_delay_seconds: float | None


def details(error: aio.AioRpcError) -> Details:
    """Read the rich status of a failed call; there must be exactly one ErrorInfo."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    infos = []
    violations: dict[str, str] = {}
    retry = None
    for packed in status.details:
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        delay = error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            infos.append(info)
        elif packed.Unpack(bad):
            violations = {one.field: one.description for one in bad.field_violations}
        elif packed.Unpack(delay):
            retry = delay.retry_delay.ToMilliseconds() / 1e3
        else:
            raise AssertionError(f"unexpected detail {packed.type_url}")
    assert [info.domain for info in infos] == ["agentstream"]
    return Details(infos[0], violations, retry)
