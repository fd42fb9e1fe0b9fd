"""Class of fault: what a daemon keeps of sessions, turns, streams or cuts that are over.

Budget: 100 sessions at work behind connections that are cut, 3 minutes in the short form and an
hour in the long one, with restarts by force and in order. In each life of the daemon, once it is
warm (the first third is left out), its memory grows by no more than 16 MiB from the second third to
the last, and by no more than 24 MiB from the first life to the last; it has no more than 20
descriptors more open in the last third than in the second (connections come and go); the log on
disk grows by no more than half.

AGENTSTREAM_SOAK_SECONDS sets another length, AGENTSTREAM_SOAK_LIVES another number of lives: a
restart frees all that a daemon kept, so what grows slowly shows in one long life only. Samples are
written to .artifacts/soak.jsonl.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.faults.scale import randomness, scaled
from tests.faults.soaking import Place, World
from tests.faults.usage import cpu_seconds, descriptors, disk_mib, resident_mib, threads
from tests.support.daemon import Daemon
from tests.support.e2e import lab
from tests.support.fault_proxy import Faults, fault_proxy

SECONDS = float(os.environ.get("AGENTSTREAM_SOAK_SECONDS", "") or scaled(180, 3600))
LIVES = int(os.environ.get("AGENTSTREAM_SOAK_LIVES", "") or scaled(3, 6))
SESSIONS = 100
GONE_SECONDS = 5.0
SAMPLES = 30
"""Samples of a life."""

GROWTH_MIB = 16.0
LIVES_GROWTH_MIB = 24.0
DESCRIPTORS = 20
DISK_GROWTH = 1.5

SAMPLES_FILE = Path(__file__).resolve().parents[2] / ".artifacts" / "soak.jsonl"
FAULTS = Faults(cut_after_bytes=800_000, delay_seconds=0.002, halves=0.1)


@dataclass(frozen=True)
class Sample:
    """What the daemon used at one moment; `at` in seconds since the start of the soak."""

    at: float
    life: int
    resident_mib: float
    descriptors: int
    threads: int
    processes: int
    disk_mib: float
    cpu_seconds: float
    sessions: int
    turns: int
    events: int
    answers: int
    interrupts: int
    cuts: int


def options(number: int) -> dict[str, str]:
    """How the agent of the place of this number runs."""
    return {0: {"process": "true"}, 1: {"shared_host": "true"}}.get(number % 10, {})


@pytest.mark.timeout(SECONDS * 2 + 600)
async def test_a_daemon_at_work_for_long_keeps_nothing_of_what_is_over(tmp_path: Path) -> None:
    chance = randomness("soak")
    samples: list[Sample] = []
    SAMPLES_FILE.parent.mkdir(exist_ok=True)
    SAMPLES_FILE.write_text("")
    async with (
        lab(tmp_path, {}) as daemon,
        fault_proxy(daemon.daemon.target, FAULTS, chance) as proxy,
    ):
        world = World(daemon, proxy, str(tmp_path))
        world.up.set()
        places = [
            Place(world, randomness(f"soak {number}"), options(number))
            for number in range(SESSIONS)
        ]
        async with asyncio.TaskGroup() as group:
            for place in places:
                group.create_task(place.live())
            begun = time.monotonic()
            for life in range(LIVES):
                if life:
                    await restart(world, kill=life % 2 == 1)
                for number in range(1, SAMPLES + 1):
                    end = begun + (life + number / SAMPLES) * SECONDS / LIVES
                    await asyncio.sleep(end - time.monotonic())
                    samples.append(sample(world, life, time.monotonic() - begun))
                    with SAMPLES_FILE.open("a") as file:
                        print(json.dumps(asdict(samples[-1])), file=file)
            world.closing.set()
    assert world.tally.turns > SESSIONS
    assert proxy.total_cuts > SESSIONS
    judge(samples)


async def restart(world: World, *, kill: bool) -> None:
    """End the daemon, by force or in order, and start it again."""
    world.up.clear()
    if kill:
        await world.lab.kill()
        await world.lab.no_processes(GONE_SECONDS)
    else:
        await world.lab.stop()
    assert "Traceback" not in world.lab.daemon.stderr, world.lab.daemon.stderr
    await world.lab.start()
    world.proxy.upstream = world.lab.daemon.target
    world.up.set()


def sample(world: World, life: int, at: float) -> Sample:
    """What is used now."""
    daemon: Daemon = world.lab.daemon
    return Sample(
        at=round(at, 1),
        life=life,
        resident_mib=round(resident_mib(daemon), 1),
        descriptors=descriptors(daemon),
        threads=threads(daemon),
        processes=len(world.lab.processes()),
        disk_mib=round(disk_mib(daemon), 1),
        cpu_seconds=round(cpu_seconds(daemon), 1),
        cuts=world.proxy.total_cuts,
        **asdict(world.tally),
    )


def judge(samples: Sequence[Sample]) -> None:
    """Hold what was used to the budget."""
    last_thirds = []
    for life in range(LIVES):
        of_life = [sample for sample in samples if sample.life == life]
        third = len(of_life) // 3
        second, last = of_life[third : 2 * third], of_life[2 * third :]
        growth = median(last, "resident_mib") - median(second, "resident_mib")
        assert growth < GROWTH_MIB, f"life {life} grew by {growth} MiB"
        more = most(last, "descriptors") - most(second, "descriptors")
        assert more <= DESCRIPTORS, f"life {life} opened {more} descriptors more"
        last_thirds.append(last)
    first, final = last_thirds[0], last_thirds[-1]
    assert median(final, "resident_mib") - median(first, "resident_mib") < LIVES_GROWTH_MIB
    assert most(final, "disk_mib") < most(first, "disk_mib") * DISK_GROWTH


def median(samples: Sequence[Sample], name: str) -> float:
    """The median of a figure."""
    return float(statistics.median(getattr(sample, name) for sample in samples))


def most(samples: Sequence[Sample], name: str) -> float:
    """The largest of a figure."""
    return float(max(getattr(sample, name) for sample in samples))
