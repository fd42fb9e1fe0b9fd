"""Checks of requests that need nothing but the request."""

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import message

from agentstream.v1 import event_pb2, service_pb2
from agentstreamd.sessions.prompts import check_message

from .errors import invalid

MAX_PAGE_SIZE = 1000
UPDATABLE = frozenset({"model", "permission_mode", "title", "labels"})

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_KINDS = frozenset(event_pb2.EventKind.values()) - {event_pb2.EVENT_KIND_UNSPECIFIED}

Violations = list[tuple[str, str]]


def check(request: message.Message) -> None:
    """Raise INVALID_FIELD, naming all fields at fault, where the request can't be right."""
    found: Violations = []
    names = request.DESCRIPTOR.fields_by_name
    values: Any = request
    for name in ("session_id", "request_id", "blob_id"):
        optional = isinstance(request, service_pb2.CreateSessionRequest)
        if name in names and not (optional and not values.session_id):
            _check_id(name, getattr(values, name), found)
    if "page_size" in names and not 0 <= values.page_size <= MAX_PAGE_SIZE:
        found.append(("page_size", f"must be 0 to {MAX_PAGE_SIZE}"))
    special = _SPECIAL.get(type(request))
    if special is not None:
        special(request, found)
    if found:
        raise invalid(found)


def _check_id(name: str, value: str, found: Violations) -> None:
    if not value:
        found.append((name, "is required"))
    elif name == "session_id" and not _SESSION_ID.fullmatch(value):
        found.append(
            (
                name,
                "must be 1 to 128 of the characters a-z A-Z 0-9 . _ -, "
                "and begin with a letter or digit",
            )
        )


def _get_agent(request: service_pb2.GetAgentRequest, found: Violations) -> None:
    if not request.name:
        found.append(("name", "is required"))


def _create(request: service_pb2.CreateSessionRequest, found: Violations) -> None:
    if not request.HasField("config"):
        found.append(("config", "is required"))
        return
    for name in ("agent", "working_directory"):
        if not getattr(request.config, name):
            found.append((f"config.{name}", "is required"))


def _send(request: service_pb2.SendMessageRequest, found: Violations) -> None:
    found.extend(check_message(request))


def _update(request: service_pb2.UpdateSessionRequest, found: Violations) -> None:
    if not request.update_mask.paths:
        found.append(("update_mask", "is required and can't be empty"))
    for path in request.update_mask.paths:
        if path not in UPDATABLE:
            found.append(("update_mask", f"can only name {_listed(UPDATABLE)}, not {path!r}"))


def _stream(request: service_pb2.StreamEventsRequest, found: Violations) -> None:
    if request.after_sequence < 0:
        found.append(("after_sequence", "must not be negative"))
    for index, kind in enumerate(request.kinds):
        if kind not in _KINDS:
            found.append((f"kinds[{index}]", f"{kind} is not a kind of event"))


def _respond(request: service_pb2.RespondRequest, found: Violations) -> None:
    if request.WhichOneof("answer") is None:
        found.append(("answer", "is required: permission, question or form"))


def _read_blob(request: service_pb2.ReadBlobRequest, found: Violations) -> None:
    if request.offset_bytes < 0:
        found.append(("offset_bytes", "must not be negative"))
    if request.limit_bytes < 0:
        found.append(("limit_bytes", "must not be negative"))


_SPECIAL: dict[type[message.Message], Callable[[Any, Violations], None]] = {
    service_pb2.GetAgentRequest: _get_agent,
    service_pb2.CreateSessionRequest: _create,
    service_pb2.SendMessageRequest: _send,
    service_pb2.UpdateSessionRequest: _update,
    service_pb2.StreamEventsRequest: _stream,
    service_pb2.RespondRequest: _respond,
    service_pb2.ReadBlobRequest: _read_blob,
}


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
