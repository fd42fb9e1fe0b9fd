"""How errors of the model API, and of turns, are told."""

import pytest

from agentstream.v1 import error_pb2, event_pb2, item_pb2
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Kind
from tests.unit.adapters.claude.claude_lines import (
    assistant,
    completed,
    events,
    fed,
    feed,
    init,
    result,
    synthetic,
    system,
    the_item,
    the_turn_end,
    tool_use,
)


def test_trap_1_an_api_error_is_a_success_that_failed() -> None:
    text = "API Error: 400 messages.0: bad thing"

    drafts = feed(
        init(),
        synthetic(text, error="unknown", uuid="u1"),
        result(is_error=True, result=text, api_error_status=400),
    )

    (event,) = events(drafts, Kind.ERROR)
    end = the_turn_end(drafts)
    assert end.status == event_pb2.TURN_STATUS_FAILED
    assert end.error == event.error
    assert event.error.message == text
    assert event.error.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert event.error.http_status == 400
    assert not event.error.will_retry
    item = the_item(drafts, "system:u1")
    assert (item.kind, item.role) == (item_pb2.ITEM_KIND_SYSTEM, item_pb2.ITEM_ROLE_SYSTEM)
    assert [i.kind for i in completed(drafts)] == [item_pb2.ITEM_KIND_SYSTEM]


@pytest.mark.parametrize(
    ("name", "status", "text", "code"),
    [
        ("authentication_failed", None, "Not logged in", error_pb2.ERROR_CODE_AUTHENTICATION),
        ("authentication_failed", 401, "Invalid key", error_pb2.ERROR_CODE_AUTHENTICATION),
        ("authentication_failed", 403, "Forbidden", error_pb2.ERROR_CODE_PERMISSION_DENIED),
        ("billing_error", 400, "Credit balance", error_pb2.ERROR_CODE_QUOTA_EXCEEDED),
        ("rate_limit", 429, "Too many", error_pb2.ERROR_CODE_RATE_LIMITED),
        ("model_not_found", 404, "model", error_pb2.ERROR_CODE_MODEL_NOT_FOUND),
        ("server_error", None, "Repeated 529 Overloaded errors", error_pb2.ERROR_CODE_OVERLOADED),
        ("server_error", 500, "Internal", error_pb2.ERROR_CODE_PROVIDER_FAILED),
        ("server_error", None, "Unable to connect to API", error_pb2.ERROR_CODE_NETWORK),
        ("server_error", None, "Connection closed mid-response", error_pb2.ERROR_CODE_NETWORK),
        ("invalid_request", 413, "Too large", error_pb2.ERROR_CODE_INVALID_REQUEST),
        (
            "invalid_request",
            400,
            "Prompt is too long",
            error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
        ),
    ],
)
def test_api_errors_are_classified(
    name: str, status: int | None, text: str, code: error_pb2.ErrorCode.ValueType
) -> None:
    drafts = feed(
        synthetic(text, error=name), result(is_error=True, result=text, api_error_status=status)
    )

    assert the_turn_end(drafts).error.code == code
    assert the_turn_end(drafts).error.native_code == name


def test_a_refusal_is_classified() -> None:
    drafts = feed(
        system("model_refusal_no_fallback", message="refused"),
        synthetic("API Error: declined", error="invalid_request"),
        result(is_error=True, result="API Error: declined"),
    )

    assert the_turn_end(drafts).error.code == error_pb2.ERROR_CODE_REFUSED


def test_an_error_is_forgotten_with_its_turn() -> None:
    drafts = feed(
        synthetic("API Error", error="rate_limit"),
        result(is_error=True),
        init(),
        result(subtype="error_max_turns", is_error=True, errors=["Reached maximum (2)"]),
    )

    first, second = (event.turn_ended for event in events(drafts, Kind.TURN_ENDED))
    assert first.error.code == error_pb2.ERROR_CODE_RATE_LIMITED
    assert second.error.code == error_pb2.ERROR_CODE_TURN_LIMIT
    assert second.error.message == "Reached maximum (2)"


def test_trap_4_a_budget_ends_the_turn_and_leaves_the_call_open() -> None:
    drafts = feed(
        init(),
        assistant("m1", tool_use("t1")),
        result(
            subtype="error_max_budget_usd",
            is_error=True,
            terminal_reason=None,
            errors=["Reached maximum budget ($0.0015)"],
        ),
    )

    end = the_turn_end(drafts)
    assert end.error.code == error_pb2.ERROR_CODE_BUDGET_EXCEEDED
    assert "result:t1" not in [item.item_id for item in completed(drafts)]


def test_trap_10_diagnostics_are_not_for_people() -> None:
    failed = result(
        subtype="error_during_execution",
        is_error=True,
        terminal_reason=None,
        errors=["[ede_diagnostic] result_type=user", "It broke."],
    )

    assert the_turn_end(feed(failed)).error.message == "It broke."


def test_trap_13_a_retry_is_an_error_that_says_so() -> None:
    retry = system(
        "api_retry",
        attempt=2,
        max_retries=10,
        retry_delay_ms=1100.4,
        error_status=401,
        error="authentication_failed",
    )

    (event,) = events(feed(init(), retry), Kind.ERROR)

    error = event.error
    assert error.will_retry
    assert (error.attempt, error.max_attempts, error.http_status) == (2, 10, 401)
    assert error.retry_delay.ToMilliseconds() == 1100
    assert error.code == error_pb2.ERROR_CODE_AUTHENTICATION
    assert error.native_code == "authentication_failed"


def test_a_retry_without_status_had_no_answer() -> None:
    retry = system("api_retry", attempt=1, error_status=None, error="unknown")

    (event,) = events(feed(retry), Kind.ERROR)

    assert event.error.code == error_pb2.ERROR_CODE_NETWORK
    assert not event.error.HasField("http_status")


def test_an_api_error_of_a_sub_agent_does_not_fail_the_turn() -> None:
    drafts = feed(
        synthetic("API Error: 500", error="server_error", parent_tool_use_id="task"), result()
    )

    assert len(events(drafts, Kind.ERROR)) == 1
    assert the_turn_end(drafts).status == event_pb2.TURN_STATUS_COMPLETED
    assert completed(drafts)[0].parent_id == "call:task"


def test_an_api_error_is_said_even_if_no_result_follows() -> None:
    normalizer = ClaudeNormalizer()
    fed(normalizer, synthetic("Not logged in", error="authentication_failed"))

    (draft,) = normalizer.finish()

    assert draft.event.error.code == error_pb2.ERROR_CODE_AUTHENTICATION
    assert draft.raw


def test_a_session_that_cannot_be_resumed_is_classified() -> None:
    said = 'Provided value "x" is not a UUID and does not match any session title.'
    drafts = feed(result(subtype="error_during_execution", is_error=True, errors=[said]))

    assert the_turn_end(drafts).error.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
