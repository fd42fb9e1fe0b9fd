"""Errors of a turn, as Codex says them, in the universal model. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd.adapters.codex.native import as_object, plain, text_in, whole_in

_BY_NAME = {
    "contextWindowExceeded": error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    "sessionBudgetExceeded": error_pb2.ERROR_CODE_BUDGET_EXCEEDED,
    "usageLimitExceeded": error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
    "rateLimitExceeded": error_pb2.ERROR_CODE_RATE_LIMITED,
    "responseTooManyFailedAttempts": error_pb2.ERROR_CODE_RATE_LIMITED,
    "flexUnavailable": error_pb2.ERROR_CODE_OVERLOADED,
    "serverOverloaded": error_pb2.ERROR_CODE_OVERLOADED,
    "policyCapacityUnavailable": error_pb2.ERROR_CODE_OVERLOADED,
    "modelNotFound": error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    "inferenceHookDenied": error_pb2.ERROR_CODE_REFUSED,
    "cyberPolicy": error_pb2.ERROR_CODE_REFUSED,
    "bioPolicy": error_pb2.ERROR_CODE_REFUSED,
    "misalignmentPolicyViolation": error_pb2.ERROR_CODE_REFUSED,
    "tooManyDenials": error_pb2.ERROR_CODE_TURN_LIMIT,
    "httpConnectionFailed": error_pb2.ERROR_CODE_NETWORK,
    "responseStreamConnectionFailed": error_pb2.ERROR_CODE_NETWORK,
    "responseStreamDisconnected": error_pb2.ERROR_CODE_NETWORK,
    "internalServerError": error_pb2.ERROR_CODE_PROVIDER_FAILED,
    "unauthorized": error_pb2.ERROR_CODE_AUTHENTICATION,
    "badRequest": error_pb2.ERROR_CODE_INVALID_REQUEST,
    "sandboxError": error_pb2.ERROR_CODE_AGENT_INTERNAL,
}
_BY_STATUS = {
    401: error_pb2.ERROR_CODE_AUTHENTICATION,
    403: error_pb2.ERROR_CODE_PERMISSION_DENIED,
    404: error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    408: error_pb2.ERROR_CODE_NETWORK,
    413: error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    429: error_pb2.ERROR_CODE_RATE_LIMITED,
    503: error_pb2.ERROR_CODE_OVERLOADED,
    529: error_pb2.ERROR_CODE_OVERLOADED,
}
# Codex calls these "other"; only the text says what they are.
_BY_TEXT = (
    (re.compile(r"stream disconnected|stream closed|idle timeout"), error_pb2.ERROR_CODE_NETWORK),
    (re.compile(r"invalid_request_error"), error_pb2.ERROR_CODE_INVALID_REQUEST),
    (re.compile(r"server_error"), error_pb2.ERROR_CODE_PROVIDER_FAILED),
    (re.compile(r"content_filter|safety|refus", re.IGNORECASE), error_pb2.ERROR_CODE_REFUSED),
    (re.compile(r"Missing environment variable"), error_pb2.ERROR_CODE_AUTHENTICATION),
    (re.compile(r"reason: max_output_tokens"), error_pb2.ERROR_CODE_TURN_LIMIT),
)
# Before it tries again, it calls whatever went wrong "responseStreamDisconnected".
_RATE_LIMIT = re.compile(r"rate limit exceeded|Rate limit reached")
_ATTEMPT = re.compile(r"\b(\d{1,6})/(\d{1,6})$")


def of_turn_error(said: Mapping[str, Any], *, will_retry: bool = False) -> error_pb2.Error:
    """The error in a `TurnError`."""
    message = text_in(said, "message")
    details = text_in(said, "additionalDetails")
    name, status = _info(said.get("codexErrorInfo"))
    error = error_pb2.Error(will_retry=will_retry, native_code=name)
    error.message = _sentence(message) or details or "Codex failed without saying why."
    if will_retry:
        if found := _ATTEMPT.search(message):
            error.attempt, error.max_attempts = int(found[1]), int(found[2])
        if details:
            error.message = f"{message} ({details})" if message else details
    if status is not None:
        error.http_status = status
    error.code = _classify(name, status, f"{message}\n{details}")
    return error


def _sentence(message: str) -> str:
    """What a message says: Codex hands on the body of some answers of the provider as it came."""
    if not message.startswith("{"):
        return message
    body = as_object(plain(message.encode()))
    return text_in(as_object(body.get("error")), "message") or message


def _info(info: object) -> tuple[str, int | None]:
    """Name and HTTP status of a `CodexErrorInfo`: a string, or an object of one member."""
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and info:
        name, more = next(iter(info.items()))
        status = whole_in(more, "httpStatusCode") if isinstance(more, dict) else None
        return str(name), status if status is not None and 100 <= status < 1000 else None
    return "", None


def _classify(name: str, status: int | None, text: str) -> error_pb2.ErrorCode.ValueType:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= 500:
        return error_pb2.ERROR_CODE_PROVIDER_FAILED
    if status is not None and 400 <= status < 500:
        return error_pb2.ERROR_CODE_INVALID_REQUEST
    if name == "responseStreamDisconnected" and _RATE_LIMIT.search(text):
        return error_pb2.ERROR_CODE_RATE_LIMITED
    if name in _BY_NAME:
        return _BY_NAME[name]
    for pattern, code in _BY_TEXT:
        if pattern.search(text):
            return code
    return error_pb2.ERROR_CODE_UNSPECIFIED
