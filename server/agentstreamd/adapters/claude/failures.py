"""Why a process of Claude Code did not start or did not go on, read from what it left behind. Pure.

The CLI says on standard error what it will not do, as one line of prose, and exits with 1. What it
says when a turn fails (no login, say) is in its messages, and the normalizer's to read.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from agentstream.v1 import error_pb2


class Reason(Enum):
    """What the driver may do something about; everything else is OTHER."""

    SESSION_EXISTS = auto()
    """The id of the new session is one of a session that exists."""
    SESSION_NOT_FOUND = auto()
    """The session to resume does not exist, here or in this working directory."""
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure, classified; `message` is a sentence for people."""

    reason: Reason
    code: error_pb2.ErrorCode.ValueType
    message: str


_SESSION_EXISTS = re.compile(r"Session ID \S+ is already in use")
_SESSION_NOT_FOUND = re.compile(r"No conversation found with session ID:? ?(\S*)")
_NOT_LOGGED_IN = re.compile(
    r"not logged in|please run /login|invalid api key|authentication[_ ](failed|error)"
    r"|oauth token (has )?(expired|been revoked)",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(r"^\s*(?:error|fatal)\b", re.IGNORECASE)
_MAX_QUOTED = 500


def start_failure(how: str, stderr: str) -> Failure:
    """A process that ended before it was ready; `how` says it in words: "exit code 1"."""
    said = _quote(stderr)
    if _SESSION_EXISTS.search(stderr):
        return Failure(
            Reason.SESSION_EXISTS,
            error_pb2.ERROR_CODE_AGENT_START_FAILED,
            f"Claude Code already has a session of this id: {said}",
        )
    if found := _SESSION_NOT_FOUND.search(stderr):
        return Failure(
            Reason.SESSION_NOT_FOUND,
            error_pb2.ERROR_CODE_SESSION_NOT_FOUND,
            f"Claude Code has no session {found[1]} in this working directory, so it can't be "
            "resumed.",
        )
    if _NOT_LOGGED_IN.search(stderr):
        return Failure(
            Reason.OTHER,
            error_pb2.ERROR_CODE_AUTHENTICATION,
            f"Claude Code is not logged in: {said}",
        )
    ended = f"Claude Code ended with {how} before it was ready"
    return Failure(
        Reason.OTHER,
        error_pb2.ERROR_CODE_AGENT_START_FAILED,
        f"{ended}: {said}" if said else f"{ended}, and did not say why.",
    )


def exit_failure(how: str, stderr: str) -> Failure:
    """A process that was ready and ended unasked."""
    said = _quote(stderr)
    code = error_pb2.ERROR_CODE_AGENT_EXITED
    if _NOT_LOGGED_IN.search(stderr):
        code = error_pb2.ERROR_CODE_AUTHENTICATION
    message = f"Claude Code ended unexpectedly with {how}"
    return Failure(Reason.OTHER, code, f"{message}: {said}" if said else f"{message}.")


def _quote(stderr: str) -> str:
    """The line that says what is wrong: the last that begins with "error", else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return ""
    errors = [index for index, line in enumerate(lines) if _ERROR_LINE.match(line)]
    # What is wrong may go on in the lines after ("Error: Invalid configuration:\n...").
    chosen = " ".join(lines[errors[-1] :]) if errors else lines[-1]
    return chosen if len(chosen) <= _MAX_QUOTED else chosen[: _MAX_QUOTED - 1] + "…"


# The type of a line may stand at its end, where the beginning does not show it.
_ENDS_TURN = re.compile(rb'"type" ?: ?"result"|"(duration_api_ms|total_cost_usd)" ?:')
_REQUEST_ID = re.compile(rb'"request_id" ?: ?"([^"\\]{1,200})"')
_ASKS = re.compile(rb'"type" ?: ?"control_request"')


def asks_in(head: bytes) -> str:
    """The id of the control request that a line too long to read begins with; else empty."""
    found = _REQUEST_ID.search(head)
    return found[1].decode("utf-8", "replace") if found and _ASKS.search(head) else ""


def ends_turn(head: bytes) -> bool:
    """Whether a line too long to read is the end of a turn, by its beginning.

    An assistant's line may contain the like unescaped only in arguments of a tool; to take such one
    for an end costs a process, to miss an end a turn that never ends.
    """
    return _ENDS_TURN.search(head) is not None
