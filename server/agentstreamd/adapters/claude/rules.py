"""Claude Code's permission updates: what they say, how long they hold, which one to grant."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.claude.files import FILE_CHANGE_TOOLS
from agentstreamd.adapters.claude.native import plain

_SCOPES = {
    "session": interaction_pb2.PERMISSION_SCOPE_SESSION,
    "cliArg": interaction_pb2.PERMISSION_SCOPE_SESSION,
    "localSettings": interaction_pb2.PERMISSION_SCOPE_PROJECT,
    "projectSettings": interaction_pb2.PERMISSION_SCOPE_PROJECT,
    "userSettings": interaction_pb2.PERMISSION_SCOPE_USER,
}

Update = dict[str, Any]
"""One entry of `permission_suggestions` or `updatedPermissions`."""


def scope_of(update: object) -> interaction_pb2.PermissionScope.ValueType:
    """How long an update holds."""
    destination = update.get("destination") if isinstance(update, Mapping) else None
    return _SCOPES.get(str(destination), interaction_pb2.PERMISSION_SCOPE_UNSPECIFIED)


def describe(update: object) -> str:
    """What an update allows, in words."""
    if not isinstance(update, Mapping):
        return ""
    match update.get("type"):
        case "addRules" | "replaceRules":
            rules = ", ".join(_rule(rule) for rule in _list(update.get("rules")))
            behavior = update.get("behavior")
            return rules if behavior in ("allow", None) else f"{behavior}: {rules}"
        case "addDirectories":
            return f"Work in {', '.join(str(d) for d in _list(update.get('directories')))}"
        case "setMode":
            return f"Permission mode {update.get('mode')}"
        case kind:
            return str(kind or "")


def session_rules(
    tool: str, arguments: Mapping[str, Any], suggestions: Sequence[str]
) -> list[Update]:
    """What "accept for the session" grants: never more than the like of what was asked for.

    That is the rules the CLI suggests, held for the session only. It is never the permission mode
    it suggests along with them, which would allow all edits and more. For a file change, where a
    mode is all it suggests, it is a rule for that one file. Empty where nothing fits.
    """
    granted = []
    for suggestion in suggestions:
        update = plain(suggestion.encode())
        if isinstance(update, dict) and is_allowing_rule(update):
            granted.append(for_session(update))
    if not granted and tool in FILE_CHANGE_TOOLS and tool != "NotebookEdit":
        path = arguments.get("file_path")
        if isinstance(path, str) and path.startswith("/") and not set(path) & set("*?[]{}()!\\"):
            rule = {"toolName": "Edit", "ruleContent": f"/{path}"}
            granted.append(for_session({"type": "addRules", "rules": [rule], "behavior": "allow"}))
    return granted


def is_allowing_rule(update: Mapping[str, Any]) -> bool:
    """The update adds rules that allow something."""
    return update.get("type") == "addRules" and update.get("behavior") == "allow"


def for_session(update: Mapping[str, Any]) -> Update:
    """The update, held for the session only."""
    return {**update, "destination": "session"}


def _rule(rule: object) -> str:
    if not isinstance(rule, Mapping):
        return ""
    content = rule.get("ruleContent")
    return f"{rule.get('toolName')}({content})" if content else str(rule.get("toolName"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
