"""Class of fault: an agent that dies, hangs, floods, writes the unreadable, or leaves children.

Budget: the daemon grows by at most 192 MiB whatever the agent writes (one line of 64 MiB is held
while it is read, framed and stored), each turn ends exactly once, and nothing that the agent
started is alive when its session has ended.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import error_pb2
from tests.faults.scale import LONG, randomness
from tests.faults.usage import resident_mib
from tests.support.e2e import COMPLETED, FAILED, INTERRUPTED, Bench, Session, lab

PROCESS = {"process": "true"}
GROWTH_MIB = 192

WORK = """\
think Let me see.
delta so
delta " far"
tool Bash {"n":1} => done
call Hang {"n":2}
edit a.txt one => two
status key=plan plan The plan
agent helper look
say six seven
end
message
say eight
json data {"a":1}
end
usage {"input_tokens":"3"}
"""
LINES = WORK.splitlines()
# A directive can stand between any two others, but for the ends of blocks.
PLACES = range(len(LINES) + 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with lab(tmp_path, {}, "--interrupt-grace-seconds=0.5") as daemon:
        made = Bench(daemon, "mock", tmp_path, {})
        yield made
        await finish(made)


async def finish(bench: Bench) -> None:
    """As `Bench.finish`, for agents that do write what can't be read."""
    for session in bench.sessions:
        await session.end()
    for session in bench.sessions:
        await session.verify(unparsed=True)
    assert bench.lab.processes() == []


def alive(pids: list[int]) -> list[int]:
    """Which of the processes are there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def goes_on(session: Session) -> None:
    """The next message is answered as if nothing had been."""
    assert (await session.turn("say still here")).status == COMPLETED
    assert session.texts[-1] == "still here"


@pytest.mark.parametrize("death", ["exit 0", "exit 3", "crash 9", 'unterminated {"type":'])
async def test_an_agent_may_die_at_any_line(bench: Bench, death: str) -> None:
    places = PLACES if LONG else randomness(death).sample(PLACES, 4)
    session = await bench.session(agent_options=PROCESS)
    for place in places:
        lines = [*LINES[:place], death, *LINES[place:]]
        ended = await session.turn("\n".join(lines))
        assert ended.status == FAILED, lines
        assert ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
    await goes_on(session)


async def test_an_agent_that_closes_its_output_but_lives_is_ended(bench: Bench) -> None:
    session = await bench.session(agent_options=PROCESS)
    ended = await session.turn("refuse term\ndelta half\nclose_stdout")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
    await goes_on(session)


async def test_a_silent_agent_that_ignores_everything_is_interrupted(bench: Bench) -> None:
    session = await bench.session(agent_options=PROCESS)
    await session.send("refuse term\nrefuse interrupt\ndelta half\nsilent")
    await session.delta("half")
    assert (await session.interrupt()).status == INTERRUPTED
    await goes_on(session)


@pytest.mark.parametrize(
    "noise",
    ["garbage", "garbage @1MB", "invalid_utf8", "lone_surrogate", "oversized", "unknown novelty"],
)
async def test_what_nobody_can_read_is_told_and_the_turn_goes_on(bench: Bench, noise: str) -> None:
    session = await bench.session(agent_options=PROCESS)
    await session.turn("say warm")
    before = resident_mib(bench.lab.daemon)
    for _ in range(3):
        assert (await session.turn(f'delta so\n{noise}\ndelta " far"')).status == COMPLETED
    assert resident_mib(bench.lab.daemon) - before < GROWTH_MIB
    await goes_on(session)


async def test_a_flood_of_lines_is_stored_whole_in_bounded_memory(bench: Bench) -> None:
    count = 300_000 if LONG else 30_000
    session = await bench.session(follow=False, agent_options=PROCESS)
    before = resident_mib(bench.lab.daemon)
    quiet = await bench.session(agent_options=PROCESS)
    await session.send(f"repeat {count} delta x")
    # Another session is served while the flood lasts.
    assert (await quiet.turn("say me too")).status == COMPLETED
    await session.follow()
    assert (await session.turn_ended()).status == COMPLETED
    assert resident_mib(bench.lab.daemon) - before < GROWTH_MIB
    assert session.texts == ["x" * count]


async def test_a_flood_on_standard_error_blocks_nothing_and_is_kept_to_its_ends(
    bench: Bench,
) -> None:
    session = await bench.session(agent_options=PROCESS)
    before = resident_mib(bench.lab.daemon)
    flood = "repeat 20 stderr @4MB"
    ended = await session.turn(f"stderr the beginning\n{flood}\nstderr the end\nexit 3")
    assert ended.status == FAILED
    [exited] = session.statuses("agent_exited")
    detail = exited.content[0].status.detail
    assert "the beginning" in detail
    assert "the end" in detail
    assert len(detail) < 80 * 1024
    assert resident_mib(bench.lab.daemon) - before < GROWTH_MIB


async def test_children_that_ignore_everything_do_not_outlive_the_session(
    bench: Bench, tmp_path: Path
) -> None:
    session = await bench.session(agent_options=PROCESS)
    kinds = ("", "setsid", "stubborn", "setsid stubborn")
    spawns = [f"spawn {tmp_path}/{number} {kind}" for number, kind in enumerate(kinds)]
    await session.turn("\n".join(["refuse term", *spawns]))
    pids = [int((tmp_path / str(number)).read_text()) for number in range(len(kinds))]
    assert alive(pids) == pids
    await session.end()
    assert alive(pids) == []


async def test_what_is_asked_and_resolved_twice_is_said_once(bench: Bench) -> None:
    session = await bench.session(agent_options=PROCESS)
    request = {
        "type": "permission_requested",
        "request_id": "twice",
        "kind": "PERMISSION_KIND_TOOL",
        "tool_name": "Bash",
        "allowed_decisions": ["PERMISSION_DECISION_ACCEPT", "PERMISSION_DECISION_REJECT"],
    }
    resolved = {
        "type": "permission_resolved",
        "request_id": "twice",
        "outcome": "REQUEST_OUTCOME_ACCEPTED",
        "resolved_by": "RESOLVED_BY_AGENT",
    }
    lines = [f"native {json.dumps(line)}" for line in (request, request, resolved, resolved)]
    assert (await session.turn("\n".join(lines))).status == COMPLETED
    assert len(session.of("permission_requested")) == 1
    assert len(session.of("permission_resolved")) == 1


async def test_an_agent_that_ends_a_turn_twice_ends_it_once(bench: Bench) -> None:
    session = await bench.session(agent_options=PROCESS)
    end = json.dumps({"type": "turn_ended", "status": "TURN_STATUS_COMPLETED"})
    sent = await session.send(f"delta so\nnative {end}\nnative {end}\ndelta late")
    assert (await session.turn_ended(sent.turn_id)).status == COMPLETED
    await goes_on(session)
    ends = [event.turn_id for event in session.of("turn_ended")]
    assert ends.count(sent.turn_id) == 1
