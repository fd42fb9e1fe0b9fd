"""Class of fault: the machine's clock jumps, forwards and backwards, also while no daemon runs.

Budget: none; the time of events never goes back, and a request with a timeout still expires.
"""

from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from agentstream.v1 import interaction_pb2
from tests.faults.scale import randomness
from tests.support.scripted_adapter import permission
from tests.unit.sessions.lab import SECOND_NS, START_NS, laboratory, until

HOUR_NS = 3600 * SECOND_NS


def jumping() -> Iterator[int]:
    """A clock that jumps by up to an hour each time somebody looks."""
    chance = randomness("clock")
    for look in count():
        yield START_NS + look * HOUR_NS // 10 + chance.randrange(-HOUR_NS, HOUR_NS)


async def test_the_time_of_events_never_goes_back(tmp_path: Path) -> None:
    async with laboratory(tmp_path) as lab:
        lab.now = jumping()
        await lab.create()
        for number in range(10):
            await lab.send(str(number))
            await until(lambda: len(lab.script.prompts) == number + 1)  # noqa: B023 - awaited here
            await lab.script.driver.say("yes")
            await lab.script.driver.end_turn()
            await lab.until("turn_ended")
            if number % 3 == 2:
                await lab.restart()
        times = [event.time.ToNanoseconds() for event in await lab.events()]
        assert times == sorted(times)
        assert len(set(times)) > 1


@pytest.mark.parametrize("jump_ns", [-HOUR_NS, HOUR_NS], ids=["back", "forward"])
async def test_a_request_expires_although_the_clock_jumped(tmp_path: Path, jump_ns: int) -> None:
    async with laboratory(tmp_path) as lab:
        lab.now = chain((START_NS for _ in range(20)), count(START_NS + jump_ns))
        await lab.create(request_timeout=duration_pb2.Duration(nanos=20_000_000))
        await lab.send("ask")
        await until(lambda: bool(lab.script.prompts))
        await lab.script.driver.publish(permission("p"))
        await lab.until("permission_resolved")
        (resolved,) = await lab.only("permission_resolved")
        assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_EXPIRED
        assert not (await lab.get()).pending_requests
