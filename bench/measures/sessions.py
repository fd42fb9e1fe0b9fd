"""Sessions: what many of them cost, idle and active, and what starting agents disturbs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from agentstream.v1 import service_pb2
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
_PAGE = 100
_ACTIVE_SECONDS = 6
_ACTIVE_RATE = 2
_RAMP_SECONDS = 3
_PACED_RATE = 100
_KIB = 1024


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """Sessions that wait, streams that wait, sessions at work beside them; a start with all."""
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
        yield from _work(daemon, scale)

        daemon.stop()
        begun = time.monotonic()
        daemon.start()
        what = f"start to serving, {_IDLE:,} sessions in the log"
        yield Figure(what, time.monotonic() - begun, "s", "lower", 0.5)
        yield from _list(daemon, count)


def _list(daemon: Daemon, count: int) -> Iterator[Figure]:
    first, token = _page_ms(daemon, ""), ""
    for _ in range(count // _PAGE - 1):
        request = service_pb2.ListSessionsRequest(page_size=_PAGE, page_token=token)
        token = daemon.stub.ListSessions(request).next_page_token
    yield Figure(f"ListSessions, {_PAGE} of {_IDLE:,}", first, "ms", "lower")
    share = _page_ms(daemon, token) / first
    yield Figure("ListSessions: last page to first", share, "x", "lower", 1.5)


def _page_ms(daemon: Daemon, token: str) -> float:
    request = service_pb2.ListSessionsRequest(page_size=_PAGE, page_token=token)
    taken = []
    for _ in range(20):
        begun = time.perf_counter()
        daemon.stub.ListSessions(request)
        taken.append(time.perf_counter() - begun)
    return median(taken) * 1000


def _create(daemon: Daemon) -> tuple[str, float]:
    begun = time.monotonic()
    session_id = daemon.session("mock")
    return session_id, time.monotonic() - begun


def _work(daemon: Daemon, scale: Scale) -> Iterator[Figure]:
    """Mock agents at work in many sessions, all of which are followed."""
    count = scale.of(_ACTIVE, 10)
    deltas = max(2, int(_ACTIVE_RATE * _ACTIVE_SECONDS * min(1.0, scale.factor * 20)))
    seconds = deltas / _ACTIVE_RATE
    memory = daemon.memory_bytes()
    ids = [daemon.session("mock", one_shot=True) for _ in range(count)]
    load = Load(daemon.address, ids, "-follow", "-connections", "20")
    ready = time.monotonic() + _RAMP_SECONDS * count / _ACTIVE

    def send(number: int) -> None:
        # All are at work at the same time, but not in step.
        wait = max(0.0, ready - time.monotonic()) + number / count / _ACTIVE_RATE
        script = f"delay {wait * 1000:.0f}ms\nrepeat {deltas}\ndelta more\n"
        daemon.send(ids[number], f"{script}delay {1000 // _ACTIVE_RATE}ms\nend")

    with ThreadPoolExecutor(_CALLERS) as callers:
        list(callers.map(send, range(count)))
    begun = max(ready, time.monotonic())
    time.sleep(begun + 1 / _ACTIVE_RATE - time.monotonic())
    cpu, since = daemon.cpu_seconds(), time.monotonic()
    time.sleep(seconds * 0.7)
    share = (daemon.cpu_seconds() - cpu) / (time.monotonic() - since) * 100
    each = (daemon.memory_bytes() - memory) / count / _KIB
    late = load.figures()["ended_ns"] / 1e9 - begun - 1 / _ACTIVE_RATE - seconds
    what = f"{_ACTIVE:,} active mock sessions, {_ACTIVE_RATE} deltas/s each"
    yield Figure(f"{what}: memory of one and its subscriber", each, "KiB", "lower")
    yield Figure(f"{what}: CPU", share, "% of a core", "lower")
    yield Figure(f"{what}: late at the end of {_ACTIVE_SECONDS} s", late, "s", "lower")


def starts(world: World, scale: Scale) -> Iterator[Figure]:
    """Processes that are started and end, beside a stream at a steady pace."""
    with world.fresh(f"--max-streams-per-client={2 * _PROCESSES}") as daemon:
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
    Measure("sessions", "10,000 that wait, 1,000 streams, 1,000 at work, a start", run, False),
    Measure("agents' starts", "1,000 processes started while a stream runs", starts, False),
)
