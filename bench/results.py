"""The figures of a run: kept as JSON, shown as a table."""

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.figures import Figure

FORMAT = 1
"""Version of the JSON."""


@dataclass
class Result:
    """One figure over all rounds.

    Attributes:
        measure: Name of its measure.
        figure: The figure of the first round.
        values: Its value in each round.
    """

    measure: str
    figure: Figure
    values: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is, in the whole run."""
        return f"{self.measure}: {self.figure.name}"

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def missed(self) -> bool:
        """Whether it has an aim that it does not reach."""
        aim = self.figure.aim
        if aim is None:
            return False
        return self.median < aim if self.figure.better == "higher" else self.median > aim


class Results:
    """All figures of a run, in the order in which they came.

    Attributes:
        voids: Why a measure gave no figures in some round, by its name.
    """

    def __init__(self) -> None:
        self.voids: dict[str, str] = {}
        self._results: dict[str, Result] = {}

    def add(self, measure: str, figures: Iterable[Figure]) -> None:
        """Take the figures of one round, unless another of the measure was void."""
        for figure in () if measure in self.voids else figures:
            result = Result(measure, figure)
            self._results.setdefault(result.name, result).values.append(figure.value)

    def void(self, measure: str, why: str) -> None:
        """A measure gave no figures in this round; those of its other rounds go, too."""
        self.voids[measure] = why
        self._results = {n: one for n, one in self._results.items() if one.measure != measure}

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def to_json(self) -> dict[str, Any]:
        """All there is to know of the run."""
        return {
            "format": FORMAT,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
                "system": platform.platform(),
                "python": platform.python_version(),
                "grpcio": version("grpcio"),
                "protobuf": version("protobuf"),
            },
            "figures": [
                {
                    "measure": result.measure,
                    **asdict(result.figure),
                    "value": result.median,
                    "values": result.values,
                }
                for result in self
            ],
            "voids": self.voids,
        }

    def write(self, path: Path) -> None:
        """Keep them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

    def table(self) -> Table:
        """The table for people."""
        table = Table("measure", "figure", title="agentstream")
        for column in ("value", "spread", "aim"):
            table.add_column(column, justify="right")
        table.add_column("unit")
        last = ""
        for result in self:
            figure = result.figure
            low, high = min(result.values), max(result.values)
            table.add_row(
                result.measure if result.measure != last else "",
                figure.name,
                f"[red]{number(result.median)}[/]" if result.missed else number(result.median),
                f"{number(low)} - {number(high)}" if len(result.values) > 1 else "",
                "" if figure.aim is None else number(figure.aim),
                figure.unit,
                end_section=False,
            )
            last = result.measure
        return table


def number(value: float) -> str:
    """A figure with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
