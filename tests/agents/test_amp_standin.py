"""The driver on a stand-in: the simple dialect, which no real Amp was seen to emit."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import event_pb2
from agentstreamd.model import Kind
from tests.support import amp_standin
from tests.support.amp_lab import AmpLab, amp_lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[AmpLab]:
    program = tmp_path / "amp"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{amp_standin.__file__}" "$@"\n')
    program.chmod(0o755)
    async with amp_lab(tmp_path, program) as made:
        yield made


async def test_done_ends_the_session_of_the_simple_dialect(lab: AmpLab) -> None:
    session = await lab.session()
    await session.driver().send(session.prompt("make it"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.tool_results["c1"].output == "ran"
    ended = (await session.next(Kind.SESSION_ENDED)).session_ended
    assert ended.ended_by == event_pb2.SESSION_ENDER_AGENT
    assert (await session.exit()).expected
