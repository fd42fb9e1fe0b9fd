"""The clients of agentstream.client, sync and aio."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from agentstream.client import AgentstreamError, connect, connect_aio, error_from
from agentstream.v1 import service_pb2
from tests.clients.programs.outcome import Failed, Json

CANCELLED = {"code": "CANCELLED", "reason": "", "metadata": {}, "fields": [], "retry": False}


def to_json(message: Message) -> Json:
    return json_format.MessageToDict(message)


def from_json(name: str, value: Json) -> Any:
    return json_format.ParseDict(value, getattr(service_pb2, f"{name}Request")())


def described(error: AgentstreamError) -> Json:
    return {
        "code": error.code.name,
        "reason": error.reason,
        "metadata": error.metadata,
        "fields": [violation.field for violation in error.violations],
        "retry": error.retry_delay is not None,
    }


@contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise Failed(described(error_from(error))) from error
    except AgentstreamError as error:
        raise Failed(described(error)) from error


def options(request: service_pb2.StreamEventsRequest) -> dict[str, Any]:
    return {
        "session_id": request.session_id,
        "after": request.after_sequence,
        "follow": request.follow,
        "include_raw": request.include_raw,
        "kinds": request.kinds,
        "expected_session_uid": request.expected_session_uid,
    }


def how(connection: Json) -> dict[str, Any]:
    options = {"token": connection.get("token")}
    if tls := connection.get("tls"):
        options |= {"tls_ca": tls["ca"], "tls_cert": tls["client"], "tls_key": tls["client"]}
    return options


class Sync:
    """The client without asyncio; this program has nothing else to do while it waits."""

    def __init__(self, connection: Json) -> None:
        self.client = connect(connection["address"], **how(connection))
        self.running: Any = None

    async def unary(self, method: str, request: Json, seconds: float | None) -> Json:
        with told():
            return to_json(
                getattr(self.client.stub, method)(from_json(method, request), timeout=seconds)
            )

    async def stream(
        self, request: Json, raw: bool, seconds: float | None
    ) -> AsyncIterator[Json | None]:
        made = from_json("StreamEvents", request)
        with told():
            if raw:
                self.running = self.client.stub.StreamEvents(made, timeout=seconds)
                try:
                    for response in self.running:
                        if response.HasField("opened"):
                            yield None
                        for event in response.batch.events:
                            yield to_json(event)
                finally:
                    self.running.cancel()
            else:
                with self.client.follow(**options(made)) as events:
                    events.open()
                    yield None
                    for event in events:
                        yield to_json(event)

    async def blob(self, request: Json) -> AsyncIterator[bytes]:
        with told():
            for response in self.client.stub.ReadBlob(from_json("ReadBlob", request)):
                yield response.data

    def cancel(self) -> None:
        self.running.cancel()


class Aio:
    """The client for asyncio."""

    def __init__(self, connection: Json) -> None:
        self.client = connect_aio(connection["address"], **how(connection))
        self.running: Any = None

    async def unary(self, method: str, request: Json, seconds: float | None) -> Json:
        with told():
            return to_json(
                await getattr(self.client.stub, method)(from_json(method, request), timeout=seconds)
            )

    async def stream(
        self, request: Json, raw: bool, seconds: float | None
    ) -> AsyncIterator[Json | None]:
        made = from_json("StreamEvents", request)
        with told():
            if raw:
                self.running = self.client.stub.StreamEvents(made, timeout=seconds)
                try:
                    async for response in self.running:
                        if response.HasField("opened"):
                            yield None
                        for event in response.batch.events:
                            yield to_json(event)
                except asyncio.CancelledError:
                    # What grpc.aio raises for a call that was cancelled here.
                    raise Failed(CANCELLED) from None
                finally:
                    self.running.cancel()
            else:
                async with self.client.follow(**options(made)) as events:
                    await events.open()
                    yield None
                    async for event in events:
                        yield to_json(event)

    async def blob(self, request: Json) -> AsyncIterator[bytes]:
        with told():
            async for response in self.client.stub.ReadBlob(from_json("ReadBlob", request)):
                yield response.data

    def cancel(self) -> None:
        self.running.cancel()
