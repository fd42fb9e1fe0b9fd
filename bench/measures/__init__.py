"""What is measured, a module each."""

from bench.figures import Measure
from bench.measures import fanout, ingest, latency, replay

ALL: tuple[Measure, ...] = (
    *replay.MEASURES,
    *ingest.MEASURES,
    *fanout.MEASURES,
    *latency.MEASURES,
)
"""In the order in which they are run."""
