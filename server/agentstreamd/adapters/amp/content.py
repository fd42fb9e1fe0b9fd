"""Content of messages: blocks and the parts they become."""

import base64
import binascii
import json
from collections.abc import Iterable

from msgspec import Raw

from agentstream.v1 import item_pb2
from agentstreamd.adapters.amp import native
from agentstreamd.adapters.amp.native import Fields
from agentstreamd.model import image_part, json_part, reasoning_part, text_part


def blocks_of(content: Raw | None) -> list[Fields]:
    """The blocks of a message; a string is one text block, an empty one none."""
    value = native.plain(content)
    if isinstance(value, str):
        return [{"type": Raw(b'"text"'), "text": content}] if value and content else []
    return [fields for fields in map(native.fields, native.items(content)) if fields]


def text_of(blocks: Iterable[Fields]) -> str:
    """The text of blocks, one line for each."""
    return "\n".join(filter(None, (native.text(block.get("text")) for block in blocks)))


def parts_of(blocks: Iterable[Fields]) -> list[item_pb2.ContentPart]:
    """Parts of a message. What is not known is kept as JSON."""
    parts = []
    for block in blocks:
        match kind := native.text(block.get("type")):
            case "text":
                parts.append(text_part(native.text(block.get("text"))))
            case "thinking":
                parts.append(reasoning_part(native.text(block.get("thinking"))))
            case "redacted_thinking":
                parts.append(reasoning_part("", item_pb2.REASONING_VISIBILITY_REDACTED))
            case _:
                parts.append(_image(block) or _json(kind, block))
    return parts


def _image(block: Fields) -> item_pb2.ContentPart | None:
    source = native.fields(block.get("source"))
    media_type, data = native.text(source.get("media_type")), source.get("data")
    decoded = _decoded(native.text(data))
    return image_part(media_type, decoded) if media_type and decoded else None


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _json(kind: str, block: Fields) -> item_pb2.ContentPart:
    members = ",".join(
        f"{json.dumps(key)}:{native.verbatim(value)}" for key, value in block.items()
    )
    return json_part(kind or "content", f"{{{members}}}")


def model_of(message: Fields) -> str:
    """Metadata that names the model of a message; empty where it does not say."""
    model = native.text(message.get("model"))
    return json.dumps({"model": model}) if model else ""
