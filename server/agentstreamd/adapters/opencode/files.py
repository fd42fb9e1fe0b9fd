"""Files and pictures in tools' inputs, results and permissions."""

import base64
import binascii
from typing import Any

from agentstream.v1 import item_pb2
from agentstreamd.adapters.opencode.native import JsonObject, dict_in, list_in, text_in
from agentstreamd.model import file_ref_part, image_at_part, image_part, text_part

_PATCHED = {
    "add": item_pb2.FILE_ACTION_WRITE,
    "update": item_pb2.FILE_ACTION_PATCH,
    "delete": item_pb2.FILE_ACTION_DELETE,
    "move": item_pb2.FILE_ACTION_MOVE,
}
_BY_TOOL = {
    "read": item_pb2.FILE_ACTION_READ,
    "write": item_pb2.FILE_ACTION_WRITE,
    "edit": item_pb2.FILE_ACTION_PATCH,
}

CHANGING = frozenset({"write", "edit"})
"""Tools that change the one file they name."""


def call_files(tool: str, arguments: JsonObject) -> list[item_pb2.ContentPart]:
    """The files that a call names."""
    path = text_in(arguments, "filePath")
    return [file_ref_part(path, _BY_TOOL[tool])] if path and tool in _BY_TOOL else []


def result_files(
    tool: str, arguments: JsonObject, metadata: JsonObject
) -> list[item_pb2.ContentPart]:
    """The files that a successful call read or changed, with their diffs where they are said."""
    patched = _patched_files(metadata)
    if tool == "apply_patch" and patched:
        return patched
    files = call_files(tool, arguments)
    diff = text_in(metadata, "diff") or text_in(dict_in(metadata, "filediff"), "patch")
    if files and tool == "edit":
        files[0].file_ref.diff = diff
    return files


def permission_files(tool: str, metadata: JsonObject) -> list[item_pb2.FileRefPart]:
    """The files that a permission is about."""
    if patched := _patched_files(metadata):
        return [part.file_ref for part in patched]
    path = text_in(metadata, "filepath")
    if not path:
        return []
    action = item_pb2.FILE_ACTION_WRITE if tool == "write" else item_pb2.FILE_ACTION_PATCH
    return [file_ref_part(path, action, text_in(metadata, "diff")).file_ref]


def _patched_files(metadata: JsonObject) -> list[item_pb2.ContentPart]:
    parts = []
    for file in list_in(metadata, "files"):
        if not isinstance(file, dict):
            continue
        if path := text_in(file, "filePath") or text_in(file, "relativePath"):
            action = _PATCHED.get(text_in(file, "type"), item_pb2.FILE_ACTION_PATCH)
            diff = text_in(file, "patch") or text_in(file, "diff")
            parts.append(file_ref_part(path, action, diff, text_in(file, "movePath")))
    return parts


def file_part(native: JsonObject) -> item_pb2.ContentPart:
    """A native file part or attachment: a picture, or the name of a file."""
    mime, url = text_in(native, "mime"), text_in(native, "url")
    if mime.startswith("image/"):
        head, _, data = url.partition(",")
        if head.startswith("data:") and head.endswith(";base64"):
            try:
                return image_part(mime, base64.b64decode(data))
            except binascii.Error:
                pass
        if url and not url.startswith("data:"):
            return image_at_part(url=url, media_type=mime)
        return text_part(f"[{mime}]")
    name = text_in(native, "filename") or ("" if url.startswith("data:") else url)
    return file_ref_part(name, item_pb2.FILE_ACTION_READ) if name else text_part(f"[{mime}]")


def attachments(state: JsonObject) -> list[item_pb2.ContentPart]:
    """What a tool gave back besides text."""
    found: list[Any] = list_in(state, "attachments")
    return [file_part(file) for file in found if isinstance(file, dict)]
