"""The real daemon with the agent `bench`, on its own core: `python -m bench.daemon ARGUMENTS`."""

import os
import sys

from agentstreamd import __main__ as agentstreamd
from agentstreamd.adapters import registry
from bench.agent import BenchAdapter


def main() -> int:
    """Run it until SIGTERM, with the arguments of `agentstreamd`."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # Not an adapter for users: it is put in the place of all others, in this process alone.
    vars(registry)["load"] = lambda: {"bench": BenchAdapter()}
    return agentstreamd.main()


if __name__ == "__main__":
    sys.exit(main())
