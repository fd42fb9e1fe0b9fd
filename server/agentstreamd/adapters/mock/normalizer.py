"""Native messages of the mock agent to drafts of events.

The mock's protocol is plain: a message is one JSON object whose `type` is the name of an event's
payload, and whose other keys are that payload as ProtoJSON. Beyond that there are `hello`, and
`turn_started` with the id of the prompt that it answers.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters import lenient
from agentstreamd.adapters.base import Normalizer
from agentstreamd.model import (
    Draft,
    Kind,
    completed,
    delta,
    event,
    started,
    unknown_item,
    unparsed,
    whole,
)

IGNORED = {
    "ack": "an answer to the driver, which acts on it",
    "ignored": "tells the driver that the agent does not know what it was sent",
}
"""Types of messages that make no event, with the reason."""

_ENVELOPE = ("type", "session", "metadata")

_DELTA_KINDS = {
    "text": event_pb2.DELTA_KIND_TEXT,
    "reasoning": event_pb2.DELTA_KIND_REASONING,
    "tool_output": event_pb2.DELTA_KIND_TOOL_OUTPUT,
    "tool_arguments": event_pb2.DELTA_KIND_TOOL_ARGUMENTS,
}

_TRIGGERS = {
    "agent": event_pb2.TURN_TRIGGER_AGENT,
    "compaction": event_pb2.TURN_TRIGGER_COMPACTION,
}

# Payloads whose ProtoJSON is taken as it is.
_PAYLOADS = {
    kind.name.lower(): kind
    for kind in Kind
    if kind
    not in (
        Kind.ITEM_STARTED,
        Kind.ITEM_DELTA,
        Kind.ITEM_COMPLETED,
        Kind.TURN_STARTED,
        Kind.TURN_ENDED,
        Kind.AGENT_UNPARSED,
    )
}

# What a payload can't do without.
_REQUIRED = {
    Kind.SESSION_ENDED: ("reason",),
    Kind.TURN_ENDED: ("status",),
    Kind.PERMISSION_REQUESTED: ("request_id", "kind", "allowed_decisions"),
    Kind.PERMISSION_RESOLVED: ("request_id", "outcome"),
    Kind.QUESTION_REQUESTED: ("request_id", "questions"),
    Kind.QUESTION_RESOLVED: ("request_id", "outcome"),
    Kind.FORM_REQUESTED: ("request_id",),
    Kind.FORM_RESOLVED: ("request_id", "outcome"),
}

_Raw = tuple[bytes, ...]
_Json = dict[str, Any]


def ignored(message: bytes) -> str:
    """Why a message makes no event; empty for one that should make some."""
    try:
        native = _decode(message)
    except (ValueError, RecursionError):
        return ""
    kind = native.get("type") if isinstance(native, dict) else None
    return IGNORED.get(kind, "") if isinstance(kind, str) else ""


class MockNormalizer(Normalizer):
    """Maps one session of the mock agent."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._unknown = 0
        # Prompts of ours that the agent has not begun with.
        self._waiting: set[str] = set()
        self._running = ""
        self._merged = False
        self._handlers: dict[str, Callable[[_Json, _Raw], list[Draft]]] = {
            "hello": self._hello,
            "turn_started": self._turn_started,
            "turn_ended": self._turn_ended,
            "item_started": self._item_started,
            "item_delta": self._item_delta,
            "item_completed": self._item_completed,
        }

    def feed(self, message: bytes) -> list[Draft]:
        """See Normalizer."""
        try:
            native = _decode(message)
        except (ValueError, RecursionError) as error:
            return [unparsed(message, f"not a JSON message: {error}")]
        if not isinstance(native, dict) or not isinstance(native.get("type"), str):
            return [unparsed(message, "not a JSON object with a type")]
        kind = native["type"]
        raw = (message,)
        try:
            if handler := self._handlers.get(kind):
                return handler(native, raw)
            if kind in _PAYLOADS:
                return [self._payload(_PAYLOADS[kind], native, raw)]
        except (
            json_format.ParseError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            return [unparsed(message, f"not a valid {kind} message: {error}")]
        if kind in IGNORED:
            return []
        self._unknown += 1
        text = message.decode("utf-8", "replace")
        return whole(unknown_item(f"unknown-{self._unknown}", kind, text), raw)

    def sent(self, message: bytes) -> list[Draft]:
        """See Normalizer."""
        try:
            native = _decode(message)
        except (ValueError, RecursionError):
            return []
        if isinstance(native, dict) and native.get("type") == "prompt":
            prompt_id = str(native.get("id", ""))
            if prompt_id != self._running:
                self._waiting.add(prompt_id)
                # The turn the agent began by itself goes on in the one that the prompt started.
                self._merged = self._merged or bool(self._running)
        return []

    def _hello(self, native: _Json, raw: _Raw) -> list[Draft]:
        made = event()
        updated = made.session_updated
        updated.native_session_id = str(native.get("native_session_id", ""))
        updated.model = str(native.get("model", ""))
        updated.agent_version = str(native.get("version", ""))
        updated.tools.names.extend(str(name) for name in native.get("tools", ()))
        return [Draft(Kind.SESSION_UPDATED, made, raw)]

    def _turn_started(self, native: _Json, raw: _Raw) -> list[Draft]:
        prompt_id = str(native.get("prompt_id", ""))
        native_turn_id = str(native.get("native_turn_id", ""))
        self._running = prompt_id or native_turn_id or "-"
        if prompt_id in self._waiting:
            self._waiting.discard(prompt_id)
            return []
        if self._waiting:
            self._merged = True
            return []
        made = event()
        made.turn_started.native_turn_id = native_turn_id
        if not prompt_id:
            made.turn_started.trigger = _TRIGGERS[native.get("trigger", "agent")]
        return [Draft(Kind.TURN_STARTED, made, raw)]

    def _turn_ended(self, native: _Json, raw: _Raw) -> list[Draft]:
        self._running = ""
        if self._merged:
            self._merged = False
            return []
        return [self._payload(Kind.TURN_ENDED, native, raw)]

    def _item_started(self, native: _Json, raw: _Raw) -> list[Draft]:
        item = _item(native)
        return [started(item, raw, metadata_json=_metadata(native))]

    def _item_completed(self, native: _Json, raw: _Raw) -> list[Draft]:
        item = _item(native)
        failed = bool(native.get("failed"))
        return [completed(item, raw, failed=failed, metadata_json=_metadata(native))]

    def _item_delta(self, native: _Json, raw: _Raw) -> list[Draft]:
        return [
            delta(
                native["item_id"],
                native.get("content_index", 0),
                _DELTA_KINDS[native["kind"]],
                native["text"],
                raw,
            )
        ]

    def _payload(self, kind: Kind, native: _Json, raw: _Raw) -> Draft:
        made = event(metadata_json=_metadata(native))
        payload: Message = getattr(made, kind.name.lower())
        fields = {name: value for name, value in native.items() if name not in _ENVELOPE}
        json_format.ParseDict(fields, payload)
        payload.SetInParent()
        for name in _REQUIRED.get(kind, ()):
            if not getattr(payload, name):
                raise ValueError(f"{name} is missing")
        return Draft(kind, made, raw)


def _item(native: _Json) -> item_pb2.Item:
    item = json_format.ParseDict(native["item"], item_pb2.Item())
    if not (item.item_id and item.kind and item.role):
        raise ValueError("an item needs item_id, kind and role")
    return item


def _decode(message: bytes) -> Any:
    try:
        return msgspec.json.decode(message)
    except msgspec.DecodeError:
        # JSON may escape half of a surrogate pair, which no text can hold. Rare, so it may be slow.
        return _mend(json.loads(message, parse_constant=lenient.refuse))


def _mend(value: Any) -> Any:
    """Put U+FFFD where half of a surrogate pair stands."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mend(one) for one in value]
    if isinstance(value, dict):
        return {_mend(name): _mend(one) for name, one in value.items()}
    return value


def _metadata(native: _Json) -> str:
    metadata = native.get("metadata")
    return json.dumps(metadata) if isinstance(metadata, dict) else ""
