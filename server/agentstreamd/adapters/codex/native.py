"""Reading the messages of `codex app-server`: one JSON object a line, JSON-RPC without its version.

Everything here is lenient in what it takes (a member of another type counts as absent) and strict
in what it gives: strings are valid Unicode, and JSON that must survive is handed on verbatim.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import Raw

from agentstreamd.adapters import lenient

JsonObject = dict[str, Any]


class Unreadable(ValueError):
    """A line is not a JSON object. `str(error)` says why."""


class _Envelope(msgspec.Struct):
    method: str | None = None
    id: Raw = Raw()
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


_envelope = msgspec.json.Decoder(_Envelope)
_members = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_value = msgspec.json.Decoder()
_READ_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Message:
    """One message, decoded as far as it is asked for.

    Attributes:
        line: The message itself, without line terminator.
        method: Of a request or notification; empty for a response.
        id: The JSON text of the id, verbatim; empty where there is none. Ids may be numbers (the
            server's begin with 0) or strings.
    """

    def __init__(self, line: bytes, envelope: _Envelope) -> None:
        self.line = line
        self.method = envelope.method or ""
        self.id = text_of(envelope.id)
        if self.id == "null":
            self.id = ""
        self._envelope = envelope

    @property
    def is_request(self) -> bool:
        """It must be answered."""
        return bool(self.method and self.id)

    @property
    def is_response(self) -> bool:
        """It answers a request of ours."""
        return not self.method

    @cached_property
    def params(self) -> JsonObject:
        """The parameters as plain values; empty where they are no object."""
        return as_object(plain(self._envelope.params))

    @cached_property
    def result(self) -> JsonObject:
        """The result as plain values; empty where it is no object."""
        return as_object(plain(self._envelope.result))

    @cached_property
    def error(self) -> JsonObject:
        """The error of a response that failed; empty where it did not."""
        return as_object(plain(self._envelope.error))

    @property
    def failed(self) -> bool:
        """It is a response that says that a request failed."""
        return not self.method and bool(bytes(self._envelope.error))

    @cached_property
    def thread_id(self) -> str:
        """The thread it is about; empty where it names none."""
        said = self.params if self.method else self.result
        thread = said.get("thread")
        if isinstance(thread, dict):
            return text_in(thread, "id")
        return text_in(said, "threadId")

    def verbatim(self, *path: str) -> dict[str, Raw]:
        """The members of an object within the parameters, each verbatim."""
        found = members(self._envelope.params)
        for name in path:
            found = members(found.get(name, Raw()))
        return found


def decode(line: bytes) -> Message:
    """Decode one line. Raises `Unreadable`, and nothing else."""
    try:
        return Message(line, _envelope.decode(line))
    except _READ_ERRORS:
        pass
    try:
        value = lenient.loads(line)
    except RecursionError:
        raise Unreadable("JSON nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    method = value.get("method")
    made = _Envelope(method=whole_text(method) if isinstance(method, str) else None)
    for name in ("id", "params", "result", "error"):
        if name in value:
            setattr(made, name, Raw(dump(value[name])))
    return Message(line, made)


def plain(raw: Raw | bytes) -> Any:
    """A JSON value as plain Python values; None where there is none."""
    text = bytes(raw)
    if not text:
        return None
    try:
        return _value.decode(text)
    except _READ_ERRORS:
        pass
    try:
        return json.loads(dump(lenient.loads(text)))
    except (ValueError, RecursionError):
        return None


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """The members of a JSON object, each verbatim; empty where it is not an object."""
    try:
        return _members.decode(raw)
    except _READ_ERRORS:
        value = plain(raw)
    if not isinstance(value, dict):
        return {}
    return {key: Raw(dump(member)) for key, member in value.items()}


def elements(raw: Raw | bytes) -> list[Raw]:
    """The elements of a JSON array, each verbatim; empty where it is not an array."""
    try:
        return _list.decode(raw)
    except _READ_ERRORS:
        return []


def text_of(raw: Raw) -> str:
    """The JSON text itself."""
    return bytes(raw).decode("utf-8", "replace")


def dump(value: object) -> bytes:
    """Compact JSON of plain values: valid UTF-8 whatever strings hold."""
    return json.dumps(_repaired(value), ensure_ascii=False, separators=(",", ":")).encode()


def dump_text(value: object) -> str:
    """As `dump`, as text."""
    return dump(value).decode()


def whole_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone halves replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def as_object(value: object) -> JsonObject:
    """`value` where it is an object, else an empty one."""
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def objects_in(said: Mapping[str, Any], name: str) -> list[JsonObject]:
    """The objects of a member that is an array."""
    value = said.get(name)
    if not isinstance(value, list):
        return []
    return [element for element in value if isinstance(element, dict)]


def texts_in(said: Mapping[str, Any], name: str) -> list[str]:
    """The strings of a member that is an array."""
    value = said.get(name)
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def text_in(said: Mapping[str, Any], name: str) -> str:
    """A member that is a string, else empty."""
    value = said.get(name)
    return value if isinstance(value, str) else ""


def whole_in(said: Mapping[str, Any], name: str) -> int | None:
    """A member that is a whole number of 63 bits, else None."""
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        return None
    return value


def known(said: Mapping[str, Any], *names: str) -> JsonObject:
    """Those members that are there and not null."""
    return {name: said[name] for name in names if said.get(name) is not None}


def _repaired(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else whole_text(value)
    if isinstance(value, dict):
        return {whole_text(str(key)): _repaired(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_repaired(member) for member in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
