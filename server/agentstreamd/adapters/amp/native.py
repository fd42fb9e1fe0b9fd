"""Reading Amp's lines of JSON.

A line is a mapping from its keys to JSON text that is decoded only when it is looked at: tool
arguments must come out byte for byte, and a field of another shape than expected counts as absent.
Nothing here raises but `members`.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from agentstreamd.adapters import lenient

Fields = Mapping[str, Raw]
"""A JSON object: each member's text, verbatim."""

_fields = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_value = msgspec.json.Decoder()


class Unreadable(ValueError):
    """A line is not a JSON object. `str(error)` says why."""


def members(native: bytes | Raw) -> Fields:
    """The members of a JSON object. Raises `Unreadable`, and nothing else."""
    try:
        return _fields.decode(native)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        value = lenient.loads(bytes(native))
    except RecursionError:
        raise Unreadable("JSON nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    return {_whole(key): Raw(dump(member)) for key, member in value.items()}


def fields(raw: Raw | None) -> Fields:
    """The members of a JSON object; empty where it is none."""
    if raw is None:
        return {}
    try:
        return members(raw)
    except Unreadable:
        return {}


def items(raw: Raw | None) -> list[Raw]:
    """The elements of a JSON array; empty where it is none."""
    if raw is None:
        return []
    try:
        return _list.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        value = plain(raw)
        return [Raw(dump(each)) for each in value] if isinstance(value, list) else []


def text(raw: Raw | None) -> str:
    """A JSON string; empty where it is none."""
    value = plain(raw)
    return value if isinstance(value, str) else ""


def plain(raw: Raw | bytes | None) -> Any:
    """A JSON value as plain Python values; None where there is none."""
    if raw is None:
        return None
    data = bytes(raw)
    try:
        return _value.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(dump(lenient.loads(data)))
    except (ValueError, RecursionError):
        return None


def verbatim(raw: Raw | None) -> str:
    """The JSON text itself; empty where there is none."""
    return "" if raw is None else bytes(raw).decode("utf-8", "replace")


def dump(value: object) -> bytes:
    """JSON text without half surrogates, NaN and infinities, which JSON does not have."""
    return json.dumps(_repaired(value), ensure_ascii=False, separators=(",", ":")).encode()


def _whole(value: str) -> str:
    """Text with surrogate pairs joined and lone halves replaced by U+FFFD."""
    if value.isascii():
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _repaired(value: object) -> object:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, dict):
        return {_whole(key): _repaired(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_repaired(member) for member in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
