"""What an error of Amp's means: its texts, classified.

Amp turns most errors of the model provider into a sentence of its own, and passes others on as
`STATUS {"type":"error","error":{...}}`.
"""

import json
import re

from agentstream.v1 import error_pb2

CANCELLED = "User cancelled"
"""How the error of a run begins that a signal ended."""

_HTTP = re.compile(r"\A(\d{3}) (?=[\[{\"])")
_NEEDS_APPROVAL = re.compile(r"tools require user approval.*?: *(?P<tools>[\w*, -]+)\Z", re.DOTALL)

_SENTENCES = (
    ("Unauthorized", error_pb2.ERROR_CODE_AUTHENTICATION),
    ("No API key found", error_pb2.ERROR_CODE_AUTHENTICATION),
    ("Out of Credits", error_pb2.ERROR_CODE_QUOTA_EXCEEDED),
    ("Context Limit Reached", error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED),
    ("Model Provider Overloaded", error_pb2.ERROR_CODE_OVERLOADED),
    ("Rate Limit", error_pb2.ERROR_CODE_RATE_LIMITED),
    ("Invalid JSON on stdin", error_pb2.ERROR_CODE_AGENT_PROTOCOL),
    ("Invalid message format on stdin", error_pb2.ERROR_CODE_AGENT_PROTOCOL),
    ("Couldn't connect", error_pb2.ERROR_CODE_NETWORK),
    ("terminated", error_pb2.ERROR_CODE_NETWORK),
    ("fetch failed", error_pb2.ERROR_CODE_NETWORK),
    ("Connection error", error_pb2.ERROR_CODE_NETWORK),
)

_TYPES = {
    "authentication_error": error_pb2.ERROR_CODE_AUTHENTICATION,
    "permission_error": error_pb2.ERROR_CODE_PERMISSION_DENIED,
    "rate_limit_error": error_pb2.ERROR_CODE_RATE_LIMITED,
    "overloaded_error": error_pb2.ERROR_CODE_OVERLOADED,
    "invalid_request_error": error_pb2.ERROR_CODE_INVALID_REQUEST,
    "not_found_error": error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    "api_error": error_pb2.ERROR_CODE_PROVIDER_FAILED,
}

_STATUSES = {
    401: error_pb2.ERROR_CODE_AUTHENTICATION,
    402: error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
    403: error_pb2.ERROR_CODE_PERMISSION_DENIED,
    404: error_pb2.ERROR_CODE_MODEL_NOT_FOUND,
    429: error_pb2.ERROR_CODE_RATE_LIMITED,
    529: error_pb2.ERROR_CODE_OVERLOADED,
}

_SUBTYPES = {"error_max_turns": error_pb2.ERROR_CODE_TURN_LIMIT}


def classify(message: str, subtype: str = "") -> error_pb2.Error:
    """The error of a `result`'s text and subtype, or of a simple `error` line."""
    error = error_pb2.Error(message=message, code=error_pb2.ERROR_CODE_AGENT_INTERNAL)
    error.native_code = subtype
    if subtype in _SUBTYPES:
        error.code = _SUBTYPES[subtype]
        error.message = message or "Amp reached its limit of turns."
        return error
    if http := _HTTP.match(message):
        _provider_error(error, int(http.group(1)), message[http.end() :])
        return error
    for beginning, code in _SENTENCES:
        if message.casefold().startswith(beginning.casefold()):
            error.code = code
            break
    return error


def tools_needing_approval(message: str) -> list[str]:
    """Names of the tools for which a run ended because nobody could be asked."""
    match = _NEEDS_APPROVAL.search(message)
    return [name.strip() for name in match["tools"].split(",")] if match else []


def _provider_error(error: error_pb2.Error, status: int, body: str) -> None:
    error.http_status = status
    default = (
        error_pb2.ERROR_CODE_PROVIDER_FAILED
        if status >= 500
        else error_pb2.ERROR_CODE_INVALID_REQUEST
    )
    error.code = _STATUSES.get(status, default)
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return
    inner = said.get("error") if isinstance(said, dict) else None
    if not isinstance(inner, dict):
        return
    if isinstance(kind := inner.get("type"), str):
        error.native_code = kind
        error.code = _TYPES.get(kind, error.code)
    if isinstance(text := inner.get("message"), str) and text:
        error.message = text
    if "context" in error.message.casefold() or "prompt is too long" in error.message:
        error.code = error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED
