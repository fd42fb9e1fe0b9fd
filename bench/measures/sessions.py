"""Sessions: what many of them cost, idle and active, and what starting agents disturbs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles

from agentstream.v1 import service_pb2, session_pb2
from bench import native
from bench.agents import PROCESS
from bench.figures import Figure, Measure, Scale
from bench.load_client import Load
from bench.running import Daemon, World

_IDLE = 10_000
_SUBSCRIBERS = 1_000
_ACTIVE = 1_000
_PROCESSES = 1_000
_CALLERS = 16
_ACTIVE_SECONDS = 4
_ACTIVE_RATE = 5
_PACED_RATE = 100
_KIB = 1024


def idle(world: World, scale: Scale) -> Iterator[Figure]:
    """Sessions that wait, streams that wait for them, and a start with all of them."""
    with world.fresh() as daemon:
        memory, descriptors = daemon.memory_bytes(), daemon.descriptors()
        count = scale.of(_IDLE, 100)
        with ThreadPoolExecutor(_CALLERS) as callers:
            made = list(callers.map(lambda _: _create(daemon), range(count)))
        each = (daemon.memory_bytes() - memory) / count / _KIB
        yield Figure("memory of an idle session", each, "KiB", "lower", 50)
        each = (daemon.descriptors() - descriptors) / count
        yield Figure("descriptors of an idle session", round(each, 3), "", "lower", 0.0)
        taken = quantiles((seconds for _, seconds in made), n=100)
        what = f"CreateSession, {_CALLERS} at once"
        yield Figure(f"{what}: p50", taken[49] * 1000, "ms", "lower")
        yield Figure(f"{what}: p99", taken[98] * 1000, "ms", "lower")

        memory, descriptors = daemon.memory_bytes(), daemon.descriptors()
        followed = [session_id for session_id, _ in made[: scale.of(_SUBSCRIBERS, 10)]]
        load = Load(daemon.address, followed, "-follow", "-connections", "20")
        each = (daemon.memory_bytes() - memory) / len(followed) / _KIB
        yield Figure("memory of a subscriber", each, "KiB", "lower", 30)
        each = (daemon.descriptors() - descriptors) / len(followed)
        yield Figure("descriptors of a subscriber, 50 on a connection", each, "", "lower")
        load.stop()

        daemon.stop()
        begun = time.monotonic()
        daemon.start()
        what = f"start to serving, {_IDLE:,} sessions in the log"
        yield Figure(what, time.monotonic() - begun, "s", "lower", 0.5)


def _create(daemon: Daemon) -> tuple[str, float]:
    begun = time.monotonic()
    session_id = daemon.session("mock")
    return session_id, time.monotonic() - begun


def active(world: World, scale: Scale) -> Iterator[Figure]:
    """Mock agents at work in many sessions, all of which are followed."""
    with world.fresh() as daemon:
        count, seconds = scale.of(_ACTIVE, 10), _ACTIVE_SECONDS * min(1.0, scale.factor * 10)
        before = daemon.memory_bytes()
        config = session_pb2.SessionConfig(
            agent="mock", working_directory=str(daemon.directory), one_shot=True
        )
        request = service_pb2.CreateSessionRequest(config=config)
        ids = [daemon.stub.CreateSession(request).session.session_id for _ in range(count)]
        load = Load(daemon.address, ids, "-follow", "-connections", "20")
        cpu, begun = daemon.cpu_seconds(), time.monotonic()
        script = (
            f"repeat {int(seconds * _ACTIVE_RATE)}\ndelta more\ndelay {1000 // _ACTIVE_RATE}ms\nend"
        )
        with ThreadPoolExecutor(_CALLERS) as callers:
            list(callers.map(lambda session_id: daemon.send(session_id, script), ids))
        each = (daemon.memory_bytes() - before) / count / _KIB
        figures = load.figures()
        taken = time.monotonic() - begun
        what = f"{_ACTIVE:,} active mock sessions, {_ACTIVE_RATE} deltas/s each"
        yield Figure(f"{what}: memory of one and its subscriber", each, "KiB", "lower")
        yield Figure(f"{what}: events", figures["events"] / taken, "events/s")
        share = (daemon.cpu_seconds() - cpu) / taken * 100
        yield Figure(f"{what}: CPU", share, "% of a core", "lower")


def starts(world: World, scale: Scale) -> Iterator[Figure]:
    """Processes that are started and end, beside a stream at a steady pace."""
    with world.fresh() as daemon:
        file = daemon.directory / "turn"
        lines = native.opening() + native.delta("done") + native.closing("done")
        file.write_bytes(native.begin() + lines + native.end())
        count = scale.of(_PROCESSES, 20)
        first = daemon.session(one_shot=True)
        load = Load(daemon.address, [first], "-follow")
        _start(daemon, first, file)
        load.figures()
        daemon.move_children()
        quiet = _paced(daemon, lambda: time.sleep(min(3.0, 300 * scale.factor)))
        ids = [daemon.session(one_shot=True) for _ in range(count)]
        load = Load(daemon.address, ids, "-follow", "-connections", "4")
        taken = [0.0]

        def start_all() -> None:
            begun = time.monotonic()
            with ThreadPoolExecutor(_CALLERS) as callers:
                list(callers.map(lambda session_id: _start(daemon, session_id, file), ids))
            load.figures()
            taken[0] = time.monotonic() - begun

        busy = _paced(daemon, start_all)
        yield Figure("processes started and ended", count / taken[0], "processes/s", "higher")
        for name, said in (("p50_ms", "p50"), ("p99_ms", "p99"), ("max_ms", "most")):
            yield Figure(f"latency of a stream meanwhile: {said}", busy[name], "ms", "lower")
        share = busy["p99_ms"] / quiet["p99_ms"]
        yield Figure("latency of a stream meanwhile: p99 to that of before", share, "x", "lower")


def _start(daemon: Daemon, session_id: str, file: Path) -> None:
    daemon.send(session_id, f"{PROCESS}{file}")


def _paced(daemon: Daemon, meanwhile: Callable[[], None]) -> dict[str, float]:
    """A stream at a steady pace for as long as `meanwhile` takes; its latencies."""
    session_id = daemon.session(one_shot=True)
    load = Load(daemon.address, [session_id], "-follow", "-stamps")
    writer = daemon.pacing([session_id], _PACED_RATE)
    meanwhile()
    writer.communicate()
    return load.figures()


MEASURES = (
    Measure("idle sessions", "10,000 sessions that wait, 1,000 streams, a start", idle, False),
    Measure("active sessions", "1,000 mock agents at work", active, False),
    Measure("agents' starts", "1,000 processes started while a stream runs", starts, False),
)
