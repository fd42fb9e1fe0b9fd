"""What a session allows without asking: permission modes and remembered acceptances. Pure.

| mode | without asking | asked for | refused |
|---|---|---|---|
| default | reading tools, sub-agents | everything else | |
| accept edits | and file changes inside the working directory | everything else | |
| plan | reading tools, sub-agents | the network | everything else |
| bypass | everything | | |

Files under `.amp` and `.git` always count as outside the working directory: settings in the first
decide what Amp asks for, hooks in the second run as programs.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.amp.asks import Ask
from agentstreamd.adapters.amp.files import (
    FILE_CHANGE_TOOLS,
    NETWORK_TOOLS,
    READING_TOOLS,
    called_files,
    command_of,
    directory_of,
)

PLANNING = "The session is in plan mode: only look and plan, change nothing."
"""Said to the model where plan mode refuses a tool."""

MAX_GRANTS = 500
"""So many acceptances are remembered; the oldest are forgotten (and asked for again) first."""

_GUARDED = frozenset({".amp", ".git"})


class Verdict(msgspec.Struct, frozen=True):
    """A decision on a call; `message` is for the model, with a rejection."""

    allow: bool
    message: str = ""


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver saves.

    Attributes:
        conversation: A turn has ended: there is a thread that must not be begun anew.
        grants: What was accepted for the session, as `grant_key` names it, oldest first.
    """

    conversation: bool = False
    grants: tuple[str, ...] = ()

    @classmethod
    def load(cls, saved: bytes) -> "Remembered":
        """Read a saved state; one that can't be read counts as none."""
        try:
            return msgspec.json.decode(saved, type=cls) if saved else cls()
        except msgspec.MsgspecError:
            return cls()

    def dump(self) -> bytes:
        """The state as it is saved; far below the 64 KiB it may have."""
        return msgspec.json.encode(self)

    def granted(self, key: str) -> "Remembered":
        """With one more acceptance."""
        if key in self.grants:
            return self
        return msgspec.structs.replace(self, grants=(*self.grants, key)[-MAX_GRANTS:])


def decide(
    mode: agent_pb2.PermissionMode.ValueType, ask: Ask, directory: str, remembered: Remembered
) -> Verdict | None:
    """Decide without asking anybody; None where somebody must be asked."""
    if mode == agent_pb2.PERMISSION_MODE_BYPASS or ask.tool in READING_TOOLS:
        return Verdict(True)
    if mode == agent_pb2.PERMISSION_MODE_PLAN:
        return None if ask.tool in NETWORK_TOOLS else Verdict(False, PLANNING)
    if grant_key(ask, directory) in remembered.grants:
        return Verdict(True)
    if mode == agent_pb2.PERMISSION_MODE_ACCEPT_EDITS and _changes_inside(ask, directory):
        return Verdict(True)
    return None


def grant_key(ask: Ask, directory: str) -> str:
    """What accepting for the session accepts.

    A command: the same one in the same place. A file change: all by that tool inside the working
    directory; outside of it, of the same files. Anything else: the tool.
    """
    arguments = _mapping(ask.arguments)
    if command := command_of(ask.tool, arguments):
        where = directory_of(arguments) or ask.cwd
        return f"command:{ask.tool}:{_digest(where, command)}"
    if ask.tool in FILE_CHANGE_TOOLS:
        if _changes_inside(ask, directory):
            return f"files:{ask.tool}"
        paths = [file.path for file in called_files(ask.tool, arguments)]
        return f"file:{ask.tool}:{_digest(*paths)}" if paths else _exact(ask)
    if arguments and ask.tool in ("Bash", "shell_command"):
        return _exact(ask)
    return f"tool:{_digest(ask.tool)}"


def _changes_inside(ask: Ask, directory: str) -> bool:
    """Whether a call changes only files inside the working directory, links followed."""
    if ask.tool not in FILE_CHANGE_TOOLS:
        return False
    files = called_files(ask.tool, _mapping(ask.arguments))
    paths = [path for file in files for path in (file.path, file.new_path) if path]
    root = os.path.realpath(directory)
    return bool(paths) and all(_is_inside(path, root) for path in paths)


def _is_inside(path: str, root: str) -> bool:
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath((root, real)) != root or real == root:
        return False
    return _GUARDED.isdisjoint(os.path.relpath(real, root).split(os.sep))


def _exact(ask: Ask) -> str:
    return f"exact:{ask.tool}:{_digest(ask.arguments_json)}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:32]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
