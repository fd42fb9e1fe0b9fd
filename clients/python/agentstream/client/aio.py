"""The client for asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc

from agentstream.client.channel import (
    DEFAULT_ADDRESS,
    Options,
    channel_credentials,
    channel_options,
    token_metadata,
)
from agentstream.client.errors import AgentstreamError, error_from, typed_errors
from agentstream.client.resume import Backoff, Cursor
from agentstream.client.session import AsyncSession, creation
from agentstream.v1 import event_pb2, service_pb2, session_pb2
from agentstream.v1.service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    from agentstream.v1.service_pb2_grpc import AgentServiceAsyncStub

    EventCall = grpc.aio.UnaryStreamCall[
        service_pb2.StreamEventsRequest, service_pb2.StreamEventsResponse
    ]


def connect_aio(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    options: Options = (),
) -> "AsyncClient":
    """The same as `connect`, for asyncio; call it with a running event loop."""
    credentials = channel_credentials(tls_ca, tls_cert, tls_key)
    made = channel_options(address, options)
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if token:
        interceptors = [_UnaryToken(token), _StreamToken(token)]
    channel = (
        grpc.aio.insecure_channel(address, made, interceptors=interceptors)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, made, interceptors=interceptors)
    )
    return AsyncClient(channel)


class AsyncClient:
    """A connection to a daemon. Close it, or use it as an async context manager.

    Attributes:
        channel: The gRPC channel.
        stub: All calls of the daemon. They raise `grpc.RpcError`, inside `typed_errors()`
            `AgentstreamError`.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: AgentServiceAsyncStub = AgentServiceStub(channel)

    def follow(
        self,
        session_id: str,
        after: int = 0,
        *,
        follow: bool = True,
        include_raw: bool = False,
        kinds: Iterable[event_pb2.EventKind.ValueType] = (),
        expected_session_uid: str = "",
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_reconnect: Callable[[AgentstreamError, float], object] | None = None,
    ) -> "AsyncEventStream":
        """The same as `Client.follow`, for `async for`."""
        request = service_pb2.StreamEventsRequest(
            session_id=session_id,
            after_sequence=after,
            follow=follow,
            include_raw=include_raw,
            kinds=kinds,
            expected_session_uid=expected_session_uid,
        )
        cursor = Cursor(request, backoff or Backoff())
        return AsyncEventStream(self.stub, cursor, sleep=sleep, on_reconnect=on_reconnect)

    async def create(self, config: session_pb2.SessionConfig, session_id: str = "") -> AsyncSession:
        """The same as `Client.create`."""
        with typed_errors():
            made = (await self.stub.CreateSession(creation(config, session_id))).session
        return self.session(made.session_id)

    def session(self, session_id: str) -> AsyncSession:
        """Short calls for a session."""
        return AsyncSession(self, session_id)

    async def close(self) -> None:
        """Close the connection; calls that run are cancelled."""
        await self.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncEventStream(AsyncIterator[event_pb2.Event]):
    """A session's events, each once, in order; made by `AsyncClient.follow`. For one reader.

    A cancelled read loses nothing: the next one goes on where it was.
    """

    def __init__(
        self,
        stub: "AgentServiceAsyncStub",
        cursor: Cursor,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_reconnect: Callable[[AgentstreamError, float], object] | None = None,
    ) -> None:
        self._stub = stub
        self._cursor = cursor
        self._sleep = sleep
        self._on_reconnect = on_reconnect
        self._ready: deque[event_pb2.Event] = deque()
        self._call: EventCall | None = None
        self._over = False

    @property
    def last_sequence(self) -> int:
        """Sequence up to which events were handed out, or passed by the filter."""
        return self._ready[0].sequence - 1 if self._ready else self._cursor.sequence

    async def open(self) -> session_pb2.Session:
        """Wait until the stream is open; returns the session as it then was.

        What the session does after that is in the stream, so it is the moment to send a message.
        """
        while self._cursor.session is None and not self._over:
            await self._advance()
        return self._cursor.session or session_pb2.Session()

    async def __anext__(self) -> event_pb2.Event:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            await self._advance()
        return self._ready.popleft()

    async def close(self) -> None:
        """End the stream."""
        self._over = True
        self._ready.clear()
        self._hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _advance(self) -> None:
        try:
            if self._call is None:
                self._call = self._dial()
            response = await self._call.read()
            if isinstance(response, service_pb2.StreamEventsResponse):
                self._ready.extend(self._cursor.take(response))
                return
        except asyncio.CancelledError:
            self._hang_up()  # gRPC has cancelled the call along with the read
            raise
        except grpc.RpcError as error:
            failure = error_from(error)
        except AgentstreamError:
            await self.close()
            raise
        else:
            if self._cursor.finished():
                self._over = True
                return
            failure = self._cursor.cut()
        self._call = None
        await self._reconnect(failure)

    def _dial(self) -> "EventCall":
        try:
            return self._stub.StreamEvents(self._cursor.next_request())
        except grpc.aio.UsageError:
            raise AgentstreamError(
                "the connection is closed", code=grpc.StatusCode.CANCELLED
            ) from None

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _reconnect(self, failure: AgentstreamError) -> None:
        try:
            delay = self._cursor.failed(failure)
        except AgentstreamError:
            self._over = True
            raise
        if self._on_reconnect is not None:
            self._on_reconnect(failure, delay)
        await self._sleep(delay)


def _with_token(
    details: grpc.aio.ClientCallDetails, metadata: tuple[tuple[str, str], ...]
) -> grpc.aio.ClientCallDetails:
    return grpc.aio.ClientCallDetails(
        details.method,
        details.timeout,
        grpc.aio.Metadata(*(details.metadata or ()), *metadata),
        details.credentials,
        details.wait_for_ready,
    )


class _UnaryToken(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._metadata = token_metadata(token)

    async def intercept_unary_unary(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self._metadata), request)


class _StreamToken(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, token: str) -> None:
        self._metadata = token_metadata(token)

    async def intercept_unary_stream(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self._metadata), request)
