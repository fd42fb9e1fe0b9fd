"""The `agentstreamd backup` command."""

import sys
from pathlib import Path

from agentstreamd.events.backup import back_up
from agentstreamd.events.errors import BackupExists, EventLogError

EXIT_OK = 0
EXIT_TARGET = 2
EXIT_DATA_DIR = 3


def run(data_dir: Path, target: str) -> int:
    """Copy the event log of `data_dir` into `target`, a data directory itself; the exit code."""
    try:
        made = back_up(data_dir / "events", Path(target).absolute() / "events")
    except BackupExists as error:
        print(f"agentstreamd: {error}.", file=sys.stderr)
        return EXIT_TARGET
    except EventLogError as error:
        print(f"agentstreamd: no backup was made: {error}.", file=sys.stderr)
        return EXIT_DATA_DIR
    print(made)
    return EXIT_OK
