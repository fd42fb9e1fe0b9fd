"""What is measured, a module each."""

from bench.figures import Measure
from bench.measures import fanout, growth, ingest, latency, peers, replay, sessions

ALL: tuple[Measure, ...] = (
    *replay.MEASURES,
    *ingest.MEASURES,
    *fanout.MEASURES,
    *latency.MEASURES,
    *sessions.MEASURES,
    *growth.MEASURES,
    *peers.MEASURES,
)
"""In the order in which they are run."""
