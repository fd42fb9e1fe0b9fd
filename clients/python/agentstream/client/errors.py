"""What a failed call says, as exceptions: one class per status code, finer ones where it pays.

All of them are `AgentstreamError`, which has the stable reason, its metadata, the fields at fault
and the delay the server asks for, read from the call's `google.rpc.Status`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN: Final = "agentstream"
_STATUS_KEY: Final = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of the request that is at fault.

    Attributes:
        field: Path of the field.
        description: What is wrong with it, for people.
    """

    field: str
    description: str


class AgentstreamError(Exception):
    """A call failed.

    Attributes:
        code: Status code of the call.
        reason: Name of `ErrorReason` without its prefix; empty when the server gave none (it was
            not reached, or something between answered for it).
        message: A sentence for people.
        metadata: The dynamic parts of the reason, see `ErrorReason`.
        violations: The fields at fault.
        retry_delay: Seconds after which the server asks to try again; None when it does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = violations
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        name = f"{self.code.name} {self.reason}".rstrip()
        return f"{self.message} ({name})" if self.message else name


class Unavailable(AgentstreamError):
    """The server was not reached, is draining or can't do it now; trying again may work."""


class NotFound(AgentstreamError):
    """There is no such thing."""


class AlreadyExists(AgentstreamError):
    """The id is taken by something else."""


class InvalidArgument(AgentstreamError):
    """Fields of the request are wrong, see `violations`."""


class FailedPrecondition(AgentstreamError):
    """Not in this state of the session or agent."""


class OutOfRange(AgentstreamError):
    """The position is outside of what there is."""


class ResourceExhausted(AgentstreamError):
    """A limit was reached, which `metadata` names: have less at once. Not worth a retry at once."""


class Unauthenticated(AgentstreamError):
    """No or wrong credentials."""


class PermissionDenied(AgentstreamError):
    """The credentials do not allow this."""


class Internal(AgentstreamError):
    """A fault of the server, or of a proxy before it."""


class Unimplemented(AgentstreamError):
    """The server does not have this call."""


class DeadlineExceeded(AgentstreamError):
    """The call's deadline passed first."""


class SessionNotFound(NotFound):
    """There is no such session."""


class SessionDeleted(NotFound):
    """The session was deleted while the call ran."""


class SessionEnded(FailedPrecondition):
    """The session has ended."""


class SessionReplaced(FailedPrecondition):
    """The session was deleted and another one with the same id made."""


class TurnInProgress(FailedPrecondition):
    """A turn is running."""


class RequestAlreadyResolved(FailedPrecondition):
    """The request was resolved otherwise."""


class SequenceInFuture(OutOfRange):
    """The cursor is ahead of the log: it is from another session, or events were lost."""


class EventsCompacted(OutOfRange):
    """Retention has removed events after the cursor: there is a gap that can't be read any more."""

    @property
    def earliest_sequence(self) -> int:
        """Sequence of the earliest event that is kept; 0 when the server did not say."""
        return int(self.metadata.get("earliest_sequence") or 0)

    @property
    def latest_sequence(self) -> int:
        """Sequence of the newest event; 0 when the server did not say."""
        return int(self.metadata.get("latest_sequence") or 0)


class StreamBroken(AgentstreamError):
    """The server sent a stream that is none: an event is missing, or it does not begin as it
    should.
    """


_BY_REASON: Final[Mapping[str, type[AgentstreamError]]] = {
    "SESSION_NOT_FOUND": SessionNotFound,
    "SESSION_DELETED": SessionDeleted,
    "SESSION_ENDED": SessionEnded,
    "SESSION_REPLACED": SessionReplaced,
    "TURN_IN_PROGRESS": TurnInProgress,
    "REQUEST_ALREADY_RESOLVED": RequestAlreadyResolved,
    "EVENTS_COMPACTED": EventsCompacted,
    "SEQUENCE_IN_FUTURE": SequenceInFuture,
}
_BY_CODE: Final[Mapping[grpc.StatusCode, type[AgentstreamError]]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def error_from(error: grpc.RpcError) -> AgentstreamError:
    """The `AgentstreamError` that says what `error`, raised by a sync or async stub, says."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return AgentstreamError(str(error))
    code = error.code()
    message = error.details() or ""
    try:
        info, violations, delay = _details(_status(error))
    except DecodeError:
        info, violations, delay = error_details_pb2.ErrorInfo(), (), None
    reason = info.reason if info.domain == DOMAIN else ""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, AgentstreamError)
    return kind(
        message,
        code=code,
        reason=reason,
        metadata=info.metadata if reason else None,
        violations=violations,
        retry_delay=delay,
    )


@contextmanager
def typed_errors() -> Iterator[None]:
    """Inside, what a stub's call raises is an `AgentstreamError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from(error) from error


def _status(error: grpc.Call | grpc.aio.AioRpcError) -> status_pb2.Status:
    # Not grpc_status.rpc_status.from_call: it raises when the message and the status differ, which
    # proxies bring about, and an error must never be replaced by an error about it.
    # Typed as never None, which it is when the server sent none.
    trailing = cast(Iterable[tuple[str, str | bytes]] | None, error.trailing_metadata())
    for key, value in trailing or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _details(
    status: status_pb2.Status,
) -> tuple[error_details_pb2.ErrorInfo, tuple[FieldViolation, ...], float | None]:
    info = error_details_pb2.ErrorInfo()
    violations: list[FieldViolation] = []
    delay: float | None = None
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            violations += [FieldViolation(v.field, v.description) for v in bad.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            delay = retry.retry_delay.ToTimedelta().total_seconds()
    return info, tuple(violations), delay
