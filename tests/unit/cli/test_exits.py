from collections.abc import Mapping

import grpc
import pytest

from agentstream.cli import exits
from agentstream.client import (
    AgentstreamError,
    EventsCompacted,
    FieldViolation,
    InvalidArgument,
    SessionNotFound,
    StreamBroken,
    Unavailable,
)

Code = grpc.StatusCode
ADDRESS = "127.0.0.1:50051"


def test_nobody_there() -> None:
    error = exits.cli_error(Unavailable("connection refused", code=Code.UNAVAILABLE), ADDRESS)
    assert error.exit_code == exits.UNREACHABLE
    assert str(error) == "No daemon at 127.0.0.1:50051: start one with `agentstreamd`."


@pytest.mark.parametrize(
    ("kind", "code", "reason", "metadata", "exit_code", "sentence"),
    [
        (
            SessionNotFound,
            Code.NOT_FOUND,
            "SESSION_NOT_FOUND",
            {},
            exits.NOT_FOUND,
            "It is said. (`agentstream sessions` lists them).",
        ),
        (Unavailable, Code.UNAVAILABLE, "LOG_UNAVAILABLE", {}, exits.REFUSED, "It is said."),
        (AgentstreamError, Code.INTERNAL, "INTERNAL", {}, exits.REFUSED, "It is said."),
        (
            EventsCompacted,
            Code.OUT_OF_RANGE,
            "EVENTS_COMPACTED",
            {"earliest_sequence": "7"},
            exits.REFUSED,
            "It is said. (begin at what is kept: --after 7 minus one).",
        ),
        (EventsCompacted, Code.OUT_OF_RANGE, "EVENTS_COMPACTED", {}, exits.REFUSED, "It is said."),
        (
            StreamBroken,
            Code.UNKNOWN,
            "",
            {},
            exits.FAILED,
            "The daemon at 127.0.0.1:50051 sent a broken stream: It is said.",
        ),
    ],
)
def test_a_refusal_is_the_daemons_sentence_and_a_hint(
    kind: type[AgentstreamError],
    code: grpc.StatusCode,
    reason: str,
    metadata: Mapping[str, str],
    exit_code: int,
    sentence: str,
) -> None:
    failure = kind("it is said.", code=code, reason=reason, metadata=metadata)
    error = exits.cli_error(failure, ADDRESS)
    assert (error.exit_code, str(error)) == (exit_code, sentence.replace("said. (", "said ("))


def test_the_fields_at_fault_are_named() -> None:
    violations = (FieldViolation("config.agent", "is required"),)
    failure = InvalidArgument("a field is wrong", code=Code.INVALID_ARGUMENT, violations=violations)
    assert str(exits.cli_error(failure, ADDRESS)) == "A field is wrong: config.agent: is required."
