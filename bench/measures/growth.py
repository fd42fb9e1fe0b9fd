"""Growth: what a session's length does to the cost of what is done with it."""

import statistics
import time
from collections.abc import Callable, Iterator

from agentstream.v1 import service_pb2
from bench import native
from bench.figures import Figure, Measure, Scale
from bench.load_client import Load
from bench.running import Daemon, World

_LENGTHS = (10, 1_000, 100_000, 1_000_000)
_ROUNDS = 5
_APPENDED = 2_000
_TIMES = 30


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """The same on sessions of ever more events, in turns."""
    daemon = world.daemon()
    lengths = [length for length in _LENGTHS if scale.factor >= 1 or length <= 1000]
    costs: dict[str, dict[int, list[float]]] = {}
    for number in range(-1, _ROUNDS):
        for length in lengths:
            session_id = _session(world, length)
            measured = {
                "resume from the end": _resume(daemon, session_id),
                "GetSession": _get(daemon, session_id),
                "append": _append(daemon, session_id, scale),
            }
            for what, value in measured.items():
                # The first turn only warms up.
                if number >= 0:
                    costs.setdefault(what, {}).setdefault(length, []).append(value)
    units = {"append": "us/event"}
    for what, values in costs.items():
        found = {length: statistics.median(each) for length, each in values.items()}
        for length, value in found.items():
            yield Figure(f"{what}, {length:,} events", value, units.get(what, "ms"), "lower")
        ratio = found[lengths[-1]] / found[lengths[0]]
        yield Figure(f"{what}: longest to shortest", ratio, "x", "lower", 1.5)


def _session(world: World, length: int) -> str:
    """A session of this length: a short one is made anew, for appends would make it long."""
    return world.large(length, anew=length <= _APPENDED)


def _append(daemon: Daemon, session_id: str, scale: Scale) -> float:
    lines = b"".join(native.deltas(scale.of(_APPENDED, 500)))
    latest = daemon.latest(session_id)
    load = Load(daemon.address, [session_id], "-follow", "-turn", "-after", str(latest))
    with daemon.saying(session_id, lines) as begun_ns:
        figures: dict[str, float] = load.figures()
    return (figures["ended_ns"] - begun_ns) / figures["events"] / 1000


def _resume(daemon: Daemon, session_id: str) -> float:
    latest = daemon.latest(session_id)

    def resume() -> None:
        request = service_pb2.StreamEventsRequest(
            session_id=session_id, after_sequence=latest, follow=True
        )
        call = daemon.stub.StreamEvents(request)
        next(call)
        call.cancel()

    return _median_ms(resume)


def _get(daemon: Daemon, session_id: str) -> float:
    return _median_ms(lambda: daemon.latest(session_id))


def _median_ms(what: Callable[[], object]) -> float:
    taken = []
    for _ in range(_TIMES):
        begun = time.perf_counter()
        what()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


MEASURES = (Measure("growth", "sessions of 10 to a million events", run, False),)
