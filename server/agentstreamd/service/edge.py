"""What surrounds every call: authentication, one status for every exception, a line in the log."""

import asyncio
import inspect
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from .auth import TokenAuth
from .errors import CallError, expected, internal
from .methods import SERVICE_NAME, ClientGone, Handler, unknown

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_DETAILS_KEY = "grpc-status-details-bin"
# Probes of orchestrators can't send tokens; the answer tells nothing but whether the server serves.
_OPEN = "/grpc.health.v1.Health/"


class Edge(aio.ServerInterceptor):
    """The one interceptor: every handler goes through it, also the standard services'."""

    def __init__(self, auth: TokenAuth | None) -> None:
        self._auth = auth

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[Handler | None]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a call."""
        path = str(handler_call_details.method)
        handler = await continuation(handler_call_details) or unknown(path)
        auth = None if path.startswith(_OPEN) else self._auth
        return _wrapped(handler, path, auth)


def _wrapped(handler: Any, path: str, auth: TokenAuth | None) -> Handler:
    if handler.response_streaming:
        behavior = handler.stream_stream or handler.unary_stream
    else:
        behavior = handler.stream_unary or handler.unary_unary
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]

    async def call(request: Any, context: Any) -> Any:
        async with _Call(path, auth, context):
            return await behavior(request, context)

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        async with _Call(path, auth, context):
            async for response in behavior(request, context):
                yield response

    wrapped = generate if inspect.isasyncgenfunction(behavior) else call
    made: Handler = make(wrapped, handler.request_deserializer, handler.response_serializer)
    return made


class _Call:
    """One call, from its begin to its status."""

    def __init__(self, path: str, auth: TokenAuth | None, context: Any) -> None:
        self._path = path
        self._auth = auth
        self._context = context
        self._started = 0.0
        self._request_id = ""

    async def __aenter__(self) -> None:
        self._started = time.monotonic()
        metadata = tuple(self._context.invocation_metadata() or ())
        self._request_id = _request_id(metadata)
        if self._auth is not None:
            try:
                self._auth.check(metadata)
            except CallError as error:
                await self._fail(error)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        match error:
            case None:
                self._record("OK")
            case aio.AbortError():
                code = self._context.code()
                self._record(getattr(code, "name", str(code)))
            case asyncio.CancelledError() | GeneratorExit():
                self._record("CANCELLED")
            case ClientGone():
                self._record("CANCELLED")
                return True
            case Exception():
                await self._fail(expected(error) or self._unforeseen(error))
        return False

    def _unforeseen(self, error: Exception) -> CallError:
        _log.error(
            "unexpected error in a call",
            exc_info=error,
            extra={"method": self._path, "request_id": self._request_id},
        )
        return internal(self._request_id)

    async def _fail(self, error: CallError) -> None:
        self._record(error.status_code.name, error.reason_name)
        status = error.status()
        details = ((_DETAILS_KEY, status.SerializeToString()),)
        await self._context.abort(error.status_code, status.message, details)

    def _record(self, code: str, reason: str | None = None) -> None:
        ours = self._path.startswith(f"/{SERVICE_NAME}/")
        level = logging.INFO if ours else logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        extra = {
            "method": self._path.removeprefix("/"),
            "code": code,
            "duration_ms": round((time.monotonic() - self._started) * 1e3, 3),
            "peer": self._context.peer(),
            "request_id": self._request_id,
        }
        if reason is not None:
            extra["reason"] = reason
        _log.log(level, "call", extra=extra)


def _request_id(metadata: tuple[tuple[str, str | bytes], ...]) -> str:
    """The caller's id of the request, where it is one that may stand in a log; else a new one."""
    for key, value in metadata:
        if key == "x-request-id" and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex
