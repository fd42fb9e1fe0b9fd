"""What Amp says that makes no event of its own, on purpose."""

from agentstreamd.adapters.amp import errors, native
from agentstreamd.adapters.amp.content import blocks_of

IGNORED = {
    "result/success": "comes once for each process, after the turns ended with the stop reasons "
    "of the assistant; its text repeats the last message",
    "result/cancelled": "the end of the process after a signal, where no turn was running",
    "user/echo": "the echo of a prompt that the stream has, or of a message without content that "
    "cut a turn",
    "done": "a second one: the session has ended with the first",
}
"""Kinds of messages, with the reason."""


def ignored(message: bytes) -> str:
    """See `Adapter.ignored`."""
    try:
        line = native.members(message)
    except native.Unreadable:
        return ""
    match native.text(line.get("type")):
        case "done":
            return IGNORED["done"]
        case "result" if native.text(line.get("error")).startswith(errors.CANCELLED):
            return IGNORED["result/cancelled"]
        case "result" if native.plain(line.get("is_error")) is not True:
            return IGNORED["result/success"]
        case "user":
            blocks = blocks_of(native.fields(line.get("message")).get("content"))
            if all(native.text(block.get("type")) != "tool_result" for block in blocks):
                return IGNORED["user/echo"]
    return ""
