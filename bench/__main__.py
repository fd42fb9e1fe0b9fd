"""`python -m bench`: measure, print a table, write JSON."""

import argparse
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import figures, measures
from bench.cores import LOAD
from bench.figures import Scale, Void
from bench.results import Results
from bench.running import World

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Measure everything, in rounds; 1 where something gave no figures."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--short", action="store_true", help="only show that it works")
    how_much.add_argument("--long", action="store_true", help="more of all, in more rounds")
    names = [measure.name for measure in measures.ALL]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json")
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD})
    scale = figures.SHORT if options.short else figures.LONG if options.long else figures.DEFAULT
    results = measure(scale, options.only or names)
    results.write(options.json)
    Console(width=None if sys.stdout.isatty() else 120).print(results.table())
    print(f"written to {options.json}")
    for name, why in results.voids.items():
        print(f"no figures of {name}: {why}", file=sys.stderr)
    return 1 if results.voids else 0


def measure(scale: Scale, names: list[str]) -> Results:
    """Run the measures of these names, round by round."""
    results = Results()
    with (
        TemporaryDirectory(prefix="agentstream-bench-") as directory,
        World(Path(directory)) as world,
    ):
        for number in range(scale.rounds):
            for one in measures.ALL:
                if one.name in names and (one.repeated or number == 0):
                    begun = time.monotonic()
                    try:
                        results.add(one.name, list(one.run(world, scale)))
                    except Void as why:
                        # The other measures are none the worse for it.
                        results.void(one.name, str(why))
                    took = time.monotonic() - begun
                    print(f"round {number + 1}: {one.name}, {took:.1f} s", file=sys.stderr)
    return results


if __name__ == "__main__":
    sys.exit(main())
