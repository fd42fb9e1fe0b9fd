"""Commands of Codex that a message can be: requests other than `turn/start` that begin a turn."""

from typing import Any

from agentstreamd.adapters.base import CapabilityNotSupported, Prompt

COMMANDS = {
    "/compact": "Summarize the conversation, to make room.",
    "/review": "Review the uncommitted changes; with text after it, what the text says.",
}
"""The commands and what they do."""


def command_request(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    """Method and parameters, without the thread. Raises `CapabilityNotSupported`."""
    text = prompt.parts[0].text.strip()
    name, _, rest = text.partition(" ")
    match name:
        case "/compact" if not rest:
            return "thread/compact/start", {}
        case "/review":
            target: dict[str, Any] = {"type": "uncommittedChanges"}
            if rest.strip():
                target = {"type": "custom", "instructions": rest.strip()}
            return "review/start", {"target": target, "delivery": "inline"}
        case _:
            known = ", ".join(COMMANDS)
            raise CapabilityNotSupported(
                "commands", f"Codex has no command {name!r}; there are: {known}"
            )
