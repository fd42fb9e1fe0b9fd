"""Parts of items from Codex's content: pictures, inputs, outputs of tools, file changes. Pure."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from agentstream.v1 import item_pb2
from agentstreamd.adapters.codex.native import (
    JsonObject,
    as_object,
    dump_text,
    objects_in,
    text_in,
)
from agentstreamd.model import file_ref_part, image_at_part, image_part, json_part, text_part


def user_parts(content: Iterable[JsonObject]) -> list[item_pb2.ContentPart]:
    """The parts of a user's message: `UserInput`s."""
    return [_user_part(part) for part in content]


def _user_part(part: JsonObject) -> item_pb2.ContentPart:
    match part.get("type"):
        case "text":
            return text_part(text_in(part, "text"))
        case "image" if text_in(part, "url"):
            return url_part(text_in(part, "url"))
        case "localImage":
            return image_at_part(path=text_in(part, "path"))
        case "mention" | "skill":
            return file_ref_part(text_in(part, "path"), item_pb2.FILE_ACTION_READ)
        case other:
            return json_part(str(other), dump_text(part))


def url_part(url: str) -> item_pb2.ContentPart:
    """A picture at a URL; of a data URL the picture itself."""
    head, _, body = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64"):
        try:
            return image_part(
                head.removeprefix("data:").removesuffix(";base64").split(";")[0],
                base64.b64decode(body, validate=True),
            )
        except (binascii.Error, ValueError):
            pass
    return image_at_part(url=url)


def tool_output(content: Iterable[Any]) -> tuple[str, list[item_pb2.ContentPart]]:
    """The text of a tool's content blocks, and parts for what is not text.

    Takes the blocks of MCP, of dynamic tools and of function call outputs.
    """
    texts: list[str] = []
    parts: list[item_pb2.ContentPart] = []
    for block in content:
        if not isinstance(block, dict):
            parts.append(json_part("content", dump_text(block)))
            continue
        match block.get("type"):
            case "text" | "inputText" | "input_text":
                texts.append(text_in(block, "text"))
            case "image" if text_in(block, "data"):
                media_type = text_in(block, "mimeType") or "image/png"
                parts.append(url_part(f"data:{media_type};base64,{text_in(block, 'data')}"))
            case "inputImage" if text_in(block, "imageUrl"):
                parts.append(url_part(text_in(block, "imageUrl")))
            case "input_image" if text_in(block, "image_url"):
                parts.append(url_part(text_in(block, "image_url")))
            case "resource" if text_in(as_object(block.get("resource")), "text"):
                texts.append(text_in(block["resource"], "text"))
            case other:
                parts.append(json_part(str(other or "content"), dump_text(block)))
    return "\n".join(texts), parts


def file_parts(item: JsonObject) -> list[item_pb2.ContentPart]:
    """A part with a diff for each change of a `fileChange` item that names its file."""
    return [_file_part(one) for one in objects_in(item, "changes") if text_in(one, "path")]


def _file_part(change: JsonObject) -> item_pb2.ContentPart:
    path, diff = text_in(change, "path"), text_in(change, "diff")
    kind = as_object(change.get("kind"))
    match kind.get("type"):
        # The whole content of the file stands where the diff should.
        case "add":
            return file_ref_part(path, item_pb2.FILE_ACTION_WRITE, _whole_diff(diff, "+"))
        case "delete":
            return file_ref_part(path, item_pb2.FILE_ACTION_DELETE, _whole_diff(diff, "-"))
        case _ if text_in(kind, "move_path"):
            moved = text_in(kind, "move_path")
            return file_ref_part(path, item_pb2.FILE_ACTION_MOVE, diff, moved)
        case _:
            return file_ref_part(path, item_pb2.FILE_ACTION_PATCH, diff)


def _whole_diff(content: str, sign: str) -> str:
    """The unified diff, without file headers, of a file that appears or disappears."""
    if not content:
        return ""
    lines = content.split("\n")
    ends = lines[-1] == ""
    if ends:
        lines.pop()
    count = f"1,{len(lines)}" if len(lines) > 1 else "1"
    head = f"@@ -0,0 +{count} @@" if sign == "+" else f"@@ -{count} +0,0 @@"
    body = "\n".join(f"{sign}{line}" for line in lines)
    return f"{head}\n{body}\n" + ("" if ends else "\\ No newline at end of file\n")
