"""The methods of `AgentService` as handlers of bytes: decode, check, call, encode.

Built from the contract itself, so that a method nobody serves answers NOT_IMPLEMENTED.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf import message, message_factory

from agentstream.v1 import error_pb2, service_pb2

from .blobs import BlobReads
from .calls import Calls
from .errors import CallError, invalid
from .ports import Sessions
from .stream import EventStreams, Write
from .validate import check

SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]
SERVICE_NAME: str = SERVICE.full_name

Context = Any
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Unary = Callable[[Any], Awaitable[message.Message]]
Streaming = Callable[[Any, Write], Awaitable[None]]


class ClientGone(Exception):
    """The transport no longer takes responses of this call."""


def handlers(sessions: Sessions, streams: EventStreams) -> grpc.GenericRpcHandler:
    """All methods of the service."""
    unary = Calls(sessions)
    streaming: dict[str, Streaming] = {
        "StreamEvents": streams.stream_events,
        "ReadBlob": BlobReads(sessions).read_blob,
    }
    table = {}
    for method in SERVICE.methods:
        request_type = message_factory.GetMessageClass(method.input_type)
        if method.server_streaming:
            table[method.name] = _streaming(request_type, streaming.get(method.name))
        else:
            table[method.name] = _unary(request_type, getattr(unary, _snake(method.name), None))
    return grpc.method_handlers_generic_handler(SERVICE_NAME, table)


def unknown(path: str) -> Handler:
    """A handler for a method that this server does not have."""

    async def refuse(requests: Any, context: Context) -> None:
        raise not_implemented(path)

    return grpc.stream_stream_rpc_method_handler(refuse)


def not_implemented(path: str) -> CallError:
    """A call of a method that this server does not have."""
    return CallError(error_pb2.ERROR_REASON_NOT_IMPLEMENTED, f"this server has no method {path}")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _decode(request_type: type[message.Message], data: bytes) -> message.Message:
    try:
        request = request_type.FromString(data)
    except message.DecodeError as error:
        name = request_type.DESCRIPTOR.name
        raise invalid([("request", f"is not an encoded {name}")]) from error
    check(request)
    return request


# No serializers: what is handed to gRPC and comes from it are bytes.


def _unary(request_type: type[message.Message], call: Unary | None) -> Handler:
    async def behavior(data: bytes, context: Context) -> bytes:
        if call is None:
            raise not_implemented(request_type.DESCRIPTOR.full_name)
        response = await call(_decode(request_type, data))
        return response.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(behavior)


def _streaming(request_type: type[message.Message], call: Streaming | None) -> Handler:
    async def behavior(data: bytes, context: Context) -> None:
        async def write(response: bytes) -> None:
            try:
                await context.write(response)
            except Exception as error:
                # A write can fail before the call itself is cancelled, with an error of the core
                # that says no more than that the connection is gone.
                raise ClientGone from error

        if call is None:
            raise not_implemented(request_type.DESCRIPTOR.full_name)
        await call(_decode(request_type, data), write)

    return grpc.unary_stream_rpc_method_handler(behavior)
