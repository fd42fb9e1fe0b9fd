"""Lines that make no event on purpose, with the reason. Pure.

The lists stand beside the code that leaves the lines out; here they are brought together.
"""

from agentstreamd.adapters.claude import native
from agentstreamd.adapters.claude.messages import IGNORED_DELTAS, IGNORED_EVENTS
from agentstreamd.adapters.claude.native import Line
from agentstreamd.adapters.claude.status import IGNORED_LINES, IGNORED_SYSTEM

IGNORED_HERE = {
    "control_cancel_request": "the request is answered already, or nobody knows it",
    "user/isReplay": "the echo of a prompt that the session has written itself",
    "content_block_start": "a further block of a message; its part begins with its first delta",
    "empty delta": "says nothing",
}
"""Kinds of lines that are left out in some cases only, with the reason in those."""


def ignored(message: bytes) -> str:
    """Why a line makes no event; empty for one that should make some."""
    try:
        line = native.decode(message)
    except native.Unreadable:
        return ""
    match line.type:
        case "stream_event":
            return _stream_event(line)
        case "system" if line.subtype == "status":
            status = native.fields(message).get("status")
            return IGNORED_SYSTEM.get(f"status/{'null' if status is None else status}", "")
        case "system":
            return IGNORED_SYSTEM.get(line.subtype or "", "")
        case "user" if line.is_replay:
            return IGNORED_HERE["user/isReplay"]
        case kind:
            return IGNORED_LINES.get(kind) or IGNORED_HERE.get(kind, "")


def _stream_event(line: Line) -> str:
    event = line.event
    if event is None:
        return ""
    if event.type != "content_block_delta" or event.delta is None:
        return IGNORED_EVENTS.get(event.type) or IGNORED_HERE.get(event.type, "")
    delta = event.delta
    if delta.type in ("text_delta", "thinking_delta", "input_json_delta"):
        said = delta.text or delta.thinking or delta.partial_json
        return "" if said else IGNORED_HERE["empty delta"]
    return IGNORED_DELTAS.get(delta.type, "")
