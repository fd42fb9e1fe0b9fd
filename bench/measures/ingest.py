"""Ingest: native lines through parsing, normalizing, the durable log and its followers."""

from collections.abc import Iterator

from bench import native
from bench.figures import Figure, Measure, Scale
from bench.load_client import Load
from bench.running import World

_LINES = 40_000
_AIMS = {1: 50_000, 10: 35_000}


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """Each agent's lines, to 1 follower and to 10."""
    daemon = world.daemon()
    for agent in native.RECORDINGS:
        turn = native.turn(agent, scale.of(_LINES, 500))
        for followers, aim in _AIMS.items():
            session_id = daemon.session(agent, one_shot=True)
            flags = ("-follow", "-streams", str(followers), "-connections", str(followers))
            load = Load(daemon.address, [session_id], *flags)
            cpu = daemon.cpu_seconds()
            with daemon.saying(session_id, turn.data) as begun_ns:
                figures = load.figures()
            used = daemon.cpu_seconds() - cpu
            seconds = (figures["ended_ns"] - begun_ns) / 1e9
            name = f"{agent}, {followers} follower{'s' if followers > 1 else ''}"
            yield Figure(name, turn.count / seconds, "lines/s", "higher", aim)
            yield Figure(f"{name}: events", figures["events"] / followers / seconds, "events/s")
            yield Figure(f"{name}: CPU", used / turn.count * 1e6, "us/line", "lower")


MEASURES = (Measure("ingest", "native lines of each agent, through the log to followers", run),)
