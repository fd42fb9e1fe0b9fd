import re
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2

from agentstream.v1 import error_pb2
from agentstreamd.events import errors as events
from agentstreamd.service.errors import CallError, draining, expected, internal, invalid
from agentstreamd.sessions.errors import SessionError

PROTO = Path(__file__).parents[3] / "proto/agentstream/v1/error.proto"
REASONS = [value for value in error_pb2.ErrorReason.values() if value]


def codes_of_the_contract() -> dict[str, str]:
    """The status code that the comment of each reason begins with."""
    text = PROTO.read_text()
    found = {}
    for comment, name in re.findall(r"((?:  //.*\n)+)  (ERROR_REASON_\w+) = ", text):
        match = re.match(r"  // ([A-Z_]+)[:,]", comment)
        if match:
            found[name] = match[1]
    return found


@pytest.mark.parametrize("reason", REASONS, ids=error_pb2.ErrorReason.Name)
def test_every_reason_has_the_code_that_the_contract_says(
    reason: error_pb2.ErrorReason.ValueType,
) -> None:
    expected_code = codes_of_the_contract()[error_pb2.ErrorReason.Name(reason)]
    assert CallError(reason, "why").status_code.name == expected_code


@pytest.mark.parametrize("reason", REASONS, ids=error_pb2.ErrorReason.Name)
def test_every_session_error_becomes_one_error_info(
    reason: error_pb2.ErrorReason.ValueType,
) -> None:
    error = expected(SessionError(reason, "a sentence", {"key": "value"}, [("field", "is wrong")]))
    assert error is not None
    status = error.status()
    infos = [one for one in status.details if one.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    info = error_details_pb2.ErrorInfo()
    assert len(infos) == 1
    assert infos[0].Unpack(info)
    assert info.domain == "agentstream"
    assert f"ERROR_REASON_{info.reason}" == error_pb2.ErrorReason.Name(reason)
    assert dict(info.metadata) == {"key": "value"}
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    assert [(one.field, one.description) for one in bad.field_violations] == [("field", "is wrong")]
    assert status.message == "a sentence"


@pytest.mark.parametrize(
    ("error", "code", "reason", "metadata"),
    [
        (events.SessionNotFound("s"), "NOT_FOUND", "SESSION_NOT_FOUND", {"session_id": "s"}),
        (events.SessionDeleted("s"), "NOT_FOUND", "SESSION_DELETED", {"session_id": "s"}),
        (
            events.CursorCompacted(1, 5, 9),
            "OUT_OF_RANGE",
            "EVENTS_COMPACTED",
            {"earliest_sequence": "5", "latest_sequence": "9"},
        ),
        (
            events.CursorInFuture(10, 9),
            "OUT_OF_RANGE",
            "SEQUENCE_IN_FUTURE",
            {"latest_sequence": "9"},
        ),
        (events.InvalidPageCursor("x"), "INVALID_ARGUMENT", "INVALID_PAGE_TOKEN", {}),
        (events.BlobNotFound("s", "b"), "NOT_FOUND", "BLOB_NOT_FOUND", {"blob_id": "b"}),
        (events.BlobOffsetOutOfRange(9, 3), "OUT_OF_RANGE", "INVALID_FIELD", {}),
        (
            events.LogUnavailable(events.Reason.DISK_FULL, "/secret/path"),
            "UNAVAILABLE",
            "LOG_UNAVAILABLE",
            {"detail": "disk_full"},
        ),
        (
            events.LogUnavailable(events.Reason.CLOSED, "the log was closed"),
            "UNAVAILABLE",
            "SERVER_DRAINING",
            {},
        ),
    ],
)
def test_errors_of_the_log_have_their_reasons(
    error: Exception, code: str, reason: str, metadata: dict[str, str]
) -> None:
    found = expected(error)
    assert found is not None
    assert found.status_code.name == code
    assert found.reason_name == reason
    assert found.metadata == metadata


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), events.SequenceConflict("s", 1, 2)]
)
def test_what_nobody_foresaw_is_not_expected(error: Exception) -> None:
    assert expected(error) is None


def test_an_internal_error_says_the_request_id_and_nothing_else() -> None:
    status = internal("request-7").status()
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert dict(info.metadata) == {"request_id": "request-7"}
    assert status.code == grpc.StatusCode.INTERNAL.value[0]


def test_only_draining_says_when_to_come_back() -> None:
    retry = error_details_pb2.RetryInfo()
    assert draining().status().details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() > 0
    assert len(CallError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, "x").status().details) == 1


def test_a_status_fits_into_trailers_however_much_is_wrong() -> None:
    error = invalid([(f"parts[{number}]" * 100, "x" * 10_000) for number in range(1000)])
    assert len(error.status().SerializeToString()) * 4 / 3 < 8 * 1024
