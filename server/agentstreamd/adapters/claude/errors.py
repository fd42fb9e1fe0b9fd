"""Errors of the model API and of turns, classified."""

from collections.abc import Mapping
from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd.model import Draft, Kind, event

_BY_NAME = {
    "authentication_failed": error_pb2.ERROR_CODE_AUTHENTICATION,
    "oauth_org_not_allowed": error_pb2.ERROR_CODE_PERMISSION_DENIED,
    "billing_error": error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
    "rate_limit": error_pb2.ERROR_CODE_RATE_LIMITED,
    "overloaded": error_pb2.ERROR_CODE_OVERLOADED,
    "model_not_found": error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    "max_output_tokens": error_pb2.ERROR_CODE_TURN_LIMIT,
}
_BY_STATUS = {
    401: error_pb2.ERROR_CODE_AUTHENTICATION,
    402: error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
    403: error_pb2.ERROR_CODE_PERMISSION_DENIED,
    429: error_pb2.ERROR_CODE_RATE_LIMITED,
    529: error_pb2.ERROR_CODE_OVERLOADED,
}
_BY_SUBTYPE = {
    "error_max_turns": error_pb2.ERROR_CODE_TURN_LIMIT,
    "error_max_structured_output_retries": error_pb2.ERROR_CODE_TURN_LIMIT,
    "error_max_budget_usd": error_pb2.ERROR_CODE_BUDGET_EXCEEDED,
}
_BY_TERMINAL_REASON = {
    "prompt_too_long": error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    "image_error": error_pb2.ERROR_CODE_INVALID_REQUEST,
    "max_turns": error_pb2.ERROR_CODE_TURN_LIMIT,
    "budget_exhausted": error_pb2.ERROR_CODE_BUDGET_EXCEEDED,
}
# What the CLI names no better than server_error, unknown or invalid_request.
_BY_TEXT = (
    ("overloaded", error_pb2.ERROR_CODE_OVERLOADED),
    ("prompt is too long", error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED),
    ("unable to connect", error_pb2.ERROR_CODE_NETWORK),
    ("connection", error_pb2.ERROR_CODE_NETWORK),
    ("timed out", error_pb2.ERROR_CODE_NETWORK),
    ("usage policy", error_pb2.ERROR_CODE_REFUSED),
    ("no conversation found", error_pb2.ERROR_CODE_SESSION_NOT_FOUND),
    ("does not match any session", error_pb2.ERROR_CODE_SESSION_NOT_FOUND),
)
_NOISE = "[ede_diagnostic]"


def classify(
    name: str, status: int | None, text: str, *, refused: bool = False, terminal_reason: str = ""
) -> error_pb2.ErrorCode.ValueType:
    """The code of an error that the CLI calls `name` and says `text` of."""
    if refused:
        return error_pb2.ERROR_CODE_REFUSED
    if status == 403:  # the CLI calls it authentication_failed
        return error_pb2.ERROR_CODE_PERMISSION_DENIED
    if terminal_reason in _BY_TERMINAL_REASON:
        return _BY_TERMINAL_REASON[terminal_reason]
    if name in _BY_NAME:
        return _BY_NAME[name]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    lowered = text.lower()
    for words, code in _BY_TEXT:
        if words in lowered:
            return code
    if name == "server_error" or (status is not None and status >= 500):
        return error_pb2.ERROR_CODE_PROVIDER_FAILED
    if name == "invalid_request" or (status is not None and 400 <= status < 500):
        return error_pb2.ERROR_CODE_INVALID_REQUEST
    return error_pb2.ERROR_CODE_UNSPECIFIED


def retry(line: Mapping[str, Any], raw: tuple[bytes, ...]) -> Draft:
    """`error` for an `api_retry` line: the CLI tries again by itself."""
    made = event()
    error = made.error
    name, status = text_in(line, "error"), whole_in(line, "error_status")
    attempt, most = whole_in(line, "attempt"), whole_in(line, "max_retries")
    delay = line.get("retry_delay_ms")
    error.will_retry = True
    error.native_code = name
    error.code = classify(name, status, "")
    if status is not None:
        error.http_status = status
    elif error.code == error_pb2.ERROR_CODE_UNSPECIFIED:
        # Without a status there was no answer at all.
        error.code = error_pb2.ERROR_CODE_NETWORK
    if attempt is not None:
        error.attempt = attempt
    if most is not None:
        error.max_attempts = most
    if isinstance(delay, int | float) and 0 <= delay < 1e12:
        error.retry_delay.FromMilliseconds(round(delay))
    what = f"HTTP {status}" if status is not None else "no answer"
    known = f" ({name})" if name not in ("", "unknown") else ""
    error.message = f"The model's API failed: {what}{known}."
    return Draft(Kind.ERROR, made, raw)


def of_result(
    result: Mapping[str, Any], api_error: tuple[str, str] | None, *, refused: bool
) -> error_pb2.Error:
    """The error of a turn that failed; `api_error` is the name and text of the last API error."""
    name, text = api_error or ("", "")
    texts = result.get("errors")
    said = [t for t in texts if isinstance(t, str)] if isinstance(texts, list) else []
    said = [t for t in said if not t.startswith(_NOISE)]
    text = text or text_in(result, "result") or "\n".join(said)
    subtype = text_in(result, "subtype")
    status = whole_in(result, "api_error_status")
    error = error_pb2.Error(native_code=name or subtype.replace("success", ""))
    error.message = text or "The agent failed without saying why."
    code = classify(
        name, status, text, refused=refused, terminal_reason=text_in(result, "terminal_reason")
    )
    error.code = _BY_SUBTYPE.get(subtype, code)
    if error.code == error_pb2.ERROR_CODE_UNSPECIFIED and subtype == "error_during_execution":
        error.code = error_pb2.ERROR_CODE_AGENT_INTERNAL
    if status is not None:
        error.http_status = status
    return error


def text_in(line: Mapping[str, Any], name: str) -> str:
    """A member that is a string, else ""."""
    value = line.get(name)
    return value if isinstance(value, str) else ""


def whole_in(line: Mapping[str, Any], name: str) -> int | None:
    """A member that is a whole number of 32 bits, else None."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 31:
        return None
    return value
