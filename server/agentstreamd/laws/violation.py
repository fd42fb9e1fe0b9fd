"""What a checker reports."""

from collections.abc import Callable
from dataclasses import dataclass

FORM = 0
"""Number for what the contract's comments demand of every event beyond the numbered laws."""

Report = Callable[[int, str], None]
"""Reports a broken law: its number and a sentence. Knows the event that is being checked."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a stream breaks.

    Attributes:
        law: Number of the law, 1 to 9; 0 for the form of an event (ids, enums, JSON, sizes).
        sequence: Sequence of the event that breaks it; of the last event for what is missing at
            the end.
        sentence: What is wrong, for people.
    """

    law: int
    sequence: int
    sentence: str

    def __str__(self) -> str:
        """Say it in one line."""
        name = f"law {self.law}" if self.law else "form"
        return f"{name}, sequence {self.sequence}: {self.sentence}"
