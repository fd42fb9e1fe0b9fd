"""Peers: what others do with the same output, in the same round."""

from collections.abc import Iterator

from bench.figures import Figure, Measure, Scale, Void
from bench.load_client import Load
from bench.peers import sandbox_agent
from bench.running import World

_LINES = 20_000
_AIMS = {1: 1.0, 10: 5.0}


def against_sandbox_agent(world: World, scale: Scale) -> Iterator[Figure]:
    """The same lines through both daemons, to followers that all want all of them."""
    daemon = world.daemon()
    lines = sandbox_agent.lines_of(scale.of(_LINES, 500))
    with sandbox_agent.running(lines) as peer:
        for followers, aim in _AIMS.items():
            theirs, seconds = peer.measure(followers)
            lost = 1 - theirs / (len(lines) * followers)
            rate = theirs / followers / seconds
            session_id = daemon.session(one_shot=True)
            flags = ("-follow", "-streams", str(followers), "-connections", str(followers))
            load = Load(daemon.address, [session_id], *flags)
            with daemon.saying(session_id, b"".join(lines)) as begun_ns:
                ours = load.figures()
            if ours["events"] < len(lines) * followers * 0.9:
                raise Void("lines are missing")
            own = len(lines) / ((ours["ended_ns"] - begun_ns) / 1e9)
            to = f"{followers} follower{'s' if followers > 1 else ''}"
            yield Figure(f"sandbox-agent, {to}", rate, "lines/s")
            yield Figure(f"sandbox-agent, {to}: lost", lost * 100, "%")
            yield Figure(f"ours, {to}", own, "lines/s", "higher")
            yield Figure(f"ours to sandbox-agent, {to}", own / rate, "x", "higher", aim)


MEASURES = (
    Measure("sandbox-agent", "the same lines through sandbox-agent 0.4.2", against_sandbox_agent),
)
