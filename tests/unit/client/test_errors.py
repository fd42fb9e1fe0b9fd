import grpc
import pytest

from agentstream.client import (
    AgentstreamError,
    Backoff,
    FieldViolation,
    InvalidArgument,
    NotFound,
    SessionNotFound,
    Unavailable,
    error_from,
    typed_errors,
)
from tests.unit.client.stream_responses import status_details


def failure(
    code: grpc.StatusCode, message: str, trailing: tuple[tuple[str, bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), message)


def test_reason_metadata_violations_and_delay_are_read_from_the_details() -> None:
    code = grpc.StatusCode.INVALID_ARGUMENT
    details = status_details(
        code,
        "two fields are wrong",
        "INVALID_FIELD",
        {"k": "v"},
        {"config.agent": "is required", "config.labels": "too many"},
        1.5,
    )
    error = error_from(failure(code, "two fields are wrong", details))
    assert type(error) is InvalidArgument
    assert (error.code, error.reason, error.metadata) == (code, "INVALID_FIELD", {"k": "v"})
    assert error.violations == (
        FieldViolation("config.agent", "is required"),
        FieldViolation("config.labels", "too many"),
    )
    assert error.retry_delay == 1.5
    assert str(error) == "two fields are wrong (INVALID_ARGUMENT INVALID_FIELD)"


def test_the_reason_makes_the_class_finer_and_still_one_of_its_code() -> None:
    code = grpc.StatusCode.NOT_FOUND
    error = error_from(failure(code, "no", status_details(code, "no", "SESSION_NOT_FOUND")))
    assert type(error) is SessionNotFound
    assert isinstance(error, NotFound)


def test_a_failure_without_details_has_a_code_and_no_reason() -> None:
    error = error_from(failure(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert type(error) is Unavailable
    assert (error.reason, error.metadata, error.retry_delay) == ("", {}, None)


def test_details_that_cannot_be_read_do_not_hide_the_error() -> None:
    broken = (("grpc-status-details-bin", b"\xff\xff"),)
    assert type(error_from(failure(grpc.StatusCode.NOT_FOUND, "no", broken))) is NotFound


def test_a_code_without_a_class_is_the_base() -> None:
    assert type(error_from(failure(grpc.StatusCode.DATA_LOSS, "gone"))) is AgentstreamError


def test_stub_errors_are_translated_inside_typed_errors() -> None:
    with pytest.raises(Unavailable), typed_errors():
        raise failure(grpc.StatusCode.UNAVAILABLE, "no")


def test_the_wait_is_bounded_unless_the_server_asks_for_more() -> None:
    backoff = Backoff(initial=1.0, multiplier=2.0, maximum=3.0, jitter=0.5)
    assert [backoff.delay(n, None, 0.5) for n in (1, 2, 3, 9)] == [1.0, 2.0, 3.0, 3.0]
    assert backoff.delay(1, None, 0.0) == 0.5
    assert backoff.delay(1, 30.0, 0.5) == 30.0
