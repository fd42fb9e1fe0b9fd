"""How much of each fault a run tries: a little in `make test`, much more in `make faults`."""

import os
import random

LONG = os.environ.get("AGENTSTREAM_FAULTS") == "long"
"""Whether this run is the long form."""

SEED = int(os.environ.get("AGENTSTREAM_FAULTS_SEED", "1"))
"""What all randomness of the faults comes from; another seed tries other moments."""


def scaled(short: int, long: int) -> int:
    """A count for this run's form."""
    return long if LONG else short


def randomness(name: str) -> random.Random:
    """Randomness of its own for each test, the same in every run with the same seed."""
    return random.Random(f"{SEED}/{name}")
