"""The script of `AGENT=amp make demo`: a command that needs permission, and an edit that does.

Amp asks no questions, so the visitor of the pond is not up to the person.
"""

from pathlib import Path

from tests.support.anthropic_server import AnthropicReply, after, reply, text, thinking, tool_use
from tests.support.demo_script import FILE

PROMPT = f"Please write a haiku about a silent pond to {FILE}, then let a frog into it."

_LINE = "A splash, somewhere in the dark"
_POEM = f"The old silent pond\\n{_LINE}\\nSilence once again\\n"


def demo_script(workspace: Path) -> list[AnthropicReply]:
    """The replies, for an agent in the empty directory `workspace`."""
    edit = {
        "path": str(workspace / FILE),
        "old_str": _LINE,
        "new_str": "A frog jumps into the pond",
    }
    return [
        reply(text(f"Done: {FILE} has its poem."), when=after("edit_file"), repeat=True),
        reply(
            text("It is there. Now the frog:"),
            tool_use("edit_file", edit),
            when=after("Bash"),
            repeat=True,
        ),
        reply(
            thinking("They want a poem in a file. I'll write it, then edit it."),
            text("I'll write a first version, for which I need your permission."),
            tool_use("Bash", {"cmd": f"printf '{_POEM}' > {FILE}"}),
            repeat=True,
        ),
    ]
