"""The generated betterproto2 client as it is, over grpclib."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from agentstream_betterproto.agentstream import v1
from google.rpc import error_details_pb2
from grpclib.client import Channel
from grpclib.exceptions import GRPCError

from tests.clients.programs.outcome import Failed, Json, snake_case

CANCELLED = {"code": "CANCELLED", "reason": "", "metadata": {}, "fields": [], "retry": False}


def described(error: GRPCError) -> Json:
    details = error.details or []
    infos = [it for it in details if isinstance(it, error_details_pb2.ErrorInfo)]
    bad = [it for it in details if isinstance(it, error_details_pb2.BadRequest)]
    return {
        "code": error.status.name,
        "reason": infos[0].reason if infos else "",
        "metadata": dict(infos[0].metadata) if infos else {},
        "fields": [violation.field for it in bad for violation in it.field_violations],
        "retry": any(isinstance(it, error_details_pb2.RetryInfo) for it in details),
    }


@contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except GRPCError as error:
        raise Failed(described(error)) from error
    except TimeoutError as error:
        raise Failed({**CANCELLED, "code": "DEADLINE_EXCEEDED"}) from error


def from_json(method: str, value: Json) -> Any:
    if "updateMask" in value:  # betterproto2 does not read a mask's ProtoJSON, which is a string
        value = {**value, "updateMask": {"paths": value["updateMask"].split(",")}}
    return getattr(v1, f"{method}Request").from_dict(value)


class Betterproto:
    """The generated stub; it has no layer that resumes."""

    def __init__(self, connection: Json) -> None:
        host, port = connection["address"].rsplit(":", 1)
        token = connection.get("token")
        context = None
        if tls := connection.get("tls"):
            context = ssl.create_default_context(cafile=tls["ca"])
            context.load_cert_chain(tls["client"])
            context.set_alpn_protocols(["h2"])
        self.stub = v1.AgentServiceStub(
            Channel(host, int(port), ssl=context),
            metadata={"authorization": f"Bearer {token}"} if token else None,
        )
        self.cancelled = False

    async def unary(self, method: str, request: Json, seconds: float | None) -> Json:
        with told():
            call = getattr(self.stub, snake_case(method))
            response: Json = (await call(from_json(method, request), timeout=seconds)).to_dict()
            return response

    async def stream(
        self, request: Json, raw: bool, seconds: float | None
    ) -> AsyncIterator[Json | None]:
        self.cancelled = False
        with told():
            made = from_json("StreamEvents", request)
            async for response in self.stub.stream_events(made, timeout=seconds):
                if response.opened is not None:
                    yield None
                for event in response.batch.events if response.batch is not None else ():
                    yield event.to_dict()
                    # Leaving the generator cancels its call; it tells nobody of it.
                    if self.cancelled:
                        raise Failed(CANCELLED)

    async def blob(self, request: Json) -> AsyncIterator[bytes]:
        with told():
            async for response in self.stub.read_blob(from_json("ReadBlob", request)):
                yield response.data

    def cancel(self) -> None:
        self.cancelled = True
