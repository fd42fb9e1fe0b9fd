"""The driver of Codex: commands and patches, and who allows them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import (
    agent_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
)
from agentstreamd.adapters.base import NotDelivered
from agentstreamd.model import Kind
from tests.support.codex_driver import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    BYPASS,
    COMPLETED,
    INTERRUPTED,
    REJECT,
    NewSession,
    allowed,
    shell,
    statuses,
)
from tests.support.responses_server import (
    ResponsesServer,
    call,
    hang,
    output_of,
    patch,
    reply,
    text,
)


async def test_a_command_runs_without_asking_where_it_may(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(shell("sleep 0.5; echo out; sleep 0.5; echo err >&2; sleep 0.3; exit 3")),
        reply(text("It failed."), when=output_of("call_1")),
    )
    session = new_session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Run it"))
    await session.turn_ended()
    result = session.tool_results["call_1"]
    assert (result.output, result.exit_code, result.is_error) == ("out\nerr\n", 3, True)
    assert not session.of(Kind.PERMISSION_REQUESTED)
    outputs = [
        event.item_delta.text
        for event in session.of(Kind.ITEM_DELTA)
        if event.item_delta.kind == event_pb2.DELTA_KIND_TOOL_OUTPUT
    ]
    assert outputs == ["out\n", "err\n"]


async def test_an_accepted_command_runs(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(reply(shell("touch a.txt")), reply(text("Done."), when=output_of("call_1")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert "touch a.txt" in asked.command
    assert asked.cwd == str(workspace)
    assert asked.call_id == "call_1"
    assert list(asked.allowed_decisions) == [ACCEPT, ACCEPT_FOR_SESSION, REJECT]
    assert not (workspace / "a.txt").exists()
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert (workspace / "a.txt").exists()
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())
    # We answered: that Codex took note of it is nothing new.
    assert not session.of(Kind.PERMISSION_RESOLVED)


async def test_what_was_accepted_for_the_session_is_not_asked_again(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(shell("mkdir -p made", id="call_1")),
        reply(text("Made."), when=output_of("call_1")),
        reply(shell("mkdir -p made", id="call_2")),
        reply(text("Made again."), when=output_of("call_2")),
    )
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    await session.turn_ended()
    await driver.send(session.prompt("Once more"))
    await session.turn_ended()
    assert len(session.of(Kind.PERMISSION_REQUESTED)) == 1
    assert (workspace / "made").is_dir()


async def test_a_rejected_command_fails_and_the_turn_goes_on(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(reply(shell("touch a.txt")), reply(text("Then not."), when=output_of("call_1")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.tool_results["call_1"].is_error
    assert not (workspace / "a.txt").exists()
    assert "reject" in model.requests[1].outputs["call_1"].lower()


async def test_a_rejection_can_end_the_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(shell("touch a.txt")), reply(hang(), repeat=True))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT, interrupt=True))
    assert (await session.turn_ended()).status == INTERRUPTED


async def test_a_patch_shows_its_diffs_and_waits_for_approval(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    (workspace / "old.txt").write_text("alpha\nbeta\n")
    (workspace / "gone.txt").write_text("bye\n")
    body = (
        "*** Add File: new.txt\n+ünï\n*** Delete File: gone.txt\n"
        "*** Update File: old.txt\n@@\n alpha\n-beta\n+BETA"
    )
    model.script(reply(patch(body, id="call_p")), reply(text("Patched."), when=output_of("call_p")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Patch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_FILE_CHANGE
    files = {Path(file.path).name: file for file in asked.files}
    assert files["new.txt"].action == item_pb2.FILE_ACTION_WRITE
    assert files["new.txt"].diff == "@@ -0,0 +1 @@\n+ünï\n"
    assert files["gone.txt"].action == item_pb2.FILE_ACTION_DELETE
    assert files["gone.txt"].diff == "@@ -1 +0,0 @@\n-bye\n"
    assert files["old.txt"].action == item_pb2.FILE_ACTION_PATCH
    assert "-beta\n+BETA" in files["old.txt"].diff
    assert not (workspace / "new.txt").exists()
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert (workspace / "old.txt").read_text() == "alpha\nBETA\n"
    assert not (workspace / "gone.txt").exists()
    assert not session.tool_results["call_p"].is_error
    diffs = [i for i in statuses(session) if i.content[0].status.label == "diff"]
    assert len(diffs) == 1
    assert "+BETA" in diffs[0].content[1].text.text


async def test_edits_are_accepted_in_their_mode(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(patch("*** Add File: new.txt\n+x", id="call_p")),
        reply(text("Patched."), when=output_of("call_p")),
    )
    session = new_session(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    await session.driver().send(session.prompt("Patch it"))
    await session.turn_ended()
    assert (workspace / "new.txt").read_text() == "x\n"
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_two_approvals_at_once_are_told_apart(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(shell("touch a.txt", id="call_a"), shell("touch b.txt", id="call_b")),
        reply(text("One of two."), when=output_of("call_a")),
    )
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch both"))
    asked = {}
    for _ in range(2):
        request = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        asked[request.call_id] = request
    await driver.answer(asked["call_b"].request_id, allowed())
    await driver.answer(asked["call_a"].request_id, allowed(REJECT))
    await session.turn_ended()
    assert os.listdir(workspace) == ["b.txt"]


async def test_plan_mode_looks_and_changes_nothing(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(text("<proposed_plan>\n# Plan\n1. Touch it\n</proposed_plan>")),
        reply(shell("sleep 0.5; touch a.txt")),
        reply(text("I may not."), when=output_of("call_1")),
    )
    session = new_session(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)
    driver = session.driver()
    await driver.send(session.prompt("Plan it"))
    await session.turn_ended()
    plans = [e for e in session.of(Kind.ITEM_COMPLETED) if "plan" in e.metadata_json]
    [plan] = [e.item_completed.item for e in plans]
    assert "Touch it" in plan.content[0].text.text
    assert "Plan" in model.requests[0].instructions
    await driver.send(session.prompt("Do it"))
    await session.turn_ended()
    assert not (workspace / "a.txt").exists()
    # The built-in prompt of plan mode is nowhere in what is kept.
    assert not any(b'developer_instructions":"' in r for d in session.drafts for r in d.raw)


async def test_plans_are_snapshots(new_session: NewSession, model: ResponsesServer) -> None:
    def steps(*states: str) -> dict[str, Any]:
        plan = [{"step": f"step {n}", "status": state} for n, state in enumerate(states)]
        return {"explanation": "because", "plan": plan}

    model.script(
        reply(call("update_plan", steps("in_progress", "pending"), id="call_1")),
        reply(
            call("update_plan", steps("completed", "in_progress"), id="call_2"),
            when=output_of("call_1"),
        ),
        reply(text("Planned."), when=output_of("call_2")),
    )
    session = new_session()
    await session.driver().send(session.prompt("Plan"))
    await session.turn_ended()
    plans = [i for i in statuses(session) if i.content[0].status.key == "plan"]
    assert [i.content[0].status.detail for i in plans] == ["0 of 2 steps done", "1 of 2 steps done"]
    assert json.loads(plans[1].content[1].json.json)["plan"][1]["status"] == "inProgress"
