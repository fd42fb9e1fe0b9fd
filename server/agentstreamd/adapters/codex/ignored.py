"""Native messages that make no event of their own, on purpose, and why. Pure."""

from agentstreamd.adapters.codex import native
from agentstreamd.adapters.codex.native import as_object, text_in
from agentstreamd.adapters.codex.status import IGNORED

_METHODS = {
    "thread/tokenUsage/updated": "the figures are in the usage of turn_ended",
    "item/reasoning/summaryPartAdded": "the part comes with its first delta",
    "serverRequest/resolved": "the resolution is in the stream already",
    "item/commandExecution/outputDelta": "output after its turn comes whole when the command ends",
    "turn/diff/updated": "Codex repeats the same diff",
    "account/rateLimits/updated": "the same limits as before, or none",
    "thread/settings/updated": "of a sub-agent's thread",
    "thread/name/updated": "of a sub-agent's thread, or no name",
    "mcpServer/startupStatus/updated": "of a sub-agent's thread",
    "thread/started": "of a sub-agent's thread",
}
"""Kinds of messages that usually, or often, say nothing new."""

_WHOLE_WHEN_COMPLETED = frozenset({"userMessage", "hookPrompt"})


def ignored(line: bytes) -> str:
    """See `Adapter.ignored`."""
    try:
        message = native.decode(line)
    except native.Unreadable:
        return "" if line.strip() else "an empty line"
    if message.is_response:
        return "answers a request of the client" if message.id else ""
    if message.method in IGNORED:
        return "no part of the conversation"
    if message.method in _METHODS:
        return _METHODS[message.method]
    kind = text_in(as_object(message.params.get("item")), "type")
    if message.method == "item/started" and kind in _WHOLE_WHEN_COMPLETED:
        return "it is whole when it completes"
    if message.method == "item/completed" and kind == "userMessage":
        return "a message of the client's, which the session has written"
    turn = as_object(message.params.get("turn"))
    if message.method in ("turn/started", "turn/completed"):
        root = text_in(turn, "rootTurnId")
        # What the sub-agent did is shown; the end of its work is the end of the item that made it.
        return "a turn of a sub-agent's" if root and root != text_in(turn, "id") else ""
    return ""
