"""Failures of calls: what each reason of the contract is as a gRPC status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from agentstream.v1 import error_pb2
from agentstreamd.events import errors as events
from agentstreamd.sessions.errors import SessionError

DOMAIN = "agentstream"
Reason: TypeAlias = error_pb2.ErrorReason.ValueType

RETRY_DELAY_SECONDS = 1.0
"""When to come back to a server that drains: about the time a replacement takes to be there."""

# A status travels in trailers, of which clients take 8 KiB by default; binary ones grow by a third.
_MAX_MESSAGE_BYTES = 800
_MAX_VALUE_BYTES = 200
_MAX_VIOLATIONS = 8

_PREFIX = "ERROR_REASON_"
_CODES: Mapping[Reason, grpc.StatusCode] = {
    error_pb2.ERROR_REASON_INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN: grpc.StatusCode.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_SESSION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_SESSION_DELETED: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_SESSION_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_SESSION_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_SESSION_REPLACED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_AGENT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_AGENT_UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_CAPABILITY_NOT_SUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_TURN_IN_PROGRESS: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_TURN_NOT_RUNNING: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_MESSAGE_ID_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_REQUEST_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_ANSWER_NOT_DELIVERED: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_EVENTS_COMPACTED: grpc.StatusCode.OUT_OF_RANGE,
    error_pb2.ERROR_REASON_SEQUENCE_IN_FUTURE: grpc.StatusCode.OUT_OF_RANGE,
    error_pb2.ERROR_REASON_BLOB_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_SERVER_DRAINING: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_LOG_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    error_pb2.ERROR_REASON_SCOPE_MISSING: grpc.StatusCode.PERMISSION_DENIED,
    error_pb2.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    error_pb2.ERROR_REASON_NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    error_pb2.ERROR_REASON_AGENT_NOT_RESPONDING: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(eq=False)
class CallError(Exception):
    """A call fails with a reason of the contract.

    Attributes:
        reason: Why, for programs.
        message: One sentence for people.
        metadata: The dynamic parts that the contract names for the reason.
        violations: Fields at fault: path and what is wrong.
        code: The status code, where it is not the reason's usual one.
    """

    reason: Reason
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[tuple[str, str]] = ()
    code: grpc.StatusCode | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def status_code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return self.code or _CODES.get(self.reason, grpc.StatusCode.INTERNAL)

    @property
    def reason_name(self) -> str:
        """The reason as it stands in `ErrorInfo`."""
        return error_pb2.ErrorReason.Name(self.reason).removeprefix(_PREFIX)

    def status(self) -> status_pb2.Status:
        """The whole status, small enough for trailers."""
        details: list[message.Message] = [
            error_details_pb2.ErrorInfo(
                reason=self.reason_name,
                domain=DOMAIN,
                metadata={key: _cut(value) for key, value in self.metadata.items()},
            )
        ]
        if self.violations:
            details.append(
                error_details_pb2.BadRequest(
                    field_violations=[
                        error_details_pb2.BadRequest.FieldViolation(
                            field=_cut(path), description=_cut(text)
                        )
                        for path, text in self.violations[:_MAX_VIOLATIONS]
                    ]
                )
            )
        if self.reason == error_pb2.ERROR_REASON_SERVER_DRAINING:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(int(RETRY_DELAY_SECONDS * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(
            code=self.status_code.value[0], message=_cut(self.message, _MAX_MESSAGE_BYTES)
        )
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return status


def invalid(violations: Sequence[tuple[str, str]]) -> CallError:
    """A call with these fields at fault."""
    said = "; ".join(f"{path} {text}" for path, text in violations)
    return CallError(error_pb2.ERROR_REASON_INVALID_FIELD, said, violations=violations)


def draining() -> CallError:
    """A call to a server that is about to stop."""
    return CallError(
        error_pb2.ERROR_REASON_SERVER_DRAINING, "the server is draining: connect again"
    )


def limit_exceeded(limit: str, value: int) -> CallError:
    """A call beyond a documented limit."""
    return CallError(
        error_pb2.ERROR_REASON_LIMIT_EXCEEDED,
        f"the limit {limit} of {value} is reached",
        metadata={"limit": limit, "value": str(value)},
    )


def internal(request_id: str) -> CallError:
    """A call that ran into a fault of the server. Says nothing of it: the log does."""
    return CallError(
        error_pb2.ERROR_REASON_INTERNAL,
        f"internal error; the server's log says more under request id {request_id}",
        metadata={"request_id": request_id},
    )


def expected(error: BaseException) -> CallError | None:
    """What an exception of the layers below is to a caller; None for one nobody foresaw."""
    match error:
        case CallError():
            return error
        case SessionError():
            return CallError(
                error.reason, str(error), metadata=error.metadata, violations=error.violations
            )
        case events.SessionDeleted():
            return CallError(
                error_pb2.ERROR_REASON_SESSION_DELETED,
                f"session {error.session_id} was deleted",
                metadata={"session_id": error.session_id},
            )
        case events.SessionNotFound():
            return CallError(
                error_pb2.ERROR_REASON_SESSION_NOT_FOUND,
                f"there is no session {error.session_id}",
                metadata={"session_id": error.session_id},
            )
        case events.CursorCompacted():
            return CallError(
                error_pb2.ERROR_REASON_EVENTS_COMPACTED,
                f"events after {error.after_sequence} are no longer kept: "
                f"the earliest is {error.earliest}",
                metadata={
                    "earliest_sequence": str(error.earliest),
                    "latest_sequence": str(error.latest),
                },
            )
        case events.CursorInFuture():
            return CallError(
                error_pb2.ERROR_REASON_SEQUENCE_IN_FUTURE,
                f"after_sequence {error.after_sequence} is beyond the newest event {error.latest}",
                metadata={"latest_sequence": str(error.latest)},
            )
        case events.InvalidPageCursor():
            return CallError(
                error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN,
                "page_token was not made by this server for this call",
                violations=[("page_token", "is not a token of this call")],
            )
        case events.BlobNotFound():
            return CallError(
                error_pb2.ERROR_REASON_BLOB_NOT_FOUND,
                f"session {error.session_id} has no blob {error.blob_id}",
                metadata={"blob_id": error.blob_id},
            )
        case events.BlobOffsetOutOfRange():
            return CallError(
                error_pb2.ERROR_REASON_INVALID_FIELD,
                f"offset_bytes is beyond the blob's {error.size} bytes",
                violations=[("offset_bytes", f"is beyond the blob's {error.size} bytes")],
                code=grpc.StatusCode.OUT_OF_RANGE,
            )
        case events.LogUnavailable(reason=events.Reason.CLOSED):
            return draining()
        case events.LogUnavailable():
            return CallError(
                error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
                f"the event log cannot be used now: {error.reason.value}",
                metadata={"detail": error.reason.value},
            )
    return None


def _cut(text: str, limit: int = _MAX_VALUE_BYTES) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"
