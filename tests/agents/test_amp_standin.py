"""The driver on a stand-in: what no real Amp can be brought to without its servers."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import event_pb2, interaction_pb2
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


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_permission_without_the_calls_id_finds_its_call(
    lab: AmpLab, accepted: bool
) -> None:
    session = await lab.session(env={"STANDIN": "newest"})
    driver = session.driver()
    for number in (1, 2):
        await driver.send(session.prompt("make it"))
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        assert (asked.call_id, asked.command) == (f"TU-{number}", "make it")
        decision = (
            interaction_pb2.PERMISSION_DECISION_ACCEPT
            if accepted
            else interaction_pb2.PERMISSION_DECISION_REJECT
        )
        await driver.answer(asked.request_id, interaction_pb2.PermissionAnswer(decision=decision))
        assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
        assert session.tool_results[f"TU-{number}"].is_error is not accepted
    assert not session.exits


async def test_done_ends_the_session_of_the_simple_dialect(lab: AmpLab) -> None:
    session = await lab.session(env={"STANDIN": "simple"})
    await session.driver().send(session.prompt("make it"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.tool_results["c1"].output == "ran"
    ended = (await session.next(Kind.SESSION_ENDED)).session_ended
    assert ended.ended_by == event_pb2.SESSION_ENDER_AGENT
    assert (await session.exit()).expected
