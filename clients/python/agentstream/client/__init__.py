"""Client of the agentstream daemon: typed stubs, typed errors, a stream that survives cuts.

    with connect("127.0.0.1:50051") as client:
        session = client.create(SessionConfig(agent="claude", working_directory="/srv/project"))
        with session.follow() as events:
            session.send("What is in this directory?")
            for event in events:
                ...

`connect_aio` is the same for asyncio. Failed calls of a stub raise `grpc.RpcError`; inside
`with typed_errors():` they raise `AgentstreamError` instead, as `follow` always does.
"""

from agentstream.client.aio import AsyncClient, AsyncEventStream, connect_aio
from agentstream.client.channel import DEFAULT_ADDRESS
from agentstream.client.errors import (
    AgentstreamError,
    AlreadyExists,
    DeadlineExceeded,
    EventsCompacted,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    RequestAlreadyResolved,
    ResourceExhausted,
    SequenceInFuture,
    SessionDeleted,
    SessionEnded,
    SessionNotFound,
    SessionReplaced,
    StreamBroken,
    TurnInProgress,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    error_from,
    typed_errors,
)
from agentstream.client.resume import Backoff
from agentstream.client.session import Answer, AsyncSession, Session
from agentstream.client.sync import Client, EventStream, connect

__all__ = [
    "DEFAULT_ADDRESS",
    "AgentstreamError",
    "AlreadyExists",
    "Answer",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncSession",
    "Backoff",
    "Client",
    "DeadlineExceeded",
    "EventStream",
    "EventsCompacted",
    "FailedPrecondition",
    "FieldViolation",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "RequestAlreadyResolved",
    "ResourceExhausted",
    "SequenceInFuture",
    "Session",
    "SessionDeleted",
    "SessionEnded",
    "SessionNotFound",
    "SessionReplaced",
    "StreamBroken",
    "TurnInProgress",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "connect",
    "connect_aio",
    "error_from",
    "typed_errors",
]
