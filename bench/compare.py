"""Sets two runs side by side: `bench/compare BEFORE.json AFTER.json`.

Machines drift: figures of two runs tell something where the same machine did nothing else.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.results import FORMAT, number


class NotComparable(Exception):
    """A file that is not of a run, or of one of another format."""


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The figures in a file by their names. Raises NotComparable."""
    try:
        run = json.loads(path.read_text())
        if run["format"] != FORMAT:
            raise NotComparable(f"{path} has format {run['format']}, this program reads {FORMAT}")
        return {f"{figure['measure']}: {figure['name']}": figure for figure in run["figures"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NotComparable(f"{path} does not hold the figures of a run: {error}") from error


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Table:
    """A table of all figures of both: what only one of them has, too."""
    table = Table("figure", title="before and after")
    for column in ("before", "after", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    table.add_column("")
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        told = one or other or {}
        ratio, verdict = "", ""
        if one and other and one["value"]:
            change = other["value"] / one["value"]
            ratio, verdict = f"{change:.2f}", _verdict(one, other)
        table.add_row(
            name,
            number(one["value"]) if one else "-",
            number(other["value"]) if other else "-",
            ratio,
            told["unit"],
            verdict,
        )
    return table


def _verdict(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Better or worse where no round of the one is within the rounds of the other."""
    lower = max(after["values"]) < min(before["values"])
    higher = min(after["values"]) > max(before["values"])
    if before["better"] is None or not (lower or higher):
        return ""
    return "better" if higher == (before["better"] == "higher") else "worse"


def main() -> int:
    """Run it; 2 where a file can't be read."""
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    try:
        table = compare(load(options.before), load(options.after))
    except NotComparable as error:
        print(f"bench/compare: {error}", file=sys.stderr)
        return 2
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
