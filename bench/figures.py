"""What a measure gives."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.running import World


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one round.

    Attributes:
        name: What it is, within its measure.
        value: The figure.
        unit: Its unit; "x" for a ratio.
        better: Which way is better; None where it is only told.
        aim: What it should reach.
    """

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"] | None = None
    aim: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        factor: What counts of events are multiplied by; 1 is the default scale.
        rounds: Rounds of the measures that are repeated.
    """

    factor: float = 1.0
    rounds: int = 3

    def of(self, count: int, least: int = 1) -> int:
        """A count at this scale."""
        return max(least, int(count * self.factor))


SHORT = Scale(factor=0.01, rounds=1)
"""Only shows that all of it works."""
DEFAULT = Scale()
LONG = Scale(factor=4.0, rounds=5)


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is measured.

    Attributes:
        name: Its name.
        what: What it measures, in a few words.
        run: Measures it once. Raises `Void` where the figures would mean nothing.
        repeated: Whether it is run in every round, the others' runs between.
    """

    name: str
    what: str
    run: Callable[["World", Scale], Iterable[Figure]]
    repeated: bool = True


class Void(Exception):
    """Something was lost, came twice or out of order: there is no figure."""
