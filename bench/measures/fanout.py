"""Fan-out: what is written once, to many followers at once."""

from collections.abc import Iterator

from bench import native
from bench.figures import Figure, Measure, Scale
from bench.load_client import Load
from bench.running import World

_LINES = 20_000
_FOLLOWERS = 100
_MANY = 1_000
_RATE = 100
_SECONDS = 4


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """A flood to 100 followers."""
    daemon = world.daemon()
    session_id = daemon.session(one_shot=True)
    followers = scale.of(_FOLLOWERS, 10)
    flags = ("-follow", "-streams", str(followers), "-connections", "10")
    load = Load(daemon.address, [session_id], *flags)
    lines = b"".join(native.deltas(scale.of(_LINES, 1000)))
    with daemon.saying(session_id, lines) as begun_ns:
        figures = load.figures()
    seconds = (figures["ended_ns"] - begun_ns) / 1e9
    rate = figures["events"] / seconds
    yield Figure(f"to {_FOLLOWERS} followers", rate, "deliveries/s", "higher", 1_500_000)


def many(world: World, scale: Scale) -> Iterator[Figure]:
    """A session that is followed by a thousand: how far the last of them is behind."""
    daemon = world.daemon()
    session_id = daemon.session(one_shot=True)
    followers = scale.of(_MANY, 10)
    flags = ("-follow", "-stamps", "-streams", str(followers), "-connections", "20")
    load = Load(daemon.address, [session_id], *flags)
    writer = daemon.pacing([session_id], _RATE, max(0.2, _SECONDS * min(1.0, scale.factor)))
    figures = load.figures()
    writer.wait()
    yield Figure(f"{_MANY} followers, {_RATE}/s: p50", figures["p50_ms"], "ms", "lower")
    yield Figure(
        f"{_MANY} followers, {_RATE}/s: furthest behind", figures["max_ms"], "ms", "lower", 250
    )


MEASURES = (
    Measure("fan-out", "a flood of deltas to 100 followers", run),
    Measure("many followers", "1,000 followers of one session at 100 events/s", many, False),
)
