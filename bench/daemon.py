"""The real daemon with the agents of the bench, on its own core: `python -m bench.daemon ARGS`."""

import os
import sys

from agentstreamd import __main__ as agentstreamd
from bench import agents
from bench.cores import DAEMON


def main() -> int:
    """Run it until SIGTERM, with the arguments of `agentstreamd`."""
    os.sched_setaffinity(0, {DAEMON})
    agents.install()
    return agentstreamd.main()


if __name__ == "__main__":
    sys.exit(main())
