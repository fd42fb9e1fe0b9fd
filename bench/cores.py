"""Which core does what: the daemon has one, all load another.

Known to the program that starts the others; these are told by the start of their command line.
"""

import os

_CORES = sorted(os.sched_getaffinity(0))
DAEMON = _CORES[0]
LOAD = _CORES[-1]


def on(core: int) -> list[str]:
    """The start of a command line that runs on this core alone."""
    return ["taskset", "--cpu-list", str(core)]
