"""Keeping events within their size: what is too large moves into a blob beside the log."""

import hashlib
from dataclasses import dataclass

from agentstream.v1 import blob_pb2, event_pb2, item_pb2
from agentstreamd.model import Redacted

MAX_EVENT_BYTES = 1024 * 1024
"""No serialized event (without `raw`) is larger than this."""

ENVELOPE_BYTES = 4 * 1024
"""Room for what is added to a payload: ids, time, sequence."""

HEAD_CHARACTERS = 32 * 1024
"""How much of a text that moved into a blob stays in the event, at its beginning."""

TAIL_CHARACTERS = 8 * 1024
"""How much of it stays, at its end, in `BlobRef.tail`."""

MAX_DELTA_CHARACTERS = 128 * 1024
"""Longer deltas are split; a character takes up to 4 bytes."""

RAW_INLINE_BYTES = 128 * 1024
"""A native message above this is kept as a blob."""

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_DIFF = "text/x-diff; charset=utf-8"


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

    def keep_text(self, text: str, media_type: str) -> tuple[str, blob_pb2.BlobRef]:
        """Put a text aside; returns its beginning and the reference, which has its end."""
        reference = self.keep(text.encode(), media_type, text[-TAIL_CHARACTERS:])
        return text[:HEAD_CHARACTERS], reference


def _shrink_part(part: item_pb2.ContentPart, blobs: Blobs) -> None:
    match part.WhichOneof("part"):
        case "text" if len(part.text.text) > HEAD_CHARACTERS:
            part.text.text, reference = blobs.keep_text(part.text.text, _TEXT)
            part.external.CopyFrom(reference)
        case "reasoning" if len(part.reasoning.text) > HEAD_CHARACTERS:
            part.reasoning.text, reference = blobs.keep_text(part.reasoning.text, _TEXT)
            part.external.CopyFrom(reference)
        case "json" if len(part.json.json) > HEAD_CHARACTERS:
            part.json.json, reference = blobs.keep_text(part.json.json, _JSON)
            part.external.CopyFrom(reference)
        case "tool_call" if len(part.tool_call.arguments_json) > HEAD_CHARACTERS:
            part.tool_call.arguments_json, reference = blobs.keep_text(
                part.tool_call.arguments_json, _JSON
            )
            part.external.CopyFrom(reference)
        case "tool_result" if len(part.tool_result.output) > HEAD_CHARACTERS:
            part.tool_result.output, reference = blobs.keep_text(part.tool_result.output, _TEXT)
            part.external.CopyFrom(reference)
        case "file_ref":
            _shrink_file(part.file_ref, blobs)
        case "image" if len(part.image.data) > HEAD_CHARACTERS:
            part.external.CopyFrom(blobs.keep(part.image.data, part.image.media_type))
            part.image.ClearField("source")
        case "status" if len(part.status.detail) > HEAD_CHARACTERS:
            part.status.detail, reference = blobs.keep_text(part.status.detail, _TEXT)
            part.external.CopyFrom(reference)
        case _:
            pass


def _shrink_file(file: item_pb2.FileRefPart, blobs: Blobs) -> None:
    if len(file.diff) > HEAD_CHARACTERS:
        file.diff, reference = blobs.keep_text(file.diff, _DIFF)
        file.diff_external.CopyFrom(reference)


def _shrink_item(item: item_pb2.Item, blobs: Blobs) -> None:
    for part in item.content:
        _shrink_part(part, blobs)
    if item.ByteSize() <= MAX_EVENT_BYTES - ENVELOPE_BYTES:
        return
    # Very many parts, each small: keep those that fit, and the whole list as one blob.
    everything = item.SerializeToString()
    kept: list[item_pb2.ContentPart] = []
    room = MAX_EVENT_BYTES // 2
    for part in item.content:
        room -= part.ByteSize()
        if room < 0:
            break
        kept.append(part)
    del item.content[len(kept) :]
    rest = item.content.add()
    rest.json.label = "content_too_large"
    rest.json.json = "{}"
    rest.external.CopyFrom(blobs.keep(everything, "application/x-protobuf; agentstream.v1.Item"))


def shrink(event: event_pb2.Event, blobs: Blobs) -> None:
    """Move what is large in `event` into blobs, so that it fits `MAX_EVENT_BYTES`."""
    if len(event.metadata_json) > HEAD_CHARACTERS:
        # The native message it was taken from is kept whole as `raw`.
        event.metadata_json = '{"truncated":true}'
    match event.WhichOneof("payload"):
        case "item_started":
            _shrink_item(event.item_started.item, blobs)
        case "item_completed":
            _shrink_item(event.item_completed.item, blobs)
        case "permission_requested":
            request = event.permission_requested
            if len(request.arguments_json) > HEAD_CHARACTERS:
                request.arguments_json, reference = blobs.keep_text(request.arguments_json, _JSON)
                request.arguments_external.CopyFrom(reference)
            for file in request.files:
                _shrink_file(file, blobs)
            request.command = request.command[:HEAD_CHARACTERS]
            request.plan = request.plan[: 2 * HEAD_CHARACTERS]
            request.reason = request.reason[:HEAD_CHARACTERS]
            if event.ByteSize() > MAX_EVENT_BYTES - ENVELOPE_BYTES:
                del request.files[16:]
                del request.suggestions[:]
        case "permission_resolved":
            answer = event.permission_resolved.answer
            answer.message = answer.message[:HEAD_CHARACTERS]
            if len(answer.updated_arguments_json) > HEAD_CHARACTERS:
                answer.ClearField("updated_arguments_json")
        case "error":
            event.error.message = event.error.message[:HEAD_CHARACTERS]
        case "turn_ended":
            event.turn_ended.error.message = event.turn_ended.error.message[:HEAD_CHARACTERS]
        case _:
            pass


def encode_native(message: bytes, blobs: Blobs, *, inline: bool) -> blob_pb2.NativeMessage:
    """A native message as `Event.raw` carries it: text, bytes where not UTF-8, or a blob."""
    native = blob_pb2.NativeMessage()
    if isinstance(message, Redacted):
        native.redactions.extend(message.redactions)
    if not inline:
        native.blob.CopyFrom(blobs.keep(message, "application/octet-stream"))
        return native
    try:
        native.text = message.decode()
    except UnicodeDecodeError:
        native.data = message
    return native
