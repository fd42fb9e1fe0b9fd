"""The commands of `agentstream`: a module each, which has `add_arguments` and `run`.

A module's docstring is the command's help.
"""

from types import ModuleType
from typing import Final

from agentstream.cli.commands import (
    agents,
    blob,
    chat,
    delete,
    doctor,
    end,
    events,
    interrupt,
    replay,
    respond,
    run,
    sessions,
    version,
)

COMMANDS: Final[dict[str, ModuleType]] = {
    "agents": agents,
    "doctor": doctor,
    "run": run,
    "chat": chat,
    "sessions": sessions,
    "events": events,
    "respond": respond,
    "interrupt": interrupt,
    "end": end,
    "delete": delete,
    "blob": blob,
    "replay": replay,
    "version": version,
}
