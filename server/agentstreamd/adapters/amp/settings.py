"""The settings files of Amp: the session's own, the user's, and those of the workspace.

The session's file takes the place of the user's, so what the user set is copied into it, but for
permissions: the user's rejections are kept, everything else is asked through the session. A
workspace's own settings (`.amp/settings.json`, in the working directory or above it) win over both,
and so could switch every question off; they are checked before each start.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.amp.files import READING_TOOLS

_log = logging.getLogger(__name__)

PERMISSION_SETTINGS = (
    "amp.permissions",
    "amp.dangerouslyAllowAll",
    "amp.commands.allowlist",
    "amp.guardedFiles.allowlist",
    "amp.mcpPermissions",
)
"""Settings that decide what Amp asks for."""

_MAX_BYTES = 2**20

Rule = Mapping[str, Any]


def session_settings(
    user: Mapping[str, Any],
    *,
    mode: agent_pb2.PermissionMode.ValueType,
    helper: Path,
    rules: Sequence[Rule] = (),
) -> dict[str, Any]:
    """The settings of a session. `rules` come first, with `ask` made a question to us.

    No rule says `ask`: Amp has nobody to ask then, and hangs, ends the run or rejects.
    """
    delegate = {"action": "delegate", "to": str(helper)}
    first: list[Rule] = [_asked_here(rule, delegate) for rule in rules]
    own = user.get("amp.permissions")
    kept = own if isinstance(own, list) else []
    rejections = [r for r in kept if isinstance(r, dict) and r.get("action") == "reject"]
    reading = [{"tool": tool, "action": "allow"} for tool in sorted(READING_TOOLS)]
    made = {name: value for name, value in user.items() if name not in PERMISSION_SETTINGS}
    made["amp.permissions"] = [*rejections, *first, *reading, {"tool": "*", **delegate}]
    made["amp.dangerouslyAllowAll"] = mode == agent_pb2.PERMISSION_MODE_BYPASS
    made.setdefault("amp.updates.mode", "disabled")
    return made


def helper_script(python: str, program: Path, private_file: Path) -> str:
    """The program of a session that Amp runs to ask. Amp gives it no arguments.

    It runs with Amp's whole environment; the API key is taken out of it first.
    """
    command = " ".join(_quoted(word) for word in (python, "-I", "-S", "-E", program, private_file))
    # exec: whoever ends the program ends the one that asks, which withdraws the question.
    return f"#!/bin/sh\nunset AMP_API_KEY\nexec {command}\n"


def user_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """The user's settings; empty where there are none. One that can't be read is logged."""
    home = environment.get("HOME", "")
    default = os.path.join(home, ".config", "amp", "settings.json") if home else ""
    path = environment.get("AMP_SETTINGS_FILE") or default
    if not path or not os.path.exists(path):
        return {}
    settings = _read(Path(path))
    if settings is None:
        _log.warning("Amp's settings in %s can't be read as JSON and are not used", path)
    return settings or {}


def workspace_problem(directory: str) -> str:
    """Why the workspace's own settings must not be used; empty when there is nothing wrong."""
    start = Path(directory)
    for folder in (start, *start.parents):
        for name in ("settings.json", "settings.jsonc"):
            path = folder / ".amp" / name
            if not path.exists():
                continue
            settings = _read(path)
            if settings is None:
                return f"{path} can't be read as JSON"
            if found := [name for name in PERMISSION_SETTINGS if name in settings]:
                return f"{path} sets {', '.join(found)}"
    return ""


def _asked_here(rule: Rule, delegate: Rule) -> Rule:
    if rule.get("action") != "ask":
        return rule
    return {**{key: value for key, value in rule.items() if key != "message"}, **delegate}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _quoted(word: object) -> str:
    return "'" + str(word).replace("'", "'\\''") + "'"
