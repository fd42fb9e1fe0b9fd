"""`make demo` without an agent; with the real one it is part of the agents' tests."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentstream.cli.context import json_line
from agentstream.v1 import event_pb2
from tools import demo

ROOT = Path(__file__).parents[2]


async def run(agent: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.demo"),
        cwd=ROOT,
        env={**os.environ, "AGENT": agent, "LIVE": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_the_demo_shows_a_session_and_proves_that_its_stream_can_be_resumed() -> None:
    code, out = await run("mock")
    assert code == 0, out
    for shown in (
        "the demo answers: yes",
        "the demo answers: Frog",
        "+A frog jumps",
        "✓ completed",
    ):
        assert shown in out
    assert "0 laws broken" in out.splitlines()[-1]


async def test_an_agent_that_is_not_known_is_wrong_usage() -> None:
    code, out = await run("nobody")
    assert code == 2
    assert "demo: no agent 'nobody'; there are: claude, " in out


@pytest.mark.parametrize(
    ("resumed", "code"), [(["2", "3"], 0), (["2"], 1), (["3", "2"], 1), (["2", "3", "4"], 1)]
)
def test_the_demo_fails_when_the_readings_differ(
    monkeypatch: pytest.MonkeyPatch, resumed: list[str], code: int
) -> None:
    monkeypatch.setattr(demo, "check", lambda events, **_: [])
    events = [event_pb2.Event(sequence=sequence) for sequence in (1, 2, 3)]
    events[2].turn_ended.status = event_pb2.TURN_STATUS_COMPLETED
    by_sequence = {str(event.sequence): json_line(event) for event in events}
    lines = [by_sequence.get(sequence, "{}") for sequence in resumed]
    verdict = demo._verdict(Console(quiet=True), events, 1, lines, live=True, cannot=())
    assert verdict == code
