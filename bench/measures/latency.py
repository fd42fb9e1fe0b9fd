"""Latency: from an agent's write of a line to a client's having the event."""

from collections.abc import Iterator

from bench.figures import Figure, Measure, Scale
from bench.load_client import Load
from bench.running import World

_RATE = 20
_SECONDS = 3.0
_SESSIONS = {"normal": (1, 100, 1000), "full": (1, 100)}
_AIMS = {(100, "p50_ms"): 1.0, (100, "p99_ms"): 5.0}


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """Live sessions of 20 events a second each."""
    for durability, counts in _SESSIONS.items():
        for count in counts:
            figures = _measure(world, durability, scale.of(count), _SECONDS * min(1, scale.factor))
            for name in ("p50_ms", "p99_ms", "p999_ms"):
                said = {"p50_ms": "p50", "p99_ms": "p99", "p999_ms": "p99.9"}[name]
                aim = _AIMS.get((count, name)) if durability == "normal" else None
                what = f"{count} session{'s' if count > 1 else ''}, {durability}: {said}"
                yield Figure(what, figures[name], "ms", "lower", aim)


def _measure(world: World, durability: str, sessions: int, seconds: float) -> dict[str, float]:
    daemon = world.daemon(durability)
    ids = [daemon.session(one_shot=True) for _ in range(sessions)]
    connections = str(min(20, sessions))
    load = Load(daemon.address, ids, "-follow", "-stamps", "-connections", connections)
    writer = daemon.pacing(ids, _RATE, max(1.0, seconds))
    figures = load.figures()
    writer.wait()
    return figures


MEASURES = (Measure("latency", "line written to event received, durability as named", run, False),)
