"""The client for code without asyncio."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

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
from agentstream.client.session import Session, creation
from agentstream.v1 import event_pb2, service_pb2, session_pb2
from agentstream.v1.service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    EventCall = grpc._CallIterator[service_pb2.StreamEventsResponse]


def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    options: Options = (),
) -> "Client":
    """A client of the daemon at `address`. It connects at the first call.

    Args:
        address: `host:port` or `unix:PATH`.
        token: Sent with each call, where the daemon wants one.
        tls_ca: PEM file of the authority that signed the server's certificate; turns TLS on.
        tls_cert: PEM file of a client certificate, where the server wants one; turns TLS on.
        tls_key: PEM file of its key.
        options: Further options of the gRPC channel.

    Raises ValueError for TLS settings that do not go together, OSError for a file that can't be
    read.
    """
    credentials = channel_credentials(tls_ca, tls_cert, tls_key)
    made = channel_options(address, options)
    channel = (
        grpc.insecure_channel(address, made)
        if credentials is None
        else grpc.secure_channel(address, credentials, made)
    )
    if token:
        channel = grpc.intercept_channel(channel, _Token(token))
    return Client(channel)


class Client:
    """A connection to a daemon. Close it, or use it as a context manager.

    Attributes:
        channel: The gRPC channel.
        stub: All calls of the daemon. They raise `grpc.RpcError`, inside `typed_errors()`
            `AgentstreamError`.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.stub = AgentServiceStub(channel)

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
        sleep: Callable[[float], object] | None = None,
        on_reconnect: Callable[[AgentstreamError, float], object] | None = None,
    ) -> "EventStream":
        """The events of a session after `after`, across cut connections and server restarts.

        Args:
            session_id: The session.
            after: Sequence after which to begin; 0 for all events.
            follow: Go on with new events until the session ends; else stop at the newest.
            include_raw: Fill `Event.raw`.
            kinds: Only these kinds; none for all.
            expected_session_uid: The session's uid, where it is known already.
            backoff: When to try again after a cut, and when to give up.
            sleep: Waits so many seconds; for tests.
            on_reconnect: Told of each cut, with the error and the seconds until the next attempt.

        What can't be resumed is raised by the iteration as `AgentstreamError`, for example
        SessionDeleted, SessionReplaced, EventsCompacted, or Unavailable when giving up.
        """
        request = service_pb2.StreamEventsRequest(
            session_id=session_id,
            after_sequence=after,
            follow=follow,
            include_raw=include_raw,
            kinds=kinds,
            expected_session_uid=expected_session_uid,
        )
        cursor = Cursor(request, backoff or Backoff())
        return EventStream(self.stub, cursor, sleep=sleep, on_reconnect=on_reconnect)

    def create(self, config: session_pb2.SessionConfig, session_id: str = "") -> Session:
        """Create a session; an id, made up where none is given, lets the call be repeated.

        Raises `AgentstreamError`.
        """
        with typed_errors():
            made = self.stub.CreateSession(creation(config, session_id)).session
        return self.session(made.session_id)

    def session(self, session_id: str) -> Session:
        """Short calls for a session."""
        return Session(self, session_id)

    def close(self) -> None:
        """Close the connection; calls that run are cancelled."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventStream(Iterator[event_pb2.Event]):
    """A session's events, each once, in order; made by `Client.follow`.

    Reading is for one thread; `close` may be called from any.
    """

    def __init__(
        self,
        stub: AgentServiceStub,
        cursor: Cursor,
        *,
        sleep: Callable[[float], object] | None = None,
        on_reconnect: Callable[[AgentstreamError, float], object] | None = None,
    ) -> None:
        self._stub = stub
        self._cursor = cursor
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._on_reconnect = on_reconnect
        self._ready: deque[event_pb2.Event] = deque()
        self._call: EventCall | None = None
        self._over = False

    @property
    def last_sequence(self) -> int:
        """Sequence up to which events were handed out, or passed by the filter."""
        return self._ready[0].sequence - 1 if self._ready else self._cursor.sequence

    def open(self) -> session_pb2.Session:
        """Wait until the stream is open; returns the session as it then was.

        What the session does after that is in the stream, so it is the moment to send a message.
        """
        while self._cursor.session is None and not self._over:
            self._advance()
        return self._cursor.session or session_pb2.Session()

    def __next__(self) -> event_pb2.Event:
        while not self._ready:
            if self._over:
                raise StopIteration
            self._advance()
        return self._ready.popleft()

    def close(self) -> None:
        """End the stream: a reader that waits gets StopIteration."""
        self._closed.set()
        if (call := self._call) is not None:
            call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self) -> None:
        if self._closed.is_set():
            self._over = True
            return
        try:
            if self._call is None:
                self._call = self._dial()
            response = next(self._call, None)
            if response is not None:
                self._ready.extend(self._cursor.take(response))
                return
        except grpc.RpcError as error:
            failure = error_from(error)
        except AgentstreamError:
            self._over = True
            self.close()
            raise
        else:
            if self._cursor.finished():
                self._over = True
                return
            failure = self._cursor.cut()
        self._call = None
        if not self._closed.is_set():
            self._reconnect(failure)

    def _dial(self) -> "EventCall":
        try:
            return self._stub.StreamEvents(self._cursor.next_request())
        except ValueError:
            raise AgentstreamError(
                "the connection is closed", code=grpc.StatusCode.CANCELLED
            ) from None

    def _reconnect(self, failure: AgentstreamError) -> None:
        try:
            delay = self._cursor.failed(failure)
        except AgentstreamError:
            self._over = True
            raise
        if self._on_reconnect is not None:
            self._on_reconnect(failure, delay)
        self._sleep(delay)


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token to each call. Not call credentials: gRPC refuses those without TLS, and a
    daemon on loopback or behind a mesh's own encryption has none.
    """

    def __init__(self, token: str) -> None:
        self._metadata = token_metadata(token)

    def intercept_unary_unary(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return continuation(self._with_token(client_call_details), request)

    def _with_token(self, details: grpc.ClientCallDetails) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
