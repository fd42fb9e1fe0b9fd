"""Exit codes, and how failures become one sentence that says what to do."""

from typing import Final

from agentstream.client import AgentstreamError, NotFound, StreamBroken, Unavailable

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
NOT_FOUND: Final = 5
INTERRUPTED: Final = 130

HELP: Final = """\
exit codes:
  0    done
  1    the turn failed, was rejected or timed out; a law of the stream is violated
  2    wrong usage: arguments, files, JSON
  3    no daemon was reached, or it is shutting down
  4    the daemon refused: the message says why
  5    no such session, agent, request or blob
  130  interrupted by Ctrl-C
"""

_HINTS: Final = {
    "SESSION_NOT_FOUND": "`agentstream sessions` lists them",
    "AGENT_NOT_FOUND": "`agentstream agents` lists them",
    "REQUEST_NOT_FOUND": "`agentstream sessions` shows which sessions wait for an answer",
    "TURN_IN_PROGRESS": "wait, or stop the turn with `agentstream interrupt`",
    "SESSION_ENDED": "its events can still be read with `agentstream events`",
    "UNAUTHENTICATED": "put the daemon's token into AGENTSTREAM_TOKEN",
    "EVENTS_COMPACTED": "begin at what is kept: --after {earliest_sequence} minus one",
    "SEQUENCE_IN_FUTURE": "the newest event is {latest_sequence}",
}


class CliError(Exception):
    """The command can't go on.

    Attributes:
        exit_code: What the program exits with.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> CliError:
    """What was asked for makes no sense."""
    return CliError(message, USAGE)


def cli_error(error: AgentstreamError, address: str) -> CliError:
    """The sentence and the exit code for a call to the daemon at `address` that failed."""
    if isinstance(error, Unavailable) and not error.reason:
        return CliError(f"No daemon at {address}: start one with `agentstreamd`.", UNREACHABLE)
    if error.reason == "SERVER_DRAINING":
        return CliError(f"The daemon at {address} is shutting down: try again.", UNREACHABLE)
    message = error.message or error.code.name
    if error.violations:
        message += ": " + "; ".join(f"{v.field}: {v.description}" for v in error.violations)
    message = message[:1].upper() + message[1:].rstrip(".")
    if hint := _hint(error):
        message += f" ({hint})"
    if isinstance(error, StreamBroken):
        return CliError(f"The daemon at {address} sent a broken stream: {message}.", FAILED)
    return CliError(message + ".", NOT_FOUND if isinstance(error, NotFound) else REFUSED)


def _hint(error: AgentstreamError) -> str:
    hint = _HINTS.get(error.reason, "")
    try:
        return hint.format_map(error.metadata)
    except KeyError:
        return ""
