"""Decoding of OpenCode's events: the JSON of one server-sent event each.

`/event` sends `{id, type, properties}`; `/global/event` wraps it as `{directory, payload}` and adds
a twin of type `sync` to every durable event; `/api/event`, of an API to come, sends `{id, type,
data, location}`. A server newer than this code may send anything: a field of another shape than
expected counts as absent.

What the driver fetched itself, or has to tell the normalizer, comes in the same shape: events of
the server's own types, made from answers of its HTTP API, and types that begin with `agentstream.`.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from agentstreamd.adapters import lenient

JsonObject = dict[str, Any]
T = TypeVar("T")

IGNORED_PREFIXES = (
    "account.",
    "catalog.",
    "file.",
    "ide.",
    "installation.",
    "integration.",
    "lsp.",
    "mcp.",
    "models-dev.",
    "plugin.",
    "project.",
    "pty.",
    "reference.",
    "server.",
    "tui.",
    "vcs.",
    "workspace.",
    "worktree.",
)
"""Families of events that say nothing about a session; left out on purpose."""

IGNORED = frozenset({"sync", "session.diff", "command.executed"})
"""Left out on purpose: twins of other events, diffs that come another way, an echo."""


_LARGEST = 2**31


class Unreadable(ValueError):
    """An event is not a JSON object of the known shape. `str(error)` says why."""


@dataclass(slots=True)
class Event:
    """One event.

    Attributes:
        type: Its type, for example `message.part.delta`.
        properties: What it says.
        directory: The directory it is about, where the wrapper says it.
        native: The event as it came.
    """

    type: str
    properties: JsonObject
    directory: str
    native: bytes

    @property
    def session_id(self) -> str:
        """The native session it is about; empty where it is about none."""
        said = self.properties.get("sessionID")
        if isinstance(said, str):
            return said
        return text_in(dict_in(self.properties, "info"), "id") if self.is_session else ""

    @property
    def is_session(self) -> bool:
        """It reports a session as a whole."""
        return self.type in ("session.created", "session.updated", "session.deleted")

    @property
    def is_noise(self) -> bool:
        """It is left out on purpose."""
        return self.type in IGNORED or self.type.startswith(IGNORED_PREFIXES)


class _State(Struct):
    input: Raw = Raw()


class _Part(Struct):
    state: _State | None = None


class _Properties(Struct):
    part: _Part | None = None
    metadata: Raw = Raw()


class _Inner(Struct):
    properties: _Properties | None = None


class _Outer(Struct):
    payload: _Inner | None = None
    properties: _Properties | None = None


_outer = msgspec.json.Decoder(_Outer)
_value = msgspec.json.Decoder()


def decode(native: bytes) -> Event:
    """Decode one event, wrapped or not. Raises `Unreadable`, and nothing else."""
    value = _plain(native)
    directory = ""
    if isinstance(value, dict) and isinstance(value.get("payload"), dict):
        directory = text_in(value, "directory")
        value = value["payload"]
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise Unreadable("an event without type")
    if "properties" not in value:  # as `/api/event` says it
        return Event(
            kind, dict_in(value, "data"), text_in(dict_in(value, "location"), "directory"), native
        )
    return Event(kind, dict_in(value, "properties"), directory, native)


def tool_input(event: Event) -> str:
    """The input of the tool part in an event, verbatim JSON; empty where there is none."""
    said = _verbatim(event)
    if said is not None and said.part is not None and said.part.state is not None:
        return bytes(said.part.state.input).decode()
    part = dict_in(event.properties, "part")
    value = dict_in(part, "state").get("input")
    return dump(value) if value is not None else ""


def metadata_of(event: Event) -> str:
    """The metadata of a permission in an event, verbatim; empty where there is none."""
    said = _verbatim(event)
    if said is not None:
        return bytes(said.metadata).decode()
    value = event.properties.get("metadata")
    return dump(value) if value is not None else ""


def _verbatim(event: Event) -> _Properties | None:
    try:
        event.native.decode()  # The decoder takes `Raw` as it is.
        outer = _outer.decode(event.native)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return outer.payload.properties if outer.payload is not None else outer.properties


def _plain(native: bytes) -> Any:
    try:
        return _value.decode(native)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return lenient.loads(native)
    except RecursionError:
        raise Unreadable("JSON nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None


def dump(value: object) -> str:
    """A value as compact JSON text; halves of surrogate pairs are replaced."""
    return whole_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def whole_text(text: str) -> str:
    """Text with halves of surrogate pairs joined where both are there, else replaced."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def text_in(value: JsonObject, key: str) -> str:
    """The text under `key`; empty where it is no text."""
    said = value.get(key)
    return whole_text(said) if isinstance(said, str) else ""


def dict_in(value: JsonObject, key: str) -> JsonObject:
    """The object under `key`; empty where it is none."""
    said = value.get(key)
    return said if isinstance(said, dict) else {}


def list_in(value: JsonObject, key: str) -> list[Any]:
    """The list under `key`; empty where it is none."""
    said = value.get(key)
    return said if isinstance(said, list) else []


def number_in(value: JsonObject, key: str) -> float | None:
    """The number under `key`; None where it is none."""
    said = value.get(key)
    return said if isinstance(said, int | float) and not isinstance(said, bool) else None


def int_in(value: JsonObject, key: str) -> int | None:
    """The whole number under `key`; None where it is none, or one that no figure here can be."""
    said = number_in(value, key)
    return int(said) if said is not None and abs(said) < _LARGEST else None


def texts(values: list[Any]) -> list[str]:
    """The texts of a list."""
    return [whole_text(value) for value in values if isinstance(value, str)]


def compose(kind: str, properties: JsonObject, directory: str = "") -> bytes:
    """An event for the normalizer that the server did not send itself."""
    event: JsonObject = {"type": kind, "properties": properties}
    if directory:
        event = {"directory": directory, "payload": event}
    return dump(event).encode()
