"""What directives of a script act on, and how they end a turn."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from agentstreamd.adapters.mock import asks
from agentstreamd.adapters.mock.script import Directive
from agentstreamd.adapters.mock.stage import Json


class TurnFailed(Exception):
    """The script fails the turn: code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TurnInterrupted(Exception):
    """An answer ended the turn."""


class Agent(asks.Person, Protocol):
    """The session that plays the script, as directives see it."""

    steered: deque[str]
    was_steered: asyncio.Event
    refuses_interrupt: bool
    is_process: bool
    usage: Json
    turn: int
    native_session_id: str

    def describe(self) -> Json:
        """The session's settings."""
        ...

    def later(self, directives: Sequence[Directive], *, in_turn: bool, trigger: str = "") -> None:
        """Play directives after the running turn."""
        ...

    def stderr(self, text: str) -> None:
        """Write to standard error."""
        ...

    async def quit(self, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """End the agent's process; does not return."""
        ...

    def refuse_term(self) -> None:
        """Ignore SIGTERM, where the agent is a process."""
        ...
