"""The real daemon with the agents of the bench: `python -m bench.daemon ARGS`."""

import sys

from agentstreamd import __main__ as agentstreamd
from bench import agents


def main() -> int:
    """Run it until SIGTERM, with the arguments of `agentstreamd`."""
    agents.install()
    return agentstreamd.main()


if __name__ == "__main__":
    sys.exit(main())
