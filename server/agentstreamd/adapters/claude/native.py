"""Decoding of Claude Code's stream-json lines.

Only what the normalizer looks at on its hot path is typed; the rest stays JSON text (`Raw`) until
somebody asks, because tool arguments must come out byte for byte and most lines are never looked
into. A CLI newer than this code may send anything: a field of another shape than expected counts as
absent, and no line makes the decoder raise.
"""

import json
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from agentstreamd.adapters import lenient

EMPTY = Raw()
"""A field that is absent."""

JsonObject = dict[str, Any]
T = TypeVar("T", bound=Struct)


class BlockDelta(Struct):
    """What a content block grows by."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""


class Block(Struct):
    """A content block of a message: text, thinking, a tool's use or result, or one not known."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    tool_use_id: str = ""
    is_error: bool | None = None
    input: Raw = EMPTY
    content: Raw = EMPTY
    source: Raw = EMPTY
    citations: Raw = EMPTY


class MessageHead(Struct):
    """The message of a `message_start`."""

    id: str = ""
    model: str = ""


class StreamEvent(Struct):
    """An event of the model API, passed on as it is."""

    type: str = ""
    index: int = -1
    delta: BlockDelta | None = None
    content_block: Block | None = None
    message: MessageHead | None = None


class Message(Struct):
    """The message of an assistant or user line; `content` is a string or a list of blocks."""

    id: str = ""
    model: str = ""
    content: Raw = EMPTY


class Line(Struct):
    """One line. `intact` is false where it had to be repaired to be read.

    The nullable fields are null on most lines.
    """

    type: str = ""
    subtype: str | None = None
    event: StreamEvent | None = None
    message: Message | None = None
    parent_tool_use_id: str | None = None
    uuid: str | None = None
    error: Raw = EMPTY
    tool_use_result: Raw = EMPTY
    tool_use_meta: Raw = EMPTY
    is_synthetic: bool | None = msgspec.field(default=None, name="isSynthetic")
    is_replay: bool | None = msgspec.field(default=None, name="isReplay")
    aborted: bool | None = None
    intact: bool = msgspec.field(default=True, name="agentstreamd:intact")


class Unreadable(ValueError):
    """A line is not a JSON object. `str(error)` says why."""


_line = msgspec.json.Decoder(Line)
_blocks = msgspec.json.Decoder(list[Block])
_members = msgspec.json.Decoder(dict[str, Raw])
_value = msgspec.json.Decoder()


def decode(native: bytes) -> Line:
    """Decode one line. Raises `Unreadable`, and nothing else."""
    try:
        return _line.decode(native)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        value = lenient.loads(native)
    except RecursionError:
        raise Unreadable("JSON nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    line = _fit(Line, value)
    line.intact = False
    _keep_halves(line, value)
    return line


def fields(native: bytes) -> JsonObject:
    """The whole of a line that `decode` has read, as plain Python values."""
    try:
        value = _value.decode(native)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        value = json.loads(_dump(json.loads(native.decode("utf-8", "replace"))))
    return cast(JsonObject, value)


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """The members of a JSON object, each verbatim; empty where it is not an object."""
    try:
        return _members.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    value = plain(raw)
    if not isinstance(value, dict):
        return {}
    return {key: Raw(_dump(member)) for key, member in value.items()}


def verbatim(native: bytes) -> dict[str, Raw]:
    """The members of a line that `decode` has read, each verbatim."""
    return members(native)


def plain(raw: Raw | bytes) -> Any:
    """A JSON value as plain Python values; None where there is none."""
    text = bytes(raw)
    if not text:
        return None
    try:
        return _value.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(_dump(lenient.loads(text)))
    except (ValueError, RecursionError):
        return None


def text_of(raw: Raw) -> str:
    """The JSON text itself."""
    return bytes(raw).decode("utf-8", "replace")


def blocks(content: Raw) -> list[Block]:
    """The blocks of a message; a string is one text block. What is no block is left out."""
    try:
        return _blocks.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    value = plain(content)
    if isinstance(value, str):
        return [Block(type="text", text=value)]
    if not isinstance(value, list):
        return []
    return [_fit(Block, block) for block in value if isinstance(block, dict)]


def whole_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone halves replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dump(value: object) -> bytes:
    """JSON without half surrogates and without NaN and infinities, which JSON does not have."""
    return json.dumps(_repaired(value), ensure_ascii=False, separators=(",", ":")).encode()


def _repaired(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else whole_surrogates(value)
    if isinstance(value, dict):
        return {whole_surrogates(key): _repaired(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_repaired(member) for member in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def _fit(kind: type[T], value: JsonObject) -> T:
    """A struct of the fields of `value` that have the shape it wants."""
    made = kind()
    for field in msgspec.structs.fields(kind):
        member = value.get(field.encode_name)
        if member is None:
            continue
        if isinstance(member, dict) and (nested := _NESTED.get((kind, field.name))):
            setattr(made, field.name, _fit(nested, member))
            continue
        try:
            setattr(made, field.name, msgspec.json.decode(_dump(member), type=field.type))
        except (msgspec.MsgspecError, RecursionError):
            continue
    return made


_NESTED: dict[tuple[type[Struct], str], type[Struct]] = {
    (Line, "event"): StreamEvent,
    (Line, "message"): Message,
    (StreamEvent, "delta"): BlockDelta,
    (StreamEvent, "content_block"): Block,
    (StreamEvent, "message"): MessageHead,
}


def _keep_halves(line: Line, value: JsonObject) -> None:
    """Put the half surrogates of a delta back: its other half may come with the next delta."""
    if line.event is None or line.event.delta is None:
        return
    delta = value["event"]["delta"]
    for name in ("text", "thinking", "partial_json"):
        if isinstance(delta.get(name), str):
            setattr(line.event.delta, name, delta[name])
