"""`python -m bench`: measure, print a table, write JSON."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import measures

GUIDES = {
    ("replay", "events_per_second"): 500_000,
    ("ingest, 1 follower", "events_per_second"): 50_000,
    ("ingest, 10 followers", "events_per_second"): 35_000,
    ("live latency", "p50_ms"): 1,
    ("live latency", "p99_ms"): 5,
    ("idle session", "kibibytes_per_session"): 50,
}


def main() -> None:
    """Measure everything once."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="only show that it works")
    parser.add_argument("--json", type=Path, default=Path("bench/results/latest.json"))
    options = parser.parse_args()
    scale = measures.Scale.short() if options.short else measures.Scale()
    results: dict[str, dict[str, float]] = {}
    with measures.running_daemon() as daemon:
        results["idle session"] = measures.idle_memory(daemon, scale)
        results["live latency"] = measures.latency(daemon, scale)
        results["ingest, 1 follower"] = measures.ingest(daemon, scale, 1)
        results["ingest, 10 followers"] = measures.ingest(daemon, scale, 10)
        results["replay"] = measures.replay(daemon, scale)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    made = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "results": results}
    options.json.write_text(json.dumps(made, indent=2) + "\n")
    Console().print(_table(results))


def _table(results: dict[str, dict[str, float]]) -> Table:
    table = Table("measure", "figure", "value", "guide", title="agentstream")
    for name, figures in results.items():
        for figure, value in figures.items():
            guide = GUIDES.get((name, figure))
            table.add_row(
                name,
                figure.replace("_", " "),
                f"{value:,.2f}" if value < 1000 else f"{value:,.0f}",
                f"{guide:,}" if guide else "",
            )
    return table


if __name__ == "__main__":
    main()
