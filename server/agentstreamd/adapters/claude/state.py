"""What outlives a CLI process: the session's own permissions, and whether there is a conversation.

Claude Code forgets rules of destination `session` when its process ends. The driver keeps them, as
JSON through `Sink.save_state`, and gives them back to the next process.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MAX_STATE_BYTES = 60 * 1024
"""Below the 64 KiB a driver may save; the oldest rules are dropped (and asked for again) first."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The saved state of a driver.

    Attributes:
        conversation: A turn has ended: the CLI has a transcript that can be resumed.
        model: What the first process said it runs, for sessions that name no model: the CLI's
            default changes between versions and on resume.
        allow: Accepted rules in settings notation, such as `Bash(npm test)`, oldest first.
        deny: The like, for rules that forbid.
        ask: The like, for rules that ask.
        directories: Directories that were added to the workspace.
    """

    conversation: bool = False
    model: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

    @classmethod
    def load(cls, saved: bytes) -> "Remembered":
        """Read a saved state; one that cannot be read counts as none."""
        try:
            return msgspec.json.decode(saved, type=cls) if saved else cls()
        except msgspec.MsgspecError:
            return cls()

    def dump(self) -> bytes:
        """The state as it is saved, at most `MAX_STATE_BYTES`."""
        kept = self
        while len(dumped := msgspec.json.encode(kept)) > MAX_STATE_BYTES and kept.allow:
            kept = kept.replaced(allow=kept.allow[max(1, len(kept.allow) // 8) :])
        return dumped

    def replaced(self, **fields: Any) -> "Remembered":
        """A copy with other values of these fields."""
        return msgspec.structs.replace(self, **fields)

    def granted(self, updates: Iterable[Mapping[str, Any]]) -> "Remembered":
        """Add what the `updatedPermissions` of an answer grant for the session."""
        grown = self
        for update in updates:
            if isinstance(update, Mapping) and update.get("destination") == "session":
                field, added = _grant(update)
                if field:
                    merged = tuple(dict.fromkeys((*getattr(grown, field), *added)))
                    grown = grown.replaced(**{field: merged})
        return grown


def _grant(update: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The field an update adds to (empty for one that is not kept), and what it adds."""
    kind, behavior = update.get("type"), update.get("behavior")
    if kind == "addDirectories":
        named = update.get("directories") or ()
        return "directories", [name for name in named if isinstance(name, str)]
    if kind == "addRules" and behavior in ("allow", "deny", "ask"):
        rules = [rule for rule in update.get("rules") or () if isinstance(rule, Mapping)]
        return behavior, [
            rule_text(rule["toolName"], rule.get("ruleContent") or "")
            for rule in rules
            if isinstance(rule.get("toolName"), str)
        ]
    return "", []


def rule_text(tool_name: str, content: str) -> str:
    """A permission rule as settings files write it."""
    if not content:
        return tool_name
    escaped = content.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"{tool_name}({escaped})"
