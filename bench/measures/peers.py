"""Peers: what others do with the same output, in the same round."""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from bench.figures import Figure, Measure, Scale, Void
from bench.load_client import Load
from bench.peers import claude_sdk, installed, opencode, sandbox_agent
from bench.running import World

_LINES = 20_000
_OPENCODE_DELTAS = 250
_CLAUDE_DELTAS = 1_000
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
            if ours["events"] != daemon.latest(session_id) * followers:
                raise Void("events are missing")
            own = len(lines) / ((ours["ended_ns"] - begun_ns) / 1e9)
            to = f"{followers} follower{'s' if followers > 1 else ''}"
            yield Figure(f"sandbox-agent, {to}", rate, "lines/s")
            yield Figure(f"sandbox-agent, {to}: lost", lost * 100, "%")
            yield Figure(f"ours, {to}", own, "lines/s", "higher")
            yield Figure(f"ours to sandbox-agent, {to}", own / rate, "x", "higher", aim)


def against_opencode(world: World, scale: Scale) -> Iterator[Figure]:
    """One session of OpenCode: its own event stream, and ours, which is made of that."""
    read = opencode.beside(world.directory, scale.of(_OPENCODE_DELTAS, 50))
    yield from _delays("OpenCode's own", read.theirs)
    yield from _delays("ours", read.ours, "lower")
    yield from _delays("what we add", read.added, "lower")
    yield Figure("our daemon, processor for a delta", read.cpu_us, "us", "lower")


def against_claude_sdk(world: World, scale: Scale) -> Iterator[Figure]:
    """The same turn of the same CLI, by one process and by a daemon with its client."""
    deltas = scale.of(_CLAUDE_DELTAS, 100)
    theirs = claude_sdk.by_sdk(world.directory, deltas)
    ours = claude_sdk.by_us(world.directory, deltas)
    yield from _delays("SDK", theirs.delays)
    yield from _delays("ours", ours.delays, "lower")
    yield Figure(
        "ours to SDK: p50",
        statistics.median(ours.delays) / statistics.median(theirs.delays),
        "x",
        "lower",
    )
    for when, mine, other in (
        ("steady", ours.cpu_us, theirs.cpu_us),
        ("burst", ours.burst_cpu_us, theirs.burst_cpu_us),
    ):
        yield Figure(f"SDK, processor for a delta, {when}", other, "us")
        yield Figure(f"our daemon, processor for a delta, {when}", mine, "us", "lower")
        yield Figure(f"ours to SDK: processor, {when}", mine / other, "x", "lower")


def _delays(
    whose: str, delays: list[float], better: Literal["lower"] | None = None
) -> Iterator[Figure]:
    ordered = sorted(delays)
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        yield Figure(f"{whose}: {name}", ordered[int(len(ordered) * part)], "ms", better)


_Run = Callable[[World, Scale], Iterable[Figure]]


def _where_installed(run: _Run) -> _Run:
    """A peer that can't be had is told, and the others are measured."""

    def told(world: World, scale: Scale) -> Iterator[Figure]:
        try:
            yield from run(world, scale)
        except installed.NotInstalled as error:
            print(f"left out, for it could not be installed: {error}", file=sys.stderr)

    return told


MEASURES = (
    Measure(
        "sandbox-agent",
        "the same lines through sandbox-agent 0.4.2",
        _where_installed(against_sandbox_agent),
    ),
    Measure(
        "opencode",
        "OpenCode's own event stream, and ours of the same session",
        _where_installed(against_opencode),
        False,
    ),
    Measure(
        "claude-sdk",
        "claude-agent-sdk reading the CLI that we read",
        _where_installed(against_claude_sdk),
        False,
    ),
)
