"""Messages of clients: checking them, and what of them the stream shows."""

import json
import os

from agentstream.v1 import item_pb2, service_pb2
from agentstreamd.model import file_ref_part, image_at_part, image_part, text_part
from agentstreamd.sessions.checks import check_word

MAX_IMAGE_BYTES = 20 * 1024 * 1024
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_NAME_CHARACTERS = 256
PREVIEW_CHARACTERS = 200
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def check_message(request: service_pb2.SendMessageRequest) -> list[tuple[str, str]]:
    """What is wrong with a message, whatever the agent can do: field paths and descriptions."""
    found: list[tuple[str, str]] = []
    if not request.parts:
        found.append(("parts", "at least one part is required"))
    if len(request.client_message_id) > 128:
        found.append(("client_message_id", "is longer than 128 characters"))
    if request.when_busy not in service_pb2.WhenBusy.values():
        found.append(("when_busy", "is not a known value"))
    for index, part in enumerate(request.parts):
        found.extend((f"parts[{index}]{path}", text) for path, text in _check_part(part))
    for field in ("model", "effort"):
        value = getattr(request, field)
        found.extend(check_word(field, value))
        if value and request.when_busy == service_pb2.WHEN_BUSY_STEER:
            found.append((field, "is that of the running turn, which the message is put into"))
    if request.command and [part.WhichOneof("part") for part in request.parts] != ["text"]:
        found.append(("parts", "of a command must be exactly one text"))
    return found


def _check_part(part: service_pb2.InputPart) -> list[tuple[str, str]]:
    match part.WhichOneof("part"):
        case "text":
            return [] if part.text.strip() else [(".text", "is empty")]
        case "image":
            return _check_image(part.image)
        case "file":
            found = []
            if not part.file.name:
                found.append((".file.name", "is required"))
            elif len(part.file.name) > MAX_NAME_CHARACTERS:
                found.append((".file.name", f"is longer than {MAX_NAME_CHARACTERS} characters"))
            if not part.file.media_type:
                found.append((".file.media_type", "is required"))
            if len(part.file.data) > MAX_FILE_BYTES:
                found.append((".file.data", "is larger than 32 MiB"))
            return found
        case _:
            return [("", "holds nothing")]


def _check_image(image: service_pb2.InputImage) -> list[tuple[str, str]]:
    found = []
    local = image.WhichOneof("source") == "path"
    if image.media_type not in IMAGE_TYPES and not (local and not image.media_type):
        found.append((".image.media_type", f"must be one of {', '.join(IMAGE_TYPES)}"))
    if local:
        if not os.path.isabs(image.path) or "\0" in image.path:
            found.append((".image.path", "must be an absolute path"))
    elif not image.data:
        found.append((".image.data", "is required"))
    elif len(image.data) > MAX_IMAGE_BYTES:
        found.append((".image.data", "is larger than 20 MiB"))
    return found


def has_part(request: service_pb2.SendMessageRequest, which: str) -> bool:
    """Whether the message has a part of this kind."""
    return any(part.WhichOneof("part") == which for part in request.parts)


def preview(parts: "list[service_pb2.InputPart] | tuple[service_pb2.InputPart, ...]") -> str:
    """The beginning of a message's text."""
    text = " ".join(part.text for part in parts if part.WhichOneof("part") == "text")
    return text[:PREVIEW_CHARACTERS]


def message_id_json(client_message_id: str, message_id: str) -> str:
    """The ids of a message, as metadata of its item."""
    known = {"client_message_id": client_message_id, "message_id": message_id}
    return json.dumps({name: value for name, value in known.items() if value})


def user_item(item_id: str, parts: "tuple[service_pb2.InputPart, ...]") -> item_pb2.Item:
    """The message as an item of the stream."""
    item = item_pb2.Item(
        item_id=item_id, kind=item_pb2.ITEM_KIND_MESSAGE, role=item_pb2.ITEM_ROLE_USER
    )
    for part in parts:
        match part.WhichOneof("part"):
            case "image" if part.image.path:
                image = image_at_part(path=part.image.path, media_type=part.image.media_type)
                item.content.append(image)
            case "image":
                item.content.append(image_part(part.image.media_type, part.image.data))
            case "file":
                item.content.append(file_ref_part(part.file.name, item_pb2.FILE_ACTION_READ))
            case _:
                item.content.append(text_part(part.text))
    return item
