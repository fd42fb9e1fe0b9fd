"""Why an Amp process did not start or did not go on, read from what it left behind. Pure."""

import re
from dataclasses import dataclass

from agentstream.v1 import error_pb2


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure, classified; `message` is a sentence for people."""

    code: error_pb2.ErrorCode.ValueType
    message: str


NO_KEY = Failure(
    error_pb2.ERROR_CODE_AUTHENTICATION,
    "Amp has no API key: set AMP_API_KEY for the session or the daemon, or run `amp login` as the "
    "daemon's user.",
)

_KNOWN = (
    (
        re.compile(r"Invalid or missing API key|auth-required|\bUnauthorized\b"),
        error_pb2.ERROR_CODE_AUTHENTICATION,
        "The Amp server refuses the API key",
    ),
    (
        re.compile(r"Couldn't connect to the Amp server"),
        error_pb2.ERROR_CODE_NETWORK,
        "Amp can't reach its server",
    ),
    (
        re.compile(r"Thread \S+ does not exist|Invalid thread ID"),
        error_pb2.ERROR_CODE_SESSION_NOT_FOUND,
        "Amp does not have the thread that was to be continued",
    ),
    (
        re.compile(r"argument '[^']*' is invalid|unknown option|Invalid (visibility|mode)"),
        error_pb2.ERROR_CODE_INVALID_REQUEST,
        "Amp does not take a setting of the session",
    ),
)
_ERROR_LINE = re.compile(r"^\s*(error|fatal)\b", re.IGNORECASE)
_MAX_QUOTED = 500


def start_failure(how: str, stdout: str, stderr: str) -> Failure:
    """A process that ended, or was ended, before its first message; `how` says it in words."""
    if "No API key found" in stdout:
        return NO_KEY
    said = _quote(stderr) or _quote(stdout)
    for pattern, code, what in _KNOWN:
        if pattern.search(stderr) or pattern.search(stdout):
            return Failure(code, f"{what}: {said}")
    ended = f"Amp ended with {how} before it said anything"
    why = said or "it did not say why (an older one does not, for a wrong API key or no network)"
    return Failure(error_pb2.ERROR_CODE_AGENT_START_FAILED, f"{ended}: {why}")


def exit_failure(how: str, stderr: str) -> Failure:
    """A process that had begun to work and ended unasked."""
    said = _quote(stderr)
    message = f"Amp ended unexpectedly with {how}"
    return Failure(
        error_pb2.ERROR_CODE_AGENT_EXITED, f"{message}: {said}" if said else f"{message}."
    )


def _quote(text: str) -> str:
    """The line that says what is wrong: the first that begins with "error", else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = next(filter(_ERROR_LINE.match, lines), lines[-1] if lines else "")
    return chosen if len(chosen) <= _MAX_QUOTED else chosen[: _MAX_QUOTED - 1] + "…"
