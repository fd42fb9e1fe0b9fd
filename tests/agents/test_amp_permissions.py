"""Amp's live permissions on the real CLI: its delegate rule, our program, and who decides."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, event_pb2, interaction_pb2
from agentstreamd.adapters.base import NotDelivered
from agentstreamd.model import Kind
from tests.support.amp_lab import KEY, AmpLab, amp_lab
from tests.support.anthropic_server import hang, reply, result_of, says, text, tool_use
from tests.support.hermetic import make_workspace
from tests.support.laboratory import agent_executable

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT
COMPLETED = event_pb2.TURN_STATUS_COMPLETED


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[AmpLab]:
    async with amp_lab(tmp_path, agent_executable("amp")) as made:
        yield made


def answer(
    decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT, **more: Any
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


def call(command: str, id: str) -> Any:
    return tool_use("Bash", {"cmd": command}, id=id)


async def test_a_command_waits_until_it_is_accepted(lab: AmpLab) -> None:
    lab.server.script(reply(call("touch made; env", "toolu_1")), reply(text("Made.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (asked.tool_name, asked.command) == ("Bash", "touch made; env")
    assert (asked.call_id, asked.cwd) == ("toolu_1", str(lab.workspace))
    assert json.loads(asked.arguments_json) == {"cmd": "touch made; env"}
    assert list(asked.allowed_decisions) == [ACCEPT, FOR_SESSION, REJECT]
    calls = [e.item_started.item.item_id for e in session.of(Kind.ITEM_STARTED)]
    assert "toolu_1" in calls, "the call comes before the question"
    assert not (lab.workspace / "made").exists()
    await driver.answer(asked.request_id, answer())
    assert (await session.turn_ended()).status == COMPLETED
    assert (lab.workspace / "made").exists()
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, answer())


async def test_a_rejections_message_reaches_the_model(lab: AmpLab) -> None:
    lab.server.script(reply(call("rm -rf important", "toolu_1")), reply(text("Understood.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Clean up"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, answer(REJECT, message="Nicht so, 🐸."))
    assert (await session.turn_ended()).status == COMPLETED
    result = session.tool_results["toolu_1"]
    assert (result.is_error, result.output) == (True, "Nicht so, 🐸.")
    assert "Nicht so, 🐸." in json.dumps(
        lab.server.requests[1].tool_results["toolu_1"], ensure_ascii=False
    )


async def test_accepted_for_the_session_is_not_asked_again_even_by_a_new_process(
    lab: AmpLab,
) -> None:
    lab.server.script(
        reply(call("echo a >> log", "toolu_1")),
        reply(call("echo a >> log", "toolu_2"), when=result_of("toolu_1")),
        reply(text("Twice."), when=result_of("toolu_2")),
        reply(call("echo a >> log", "toolu_3"), when=says("more")),
        reply(call("echo b >> log", "toolu_4"), when=result_of("toolu_3")),
        reply(text("Done."), when=result_of("toolu_4")),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Log"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, answer(FOR_SESSION))
    await session.turn_ended()
    await driver.close()
    driver = session.driver()
    await driver.send(session.prompt("Log more"))
    other = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert other.call_id == "toolu_4"
    await driver.answer(other.request_id, answer())
    await session.turn_ended()
    assert (lab.workspace / "log").read_text() == "a\na\na\nb\n"


async def test_parallel_calls_are_asked_one_by_one_each_with_its_own_id(lab: AmpLab) -> None:
    lab.server.script(
        reply(call("echo same", "toolu_1"), call("echo same", "toolu_2")), reply(text("Done."))
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Both"))
    for call_id, decision in (("toolu_1", ACCEPT), ("toolu_2", REJECT)):
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        assert asked.call_id == call_id
        await driver.answer(asked.request_id, answer(decision))
    await session.turn_ended()
    results = session.tool_results
    assert (results["toolu_1"].is_error, results["toolu_2"].is_error) == (False, True)


async def test_what_a_sub_agent_does_is_asked_under_its_call(lab: AmpLab) -> None:
    task = {"prompt": "inner work", "description": "Inner"}
    lab.server.script(
        reply(tool_use("Task", task, id="toolu_task"), when=says("Delegate")),
        reply(call("touch inner", "toolu_in"), when=says("inner work")),
        reply(text("Inner done."), when=result_of("toolu_in")),
        reply(text("Done."), when=result_of("toolu_task")),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Delegate"))
    event = await session.next(Kind.PERMISSION_REQUESTED)
    asked = event.permission_requested
    assert (asked.parent_id, asked.call_id) == ("toolu_task", "")
    assert json.loads(event.metadata_json) == {"tool_use_id": "toolu_in"}
    await driver.answer(asked.request_id, answer())
    await session.turn_ended()
    assert (lab.workspace / "inner").exists()
    assert session.tool_results["toolu_task"].output == "Inner done."


async def test_an_interrupt_withdraws_the_question(lab: AmpLab) -> None:
    lab.server.script(
        reply(call("touch never", "toolu_1")),
        reply(text("Hm ", hang()), when=result_of("toolu_1"), repeat=True),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.interrupt()
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    assert (await session.exit()).expected
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, answer())
    assert not (lab.workspace / "never").exists()


async def test_a_rejection_can_end_the_turn(lab: AmpLab) -> None:
    lab.server.script(
        reply(call("touch never", "toolu_1")),
        reply(text("Hm ", hang()), when=result_of("toolu_1"), repeat=True),
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, answer(REJECT, interrupt=True))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_INTERRUPTED


async def test_a_desk_that_goes_away_rejects(lab: AmpLab) -> None:
    lab.server.script(reply(call("touch never", "toolu_1")), reply(text("Well.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    await session.next(Kind.PERMISSION_REQUESTED)
    await session.adapter.close()
    assert (await session.turn_ended()).status == COMPLETED
    assert session.tool_results["toolu_1"].is_error
    assert not (lab.workspace / "never").exists()


async def test_modes_decide_what_is_asked_and_can_be_changed_at_once(lab: AmpLab) -> None:
    def create(path: Path, id: str) -> Any:
        return tool_use("create_file", {"path": str(path), "content": "x\n"}, id=id)

    inside, outside = lab.workspace / "in", lab.workspace.parent / "out"
    guarded = lab.workspace / ".amp" / "settings.json"
    lab.server.script(
        reply(create(inside, "toolu_1")),
        reply(create(outside, "toolu_2"), when=result_of("toolu_1")),
        reply(create(guarded, "toolu_3"), when=result_of("toolu_2")),
        reply(text("Done."), when=result_of("toolu_3")),
        reply(create(lab.workspace / "planned", "toolu_4"), when=says("plan")),
        reply(text("Planned."), when=result_of("toolu_4")),
    )
    session = await lab.session(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    driver = session.driver()
    await driver.send(session.prompt("Write"))
    for call_id in ("toolu_2", "toolu_3"):
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        assert asked.call_id == call_id
        assert asked.files[0].diff == "@@ -0,0 +1,1 @@\n+x\n"
        await driver.answer(asked.request_id, answer(REJECT))
    await session.turn_ended()
    assert inside.exists()
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)
    await driver.send(session.prompt("Now plan"))
    await session.turn_ended()
    assert "plan mode" in session.tool_results["toolu_4"].output
    assert sorted(os.listdir(lab.workspace)) == ["in"]
    assert not session.exits, "no new process was needed"


async def test_leaving_bypass_takes_a_new_process(lab: AmpLab) -> None:
    lab.server.script(
        reply(call("touch one", "toolu_1")),
        reply(text("One."), when=result_of("toolu_1")),
        reply(call("touch two", "toolu_2")),
        reply(text("Two."), when=result_of("toolu_2")),
    )
    session = await lab.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("One"))
    await session.turn_ended()
    await driver.update(permission_mode=agent_pb2.PERMISSION_MODE_DEFAULT)
    await driver.send(session.prompt("Two"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.call_id == "toolu_2"
    await driver.answer(asked.request_id, answer())
    await session.turn_ended()
    assert [exit.expected for exit in session.exits] == [True]


async def test_the_users_settings_are_not_touched_and_their_rejections_hold(lab: AmpLab) -> None:
    rules = [
        {"tool": "Bash", "matches": {"cmd": "*secret*"}, "action": "reject", "message": "Never."},
        {"tool": "*", "action": "allow"},
    ]
    written = json.dumps({"amp.permissions": rules, "amp.dangerouslyAllowAll": True})
    home = Path(lab.environment["HOME"])
    make_workspace(home, {".config/amp/settings.json": written})
    lab.server.script(
        reply(call("cat secret", "toolu_1"), call("echo fine", "toolu_2")), reply(text("Done."))
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Look"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.call_id == "toolu_2"
    await driver.answer(asked.request_id, answer())
    await session.turn_ended()
    assert session.tool_results["toolu_1"].is_error
    assert await asyncio.to_thread((home / ".config/amp/settings.json").read_text) == written


async def test_the_key_is_not_in_the_environment_of_the_program_that_asks(lab: AmpLab) -> None:
    lab.server.script(reply(call("true", "toolu_1")), reply(text("Done.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Go"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    programs = await asyncio.to_thread(_environments_of, "permit.py")
    assert programs
    assert all(KEY.encode() not in environment for environment in programs)
    socket = lab.state / "permissions.sock"
    assert socket.stat().st_mode & 0o777 == 0o600
    await driver.answer(asked.request_id, answer())
    await session.turn_ended()


def _environments_of(program: str) -> list[bytes]:
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if program.encode() in (process / "cmdline").read_bytes():
                found.append((process / "environ").read_bytes())
        except OSError:
            continue
    return found
