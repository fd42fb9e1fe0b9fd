"""What Amp's tools do: which run commands, which change files and which, with diffs.

Names of tools differ between Amp's versions; what is not named here is a tool of its own kind and
is treated with the caution due to one.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from agentstream.v1 import item_pb2

COMMAND_TOOLS = frozenset({"Bash", "shell_command"})
"""Tools that run a shell command."""

FILE_CHANGE_TOOLS = frozenset(
    {"create_file", "edit_file", "delete_file", "undo_edit", "format_file", "apply_patch"}
)
"""Tools that change files."""

NETWORK_TOOLS = frozenset({"read_web_page", "web_search"})
"""Tools that reach the network."""

SUB_AGENT_TOOLS = frozenset({"Task", "finder", "oracle", "librarian"})
"""Tools that are sub-agents: what they do is not in the stream, what they ask for is."""

READING_TOOLS = frozenset(
    {
        *("Read", "Grep", "glob", "list_directory", "look_at", "find_thread", "read_thread"),
        *("skill", "mermaid", "chart", "task_list", "shell_command_status"),
        *SUB_AGENT_TOOLS,
    }
)
"""Tools that change nothing by themselves (what a sub-agent does asks by itself)."""

MAX_COMPARED_LINES = 4000
"""Longer texts are not compared line by line, which takes quadratic time."""

_ACTIONS = {
    "Read": item_pb2.FILE_ACTION_READ,
    "look_at": item_pb2.FILE_ACTION_READ,
    "create_file": item_pb2.FILE_ACTION_WRITE,
    "edit_file": item_pb2.FILE_ACTION_PATCH,
    "undo_edit": item_pb2.FILE_ACTION_PATCH,
    "format_file": item_pb2.FILE_ACTION_PATCH,
    "delete_file": item_pb2.FILE_ACTION_DELETE,
}

_PATCHED = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+?)[ \t]*$", re.MULTILINE)
_PATCH_ACTIONS = {
    "Add": item_pb2.FILE_ACTION_WRITE,
    "Update": item_pb2.FILE_ACTION_PATCH,
    "Delete": item_pb2.FILE_ACTION_DELETE,
}
_MOVED = re.compile(r"^\*\*\* Move to: (.+?)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)\n?```\s*\Z", re.DOTALL)


def command_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """The command line a call would run; empty for none."""
    if tool not in COMMAND_TOOLS:
        return ""
    for name in ("cmd", "command"):
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return " ".join(str(word) for word in value)
    return ""


def directory_of(arguments: Mapping[str, Any]) -> str:
    """Where a command would run, as far as the call says."""
    for name in ("cwd", "workdir"):
        if isinstance(value := arguments.get(name), str):
            return value
    return ""


def called_files(tool: str, arguments: Mapping[str, Any]) -> list[item_pb2.FileRefPart]:
    """The files a call names, without diffs."""
    if tool == "apply_patch":
        return _patched_files(_patch(arguments))
    path = arguments.get("path")
    if tool not in _ACTIONS or not isinstance(path, str) or not path:
        return []
    return [item_pb2.FileRefPart(path=path, action=_ACTIONS[tool])]


def wanted_files(tool: str, arguments: Mapping[str, Any]) -> list[item_pb2.FileRefPart]:
    """The files a call would change, with the diffs that follow from its arguments.

    The files themselves are not looked at: line numbers count within the text that is replaced, and
    a file that is written whole shows as added lines.
    """
    if tool not in FILE_CHANGE_TOOLS:
        return []
    files = called_files(tool, arguments)
    for file in files:
        file.diff = _wanted_diff(tool, arguments, single=len(files) == 1)
    return files


def changed_files(tool: str, arguments: Mapping[str, Any], diff: str) -> list[item_pb2.FileRefPart]:
    """The files a call has read or changed; `diff` is what the result says, empty for nothing."""
    files = called_files(tool, arguments)
    for file in files:
        if file.action == item_pb2.FILE_ACTION_READ:
            continue
        single = len(files) == 1
        file.diff = (diff if single else "") or _wanted_diff(tool, arguments, single=single)
    return files


def as_parts(files: list[item_pb2.FileRefPart]) -> list[item_pb2.ContentPart]:
    """Content parts of files."""
    return [item_pb2.ContentPart(file_ref=file) for file in files]


def unfenced(diff: str) -> str:
    """A diff without the Markdown fence around it, ended by a newline."""
    match = _FENCE.match(diff)
    body = match.group(1) if match else diff
    return body if not body or body.endswith("\n") else f"{body}\n"


def _patch(arguments: Mapping[str, Any]) -> str:
    for name in ("patchText", "patch", "input"):
        if isinstance(value := arguments.get(name), str):
            return value
    return ""


def _patched_files(patch: str) -> list[item_pb2.FileRefPart]:
    found = list(_PATCHED.finditer(patch))
    files = []
    for index, match in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(patch)
        file = item_pb2.FileRefPart(path=match.group(2), action=_PATCH_ACTIONS[match.group(1)])
        if moved := _MOVED.search(patch, match.end(), end):
            file.action, file.new_path = item_pb2.FILE_ACTION_MOVE, moved.group(1)
        files.append(file)
    return files


def _wanted_diff(tool: str, arguments: Mapping[str, Any], *, single: bool) -> str:
    match tool:
        case "create_file":
            return _added(arguments.get("content"))
        case "edit_file":
            return _replaced(arguments.get("old_str"), arguments.get("new_str"))
        case "apply_patch" if single:
            return _patch(arguments)
        case _:
            return ""


def _replaced(before: object, after: object) -> str:
    old, new = _lines(before), _lines(after)
    if len(old) + len(new) > MAX_COMPARED_LINES:
        head = f"@@ -1,{len(old)} +1,{len(new)} @@\n"
        return head + "".join(f"-{x}\n" for x in old) + "".join(f"+{x}\n" for x in new)
    lines = list(difflib.unified_diff(old, new, lineterm=""))
    return "".join(f"{line}\n" for line in lines[2:])  # the first two name the files


def _added(content: object) -> str:
    lines = _lines(content)
    if not lines:
        return ""
    return f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


def _lines(content: object) -> list[str]:
    """Lines as diffs count them: only a newline ends one."""
    lines = content.split("\n") if isinstance(content, str) else []
    return lines[:-1] if lines and not lines[-1] else lines
