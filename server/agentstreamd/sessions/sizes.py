"""Keeping events within their size: what is too large moves into a blob beside the log."""

import hashlib
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from agentstream.v1 import blob_pb2, event_pb2, interaction_pb2, item_pb2
from agentstreamd.model import Redacted

MAX_EVENT_BYTES = 1024 * 1024
"""No serialized event (without `raw`) is larger than this."""

ENVELOPE_BYTES = 4 * 1024
"""Room for what is added to a payload: ids, time, sequence."""

HEAD_CHARACTERS = 32 * 1024
"""How much of a text that moved into a blob stays in the event, at its beginning."""

TAIL_CHARACTERS = 8 * 1024
"""How much of it stays, at its end, in `BlobRef.tail`."""

MAX_ENTRIES = 1024
"""So many entries of a list stay in an event that is too large though each of them is small."""

MAX_DELTA_CHARACTERS = 128 * 1024
"""Longer deltas are split; a character takes up to 4 bytes."""

RAW_INLINE_BYTES = 128 * 1024
"""A native message above this is kept as a blob."""

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_DIFF = "text/x-diff; charset=utf-8"

_PART_OVERHEAD = 4
"""Bytes that a part takes in its item, besides its own."""

_MAIN_CONTENT = {
    "text": ("text", _TEXT),
    "reasoning": ("text", _TEXT),
    "json": ("json", _JSON),
    "tool_call": ("arguments_json", _JSON),
    "tool_result": ("output", _TEXT),
    "status": ("detail", _TEXT),
}
"""By kind of part: the field that may move into a blob, and its media type."""

_BLOB_REF = blob_pb2.BlobRef.DESCRIPTOR

_IDENTIFYING = frozenset({"label", "arguments_json", "superseded_by", "diff"})
"""Fields that are not cut: they name something, or have been cut to size already."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many characters of a large text stay in its event, at its beginning and its end."""

    head: int
    tail: int


_ROOMS = (Room(HEAD_CHARACTERS, TAIL_CHARACTERS), Room(1024, 256), Room(64, 0))
"""Each is for events in which so much of every text that is larger does not fit."""


@dataclass(slots=True)
class Blobs:
    """Blobs that are to be stored with the next append, by id, each with its description."""

    pending: dict[str, tuple[blob_pb2.BlobRef, bytes]]

    def keep(self, content: bytes, media_type: str, tail: str = "") -> blob_pb2.BlobRef:
        """Put `content` aside and return the reference to it. Equal contents share one blob."""
        digest = hashlib.sha256(content).hexdigest()
        reference = blob_pb2.BlobRef(
            blob_id=digest,
            size_bytes=len(content),
            sha256=digest,
            media_type=media_type,
            tail=tail,
        )
        self.pending[digest] = (reference, content)
        return reference

    def keep_text(self, text: str, media_type: str, room: Room) -> tuple[str, blob_pb2.BlobRef]:
        """Put a text aside; returns its beginning and the reference, which has its end."""
        tail = text[-room.tail :] if room.tail else ""
        return text[: room.head], self.keep(text.encode(), media_type, tail)


def shrink(event: event_pb2.Event, blobs: Blobs) -> None:
    """Move what is large in `event` into blobs, so that it fits `MAX_EVENT_BYTES`."""
    for room in _ROOMS:
        if len(event.metadata_json) > room.head:
            # The native message it was taken from is kept whole as `raw`.
            event.metadata_json = '{"truncated":true}'
        _shrink_payload(event, blobs, room)
        if _fits(event):
            return
    _drop(event, blobs)


def _fits(message: Message) -> bool:
    return message.ByteSize() <= MAX_EVENT_BYTES - ENVELOPE_BYTES


def _shrink_payload(event: event_pb2.Event, blobs: Blobs, room: Room) -> None:
    match event.WhichOneof("payload"):
        case "item_started":
            _shrink_item(event.item_started.item, blobs, room)
        case "item_completed":
            _shrink_item(event.item_completed.item, blobs, room)
        case "permission_requested":
            _shrink_permission(event.permission_requested, blobs, room)
        case "item_delta" | None:
            pass  # a delta is split before
        case which:
            _cut(getattr(event, which), room.head)


def _shrink_item(item: item_pb2.Item, blobs: Blobs, room: Room) -> None:
    for part in item.content:
        _shrink_part(part, blobs, room)


def _shrink_part(part: item_pb2.ContentPart, blobs: Blobs, room: Room) -> None:
    which = part.WhichOneof("part")
    if which == "file_ref":
        _shrink_file(part.file_ref, blobs, room)
        return
    if which == "image":
        if len(part.image.data) > room.head:
            part.external.CopyFrom(blobs.keep(part.image.data, part.image.media_type))
            part.image.ClearField("source")
        return
    if which is None:
        return
    name, media_type = _MAIN_CONTENT[which]
    holder: Any = getattr(part, which)
    text: str = getattr(holder, name)
    if part.HasField("external"):
        setattr(holder, name, text[: room.head])
        _cut_tail(part.external, room)
    elif len(text) > room.head:
        head, reference = blobs.keep_text(text, media_type, room)
        setattr(holder, name, head)
        part.external.CopyFrom(reference)


def _shrink_file(file: item_pb2.FileRefPart, blobs: Blobs, room: Room) -> None:
    if file.HasField("diff_external"):
        file.diff = file.diff[: room.head]
        _cut_tail(file.diff_external, room)
    elif len(file.diff) > room.head:
        file.diff, reference = blobs.keep_text(file.diff, _DIFF, room)
        file.diff_external.CopyFrom(reference)


def _shrink_permission(
    request: interaction_pb2.PermissionRequest, blobs: Blobs, room: Room
) -> None:
    if request.HasField("arguments_external"):
        request.arguments_json = request.arguments_json[: room.head]
        _cut_tail(request.arguments_external, room)
    elif len(request.arguments_json) > room.head:
        request.arguments_json, reference = blobs.keep_text(request.arguments_json, _JSON, room)
        request.arguments_external.CopyFrom(reference)
    for file in request.files:
        _shrink_file(file, blobs, room)
    _cut(request, room.head)


def _cut_tail(reference: blob_pb2.BlobRef, room: Room) -> None:
    reference.tail = reference.tail[-room.tail :] if room.tail else ""


def _cut(message: Message, limit: int) -> None:
    """Shorten texts for people; what a program reads goes whole or stays: half JSON is none."""
    it: Any = message
    for field, value in message.ListFields():
        name = field.name
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or field.message_type is _BLOB_REF:
                continue
            for inner in value if field.is_repeated else (value,):
                _cut(inner, limit)
            continue
        if field.type != FieldDescriptor.TYPE_STRING or field.is_repeated or len(value) <= limit:
            continue
        if name.endswith("_id") or name in _IDENTIFYING:
            continue
        if name == "schema_json":
            it.schema_json = "{}"
        elif name.endswith("_json"):
            it.ClearField(name)
        else:
            setattr(it, name, value[:limit])


def _drop(event: event_pb2.Event, blobs: Blobs) -> None:
    """Very many parts, each of them small: the first ones stay."""
    match event.WhichOneof("payload"):
        case "item_started":
            _drop_parts(event.item_started.item, blobs)
        case "item_completed":
            _drop_parts(event.item_completed.item, blobs)
        case "permission_requested":
            del event.permission_requested.files[MAX_ENTRIES:]
            del event.permission_requested.suggestions[MAX_ENTRIES:]
        case "session_updated":
            del event.session_updated.tools.names[MAX_ENTRIES:]
            del event.session_updated.mcp_servers.servers[MAX_ENTRIES:]
        case _:
            pass


def _drop_parts(item: item_pb2.Item, blobs: Blobs) -> None:
    everything = item.SerializeToString()
    kept = 0
    room = MAX_EVENT_BYTES // 2
    for part in item.content:
        room -= part.ByteSize() + _PART_OVERHEAD
        if room < 0:
            break
        kept += 1
    del item.content[kept:]
    rest = item.content.add()
    rest.json.label = "content_too_large"
    rest.json.json = "{}"
    rest.external.CopyFrom(blobs.keep(everything, "application/x-protobuf; agentstream.v1.Item"))


def fill_native(
    native: blob_pb2.NativeMessage, message: bytes, blobs: Blobs, *, inline: bool
) -> None:
    """Put a native message in as `Event.raw` carries it: text, bytes where not UTF-8, or a blob."""
    if isinstance(message, Redacted):
        native.redactions.extend(message.redactions)
    if not inline:
        native.blob.CopyFrom(blobs.keep(message, "application/octet-stream"))
        return
    try:
        native.text = message.decode()
    except UnicodeDecodeError:
        native.data = message
