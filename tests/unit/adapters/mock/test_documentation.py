"""docs/mock-agent.md tells the truth."""

import re
from pathlib import Path

import pytest

from agentstreamd.adapters.mock.adapter import MockAdapter
from agentstreamd.adapters.mock.script import DIRECTIVES
from agentstreamd.laws import check
from agentstreamd.process import Line
from agentstreamd.replay import replay
from tests.unit.adapters.mock.conftest import NewSession

DOCUMENT = Path(__file__).resolve().parents[4].joinpath("docs/mock-agent.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("script", examples("mock"))
async def test_the_example_scripts_run(new_session: NewSession, script: str) -> None:
    session = new_session()
    ended = await session.turn(script)
    assert "can't be run" not in ended.error.message
    assert session.violations() == []


def test_the_example_transcript_replays_without_fault() -> None:
    (transcript,) = examples("jsonl")
    lines: list[Line] = [line.encode() for line in transcript.splitlines()]
    events = list(replay(MockAdapter(), lines))
    assert check(events, complete=True) == []
    kinds = {event.WhichOneof("payload") for event in events}
    assert not kinds & {"agent_unparsed"}


def test_every_directive_is_documented() -> None:
    code = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", DOCUMENT, flags=re.S | re.M))
    named = {word for span in code for word in re.findall(r"^[a-z_0-9]+", span)}
    assert named >= DIRECTIVES


async def test_every_option_is_documented() -> None:
    agent = await MockAdapter().describe()
    for option in agent.options:
        assert f"`{option.name}`" in DOCUMENT
