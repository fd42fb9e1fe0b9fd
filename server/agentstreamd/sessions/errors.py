"""What can be wrong with a call on sessions: one error type with the contract's stable reasons."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from agentstream.v1 import error_pb2
from agentstreamd.events.errors import LogUnavailable, SessionNotFound


class SessionError(Exception):
    """A call was refused. `str(error)` is a sentence for people.

    Attributes:
        reason: Why, as the contract names it.
        metadata: The dynamic parts of the sentence, by the names the contract gives them.
        violations: Fields at fault, with a description each.
    """

    def __init__(
        self,
        reason: error_pb2.ErrorReason.ValueType,
        message: str,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Refuse for `reason`."""
        super().__init__(message)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = list(violations)


def invalid(*violations: tuple[str, str]) -> SessionError:
    """One or more fields are wrong: pairs of field path and description."""
    sentence = "; ".join(f"{field}: {description}" for field, description in violations)
    return SessionError(error_pb2.ERROR_REASON_INVALID_FIELD, sentence, {}, violations)


def session_not_found(session_id: str) -> SessionError:
    """There is no such session."""
    return SessionError(
        error_pb2.ERROR_REASON_SESSION_NOT_FOUND,
        f"there is no session {session_id!r}",
        {"session_id": session_id},
    )


def session_deleted(session_id: str) -> SessionError:
    """The session was deleted while the call ran."""
    return SessionError(
        error_pb2.ERROR_REASON_SESSION_DELETED,
        f"session {session_id!r} was deleted",
        {"session_id": session_id},
    )


def session_ended(session_id: str) -> SessionError:
    """The session has ended."""
    return SessionError(
        error_pb2.ERROR_REASON_SESSION_ENDED,
        f"session {session_id!r} has ended",
        {"session_id": session_id},
    )


def draining() -> SessionError:
    """The daemon is about to stop."""
    return SessionError(
        error_pb2.ERROR_REASON_SERVER_DRAINING, "the server is draining: connect again in a moment"
    )


def log_unavailable(detail: str) -> SessionError:
    """The event log can't be written or read."""
    return SessionError(
        error_pb2.ERROR_REASON_LOG_UNAVAILABLE,
        f"the event log can't be used right now: {detail}",
        {"detail": detail},
    )


def limit_exceeded(limit: str, value: int) -> SessionError:
    """A documented limit was reached."""
    return SessionError(
        error_pb2.ERROR_REASON_LIMIT_EXCEEDED,
        f"the limit {limit} of {value} is reached",
        {"limit": limit, "value": str(value)},
    )


def not_supported(agent: str, capability: str, message: str) -> SessionError:
    """The agent can't do it."""
    return SessionError(
        error_pb2.ERROR_REASON_CAPABILITY_NOT_SUPPORTED,
        message,
        {"agent": agent, "capability": capability},
    )


def agent_unavailable(agent: str, detail: str) -> SessionError:
    """The agent is not installed or not usable."""
    return SessionError(
        error_pb2.ERROR_REASON_AGENT_UNAVAILABLE,
        f"agent {agent!r} can't be used: {detail}",
        {"agent": agent, "detail": detail},
    )


def agent_not_responding(agent: str, detail: str) -> SessionError:
    """The agent did not take what was asked."""
    return SessionError(
        error_pb2.ERROR_REASON_AGENT_NOT_RESPONDING,
        f"agent {agent!r} did not do what was asked: {detail}",
        {"agent": agent, "detail": detail},
    )


@contextmanager
def log_errors(session_id: str = "") -> Iterator[None]:
    """Turns what the event log raises into what a caller gets."""
    try:
        yield
    except SessionNotFound as error:
        raise session_not_found(session_id or error.session_id) from error
    except LogUnavailable as error:
        raise log_unavailable(error.detail) from error
