"""What is taken out of native messages before anything is stored: Codex's built-in prompts. Pure.

`thread/settings/updated` carries the whole prompt of the collaboration mode. It is long, it is not
the session's, and it must not be kept.
"""

import json

from agentstreamd.adapters.codex.native import as_object, dump
from agentstreamd.model import Redacted

INSTRUCTIONS = "developer_instructions"
"""Name of the member that is emptied, and of the redaction."""


def without_instructions(line: bytes) -> bytes:
    """The message with the built-in instructions emptied; as it is where it has none."""
    if INSTRUCTIONS.encode() not in line:
        return line
    try:
        message = json.loads(line)
    except ValueError:
        # Of what cannot be read, nothing can be kept.
        return Redacted(b"{}", (INSTRUCTIONS,))
    settings = as_object(as_object(as_object(message).get("params")).get("threadSettings"))
    inner = as_object(as_object(settings.get("collaborationMode")).get("settings"))
    if not inner.get(INSTRUCTIONS):
        return line
    inner[INSTRUCTIONS] = None
    return Redacted(dump(message), (INSTRUCTIONS,))
