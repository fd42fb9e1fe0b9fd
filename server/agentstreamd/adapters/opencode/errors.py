"""Errors of OpenCode and of the model's provider, classified."""

from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd.adapters.opencode.native import JsonObject, dict_in, dump, int_in, text_in
from agentstreamd.model import Draft, Kind, event

ABORTED = "MessageAbortedError"
"""The native error of a turn that somebody stopped."""

_BY_NAME = {
    "ProviderAuthError": error_pb2.ERROR_CODE_AUTHENTICATION,
    "ContextOverflowError": error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    "MessageOutputLengthError": error_pb2.ERROR_CODE_TURN_LIMIT,
    "ContentFilterError": error_pb2.ERROR_CODE_REFUSED,
    "StructuredOutputError": error_pb2.ERROR_CODE_PROVIDER_FAILED,
    "ProviderModelNotFoundError": error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    "ConfigInvalidError": error_pb2.ERROR_CODE_AGENT_START_FAILED,
    "NotFoundError": error_pb2.ERROR_CODE_SESSION_NOT_FOUND,
}
_BY_STATUS = {
    400: error_pb2.ERROR_CODE_INVALID_REQUEST,
    401: error_pb2.ERROR_CODE_AUTHENTICATION,
    402: error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
    403: error_pb2.ERROR_CODE_PERMISSION_DENIED,
    404: error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    413: error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    422: error_pb2.ERROR_CODE_INVALID_REQUEST,
    429: error_pb2.ERROR_CODE_RATE_LIMITED,
    529: error_pb2.ERROR_CODE_OVERLOADED,
}
# Providers say both with status 429, and only one of them passes.
_USED_UP = ("exceeded your current quota", "insufficient_quota", "credit balance", "out of credits")
_BY_TEXT = (
    *((words, error_pb2.ERROR_CODE_QUOTA_EXCEEDED) for words in _USED_UP),
    ("model not found", error_pb2.ERROR_CODE_MODEL_NOT_FOUND),
    ("agent not found", error_pb2.ERROR_CODE_INVALID_REQUEST),
    ("cannot connect", error_pb2.ERROR_CODE_NETWORK),
    ("unable to connect", error_pb2.ERROR_CODE_NETWORK),
    ("connection", error_pb2.ERROR_CODE_NETWORK),
    ("timed out", error_pb2.ERROR_CODE_NETWORK),
    ("overloaded", error_pb2.ERROR_CODE_OVERLOADED),
    ("too many requests", error_pb2.ERROR_CODE_RATE_LIMITED),
    ("rate limit", error_pb2.ERROR_CODE_RATE_LIMITED),
)
_STACK = "\n    at "


def error_of(native: JsonObject) -> error_pb2.Error:
    """A native error (`{name, data}`, or the `_tag` shape of newer endpoints) as an error."""
    name = text_in(native, "name") or text_in(native, "_tag")
    data = dict_in(native, "data")
    message = text_in(data, "message") or text_in(native, "message")
    if not message:  # an invalid configuration says what and where in other fields
        message = f"{name or 'unknown error'} {dump(data)[:1000] if data else ''}".strip()
    message = message.split(_STACK)[0]
    status = int_in(data, "statusCode")
    error = error_pb2.Error(message=message, native_code=name)
    error.code = classify(name, status, message)
    if status is not None:
        error.http_status = status
    return error


def classify(name: str, status: int | None, message: str) -> error_pb2.ErrorCode.ValueType:
    """The code of an error called `name`, of this HTTP status of the provider, that says this."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    said = message.lower()
    if status is not None:
        if status in (400, 429) and any(words in said for words in _USED_UP):
            return error_pb2.ERROR_CODE_QUOTA_EXCEEDED
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        if status >= 500:
            return error_pb2.ERROR_CODE_PROVIDER_FAILED
    for part, code in _BY_TEXT:
        if part in said:
            return code
    if name == "APIError":
        return error_pb2.ERROR_CODE_PROVIDER_FAILED
    return error_pb2.ERROR_CODE_UNSPECIFIED


def is_stack_of(native: JsonObject, known: list[str]) -> bool:
    """The error only repeats a known one, as a stack trace."""
    message = text_in(dict_in(native, "data"), "message")
    if _STACK not in message or not known:
        return False
    head = message.split(_STACK)[0]
    return head == "UnknownError: UnknownError" or any(said in head for said in known)


def details_of(native: JsonObject) -> JsonObject:
    """What a native error says beyond what `error_of` makes of it."""
    data = dict_in(native, "data")
    return {k: v for k, v in data.items() if k not in ("message", "statusCode")}


def error_draft(
    error: error_pb2.Error,
    raw: tuple[bytes, ...] = (),
    *,
    synthetic: bool = False,
    told: JsonObject | None = None,
) -> Draft:
    """An error as a draft; `told` is what else the server said of it."""
    made = event(synthetic=synthetic, metadata_json=dump(told) if told else "")
    made.error.CopyFrom(error)
    return Draft(Kind.ERROR, made, raw)


def http_error(status: int, body: Any) -> error_pb2.Error:
    """The error of an HTTP answer of the server, of either shape."""
    if isinstance(body, dict) and (body.get("name") or body.get("_tag")):
        return error_of(body)
    return error_pb2.Error(
        message=f"OpenCode answered with HTTP status {status}",
        code=error_pb2.ERROR_CODE_AGENT_INTERNAL,
    )
