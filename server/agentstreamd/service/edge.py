"""What surrounds every call: authentication, one status for every exception, a line in the log."""

import asyncio
import contextlib
import inspect
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from .admission import Admission, Release
from .errors import CallError, expected, internal
from .methods import SERVICE_NAME, ClientGone, Handler, unknown
from .ports import CallWatch, WatchCall

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_DETAILS_KEY = "grpc-status-details-bin"


class Edge(aio.ServerInterceptor):
    """The one interceptor: every handler goes through it, also the standard services'."""

    def __init__(self, admission: Admission, watch: WatchCall | None = None) -> None:
        self._admission = admission
        self._watch = watch

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[Handler | None]"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a call."""
        path = str(handler_call_details.method)
        handler = await continuation(handler_call_details) or unknown(path)
        return _wrapped(handler, path, self._admission, self._watch)


def _wrapped(handler: Any, path: str, admission: Admission, watch: WatchCall | None) -> Handler:
    streaming = handler.response_streaming
    if streaming:
        behavior = handler.stream_stream or handler.unary_stream
    else:
        behavior = handler.stream_unary or handler.unary_unary
    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, streaming]
    generates = inspect.isasyncgenfunction(behavior)

    async def call(request: Any, context: Any) -> Any:
        async with _Call(path, request, streaming, admission, watch, context) as shown:
            if not generates:
                return await behavior(request, shown)
            # Never handed to gRPC as a generator: that would be closed by the garbage collector,
            # and a call that was cut be counted until then.
            async with contextlib.aclosing(behavior(request, shown)) as responses:
                async for response in responses:
                    await shown.write(response)

    made: Handler = make(call, handler.request_deserializer, handler.response_serializer)
    return made


class _Call:
    """One call, from its begin to its status. Thousands of streams may wait: it is small."""

    __slots__ = (
        "_admission",
        "_code",
        "_context",
        "_path",
        "_reason",
        "_release",
        "_request",
        "_request_id",
        "_started",
        "_streaming",
        "_watch",
        "_watch_call",
    )

    def __init__(
        self,
        path: str,
        request: Any,
        streaming: bool,
        admission: Admission,
        watch: WatchCall | None,
        context: Any,
    ) -> None:
        self._path = path
        self._request = request
        self._streaming = streaming
        self._admission = admission
        self._release: Release = lambda: None
        self._watch_call = watch
        self._watch: CallWatch | None = None
        self._context = context
        self._started = 0.0
        self._request_id = ""
        self._code = ""
        self._reason: str | None = None

    async def __aenter__(self) -> Any:
        self._started = time.monotonic()
        metadata = tuple(self._context.invocation_metadata() or ())
        self._request_id = _request_id(metadata)
        if self._watch_call is not None:
            self._watch = self._watch_call(self._path, metadata, self._request_id)
        try:
            self._release = self._admission.admit(
                self._path, self._request, metadata, self._context, streaming=self._streaming
            )
        except CallError as error:
            try:
                await self._fail(error)
            finally:
                self._end_watch()
        return self._context if self._watch is None else _Watched(self._context, self._watch)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._release()
        try:
            return await self._settle(error)
        finally:
            self._end_watch()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.ended(self._code, self._reason)

    async def _settle(self, error: BaseException | None) -> bool:
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
        self._code, self._reason = code, reason
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
            **(self._watch.fields if self._watch is not None else {}),
        }
        if reason is not None:
            extra["reason"] = reason
        _log.log(level, "call", extra=extra)


class _Watched:
    """The context of a call whose watcher is told of the first response."""

    def __init__(self, context: Any, watch: CallWatch) -> None:
        self._context = context
        self._watch = watch
        self._opened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: Any) -> None:
        await self._context.write(response)
        if not self._opened:
            self._opened = True
            self._watch.opened()


def _request_id(metadata: tuple[tuple[str, str | bytes], ...]) -> str:
    """The caller's id of the request, where it is one that may stand in a log; else a new one."""
    for key, value in metadata:
        if key == "x-request-id" and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex
