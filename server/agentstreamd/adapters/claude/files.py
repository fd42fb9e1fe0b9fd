"""Files that Claude Code's tools read and change, with unified diffs of the changes."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from agentstream.v1 import item_pb2

FILE_CHANGE_TOOLS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
"""Tools that change files."""

MAX_COMPARED_LINES = 4000
"""Longer texts are not compared line by line, which takes quadratic time: the diff then removes all
of the old and adds all of the new.
"""

_ACTIONS = {
    "Read": item_pb2.FILE_ACTION_READ,
    "NotebookRead": item_pb2.FILE_ACTION_READ,
    "Write": item_pb2.FILE_ACTION_WRITE,
    "Edit": item_pb2.FILE_ACTION_PATCH,
    "MultiEdit": item_pb2.FILE_ACTION_PATCH,
    "NotebookEdit": item_pb2.FILE_ACTION_PATCH,
}


def called_files(tool: str, arguments: Mapping[str, Any]) -> list[item_pb2.FileRefPart]:
    """The file a call names, without diff."""
    path = _path(arguments)
    if tool not in _ACTIONS or not path:
        return []
    return [item_pb2.FileRefPart(path=path, action=_ACTIONS[tool])]


def wanted_files(tool: str, arguments: Mapping[str, Any]) -> list[item_pb2.FileRefPart]:
    """The file a call would change, with the diff that follows from its arguments.

    The file itself is not looked at: line numbers count within the text that is replaced, and a
    file that is written whole shows as added lines.
    """
    if tool not in FILE_CHANGE_TOOLS:
        return []
    files = called_files(tool, arguments)
    for file in files:
        file.diff = _wanted_diff(tool, arguments)
    return files


def changed_files(
    tool: str, arguments: Mapping[str, Any], result: object
) -> list[item_pb2.FileRefPart]:
    """The file a call has read or changed, from its structured result where there is one."""
    said = result if isinstance(result, Mapping) else {}
    files = called_files(tool, arguments)
    if not files:
        path = _path(said)
        if not path or not (said.get("structuredPatch") or said.get("gitDiff")):
            return []
        # A tool this code does not know, which says that it changed a file.
        files = [item_pb2.FileRefPart(path=path, action=item_pb2.FILE_ACTION_PATCH)]
    for file in files:
        if file.action == item_pb2.FILE_ACTION_READ:
            continue
        file.diff = _said_diff(said) or _wanted_diff(tool, arguments)
    return files


def as_parts(files: Iterable[item_pb2.FileRefPart]) -> list[item_pb2.ContentPart]:
    """Content parts of files."""
    return [item_pb2.ContentPart(file_ref=file) for file in files]


def _path(source: Mapping[str, Any]) -> str:
    for name in ("file_path", "notebook_path", "filePath"):
        if isinstance(path := source.get(name), str) and path:
            return path
    return ""


def _said_diff(result: Mapping[str, Any]) -> str:
    hunks = [_hunk(hunk) for hunk in _list(result.get("structuredPatch"))]
    if diff := "".join(hunks):
        return diff
    if isinstance(git := result.get("gitDiff"), Mapping) and isinstance(git.get("patch"), str):
        return str(git["patch"])
    if result.get("type") == "create" and isinstance(result.get("content"), str):
        return _added(result["content"])
    return ""


def _hunk(hunk: object) -> str:
    if not isinstance(hunk, Mapping):
        return ""
    lines = [line for line in _list(hunk.get("lines")) if isinstance(line, str)]
    start, length = hunk.get("oldStart", 0), hunk.get("oldLines", 0)
    new_start, new_length = hunk.get("newStart", 0), hunk.get("newLines", 0)
    head = f"@@ -{start},{length} +{new_start},{new_length} @@\n"
    return head + "".join(f"{line}\n" for line in lines) if lines else ""


def _wanted_diff(tool: str, arguments: Mapping[str, Any]) -> str:
    match tool:
        case "Write":
            return _added(arguments.get("content"))
        case "Edit":
            return _replaced(arguments)
        case "MultiEdit":
            edits = _list(arguments.get("edits"))
            return "".join(_replaced(edit) for edit in edits if isinstance(edit, Mapping))
        case "NotebookEdit":
            return _added(arguments.get("new_source"))
        case _:
            return ""


def _replaced(edit: Mapping[str, Any]) -> str:
    old, new = _lines(edit.get("old_string")), _lines(edit.get("new_string"))
    if len(old) + len(new) > MAX_COMPARED_LINES:
        head = f"@@ -1,{len(old)} +1,{len(new)} @@\n"
        return head + "".join(f"-{x}\n" for x in old) + "".join(f"+{x}\n" for x in new)
    lines = list(difflib.unified_diff(old, new, lineterm=""))
    return "".join(f"{line}\n" for line in lines[2:])  # the first two name the files


def _added(text: object) -> str:
    lines = _lines(text)
    if not lines:
        return ""
    return f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


def _lines(text: object) -> list[str]:
    """Lines as diffs count them: only a newline ends one."""
    lines = text.split("\n") if isinstance(text, str) else []
    return lines[:-1] if lines and not lines[-1] else lines


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
