"""Agents that end by themselves."""

import asyncio
import json
from typing import Any

import pytest

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AgentExit, Prompt
from agentstreamd.model import Draft, Kind, event, started, tool_call_item
from tests.support.scripted_adapter import (
    RAW,
    Script,
    ScriptedDriver,
    session_started,
    turn_ended,
)
from tests.unit.sessions.lab import Lab, Refused, until

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED


async def running(lab: Lab, **config: Any) -> ScriptedDriver:
    await lab.create(**config)
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


CRASHED = AgentExit(
    expected=False,
    exit_code=3,
    stderr_head="boom",
    message="the agent crashed",
    code=error_pb2.ERROR_CODE_AGENT_EXITED,
)


async def test_an_exit_fails_the_turn_and_is_told(lab: Lab) -> None:
    driver = await running(lab)
    await driver.publish(
        started(tool_call_item("t", name="Bash", arguments_json="", call_id="c"), RAW)
    )
    await driver.ask()
    driver.exit(CRASHED)
    events = await lab.until("turn_ended")
    ended = events[-1].turn_ended
    assert (ended.status, ended.error.code) == (
        event_pb2.TURN_STATUS_FAILED,
        error_pb2.ERROR_CODE_AGENT_EXITED,
    )
    assert ended.error.message == "the agent crashed"
    (told,) = [
        event
        for event in events
        if event.WhichOneof("payload") == "item_completed"
        and event.item_completed.item.content[0].status.label == "agent_exited"
    ]
    assert json.loads(told.metadata_json) == {"exit_code": 3}
    assert "boom" in told.item_completed.item.content[0].status.detail
    (resolved,) = await lab.only("permission_resolved")
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE


async def test_the_next_message_goes_on_with_the_native_session(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    draft = session_started()
    draft.event.native_session_id = "native-1"
    await driver.publish(draft)
    driver.exit(CRASHED)
    await lab.send("second")
    await until(lambda: script.prompts == ["first", "second"])
    await driver.end_turn()
    assert (await lab.get()).native_session_id == "native-1"
    await lab.restart()
    await lab.send("third")
    await until(lambda: len(script.prompts) == 3)
    assert script.driver is not driver
    assert script.driver.context.native_session_id == "native-1"


async def test_a_resumed_session_begins_with_the_native_session_it_was_given(
    lab: Lab, script: Script
) -> None:
    await running(lab, resume_native_session_id="old")
    assert script.driver.context.native_session_id == "old"
    (started_,) = await lab.only("session_started")
    assert started_.resumed


async def test_an_exit_between_turns_closes_what_was_open(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    await driver.publish(
        started(tool_call_item("t", name="Bash", arguments_json="", call_id="c"), RAW)
    )
    await driver.ask()
    driver.exit(CRASHED)
    await lab.until("permission_resolved")
    assert "turn_ended" in await lab.kinds()
    assert not (await lab.get()).pending_requests


async def test_an_expected_exit_between_turns_closes_what_was_open_too(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    await driver.ask()
    driver.exit(AgentExit(expected=True))
    await lab.until("permission_resolved")
    assert "agent_exited" not in str(await lab.events())


async def test_an_expected_exit_of_an_idle_agent_says_nothing(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    before = await lab.kinds()
    driver.exit(AgentExit(expected=True))
    await lab.get()
    assert await lab.kinds() == before


async def test_an_agent_that_died_unnoticed_does_not_take_the_next_message_along(
    lab: Lab, script: Script
) -> None:
    """The driver tells of the process before while it hands the message to the next one."""
    driver = await running(lab)
    await driver.end_turn()

    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        driver.exit(CRASHED)
        driver.alive = True

    script.on_send = on_send
    sent = await lab.send("second")
    await lab.until("item_completed", 3)
    await until(lambda: len(script.prompts) == 2)
    assert (await lab.get()).turn_id == sent.turn_id
    await driver.say("done")
    await driver.end_turn()
    statuses = [ended.status for ended in await lab.only("turn_ended")]
    assert statuses == [event_pb2.TURN_STATUS_COMPLETED] * 2


@pytest.mark.parametrize("earlier", [True, False])
async def test_a_process_that_dies_while_it_is_given_the_message_fails_the_turn(
    lab: Lab, script: Script, earlier: bool
) -> None:
    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        driver.exit(CRASHED)
        if earlier:
            driver.exit(CRASHED)

    if earlier:
        driver = await running(lab)
        await driver.end_turn()
    else:
        await lab.create()
    script.on_send = on_send
    await lab.send("second")
    await lab.until("turn_ended", 2 if earlier else 1)
    assert (await lab.only("turn_ended"))[-1].status == event_pb2.TURN_STATUS_FAILED


async def test_an_exit_after_the_message_was_handed_over_fails_the_turn(
    lab: Lab, script: Script
) -> None:
    driver = await running(lab)
    await driver.end_turn()
    await lab.send("second")
    await until(lambda: len(script.prompts) == 2)
    await asyncio.sleep(0)
    driver.exit(CRASHED)
    await lab.until("turn_ended", 2)
    assert (await lab.only("turn_ended"))[-1].status == event_pb2.TURN_STATUS_FAILED


async def test_a_session_that_can_not_be_resumed_ends(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await lab.send("second", when_busy=service_pb2.WHEN_BUSY_QUEUE)
    driver.exit(AgentExit(expected=False, exit_code=1, message="lost", resumable=False))
    events = await lab.until("session_ended")
    ended = events[-1].session_ended
    assert ended.reason == event_pb2.SESSION_END_REASON_NOT_RESUMABLE
    assert (ended.exit_code, ended.message) == (1, "lost")
    assert script.prompts == ["first"]
    shown = await lab.get()
    assert (shown.state, list(shown.queue)) == (session_pb2.SESSION_STATE_ENDED, [])
    with Refused(error_pb2.ERROR_REASON_SESSION_ENDED):
        await lab.send("third")


async def test_a_session_that_the_agent_ends_is_over(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await lab.send("second", when_busy=service_pb2.WHEN_BUSY_QUEUE)
    draft = Draft(Kind.SESSION_ENDED, event(), RAW)
    draft.event.session_ended.reason = event_pb2.SESSION_END_REASON_ENDED_BY_AGENT
    draft.event.session_ended.ended_by = event_pb2.SESSION_ENDER_AGENT
    await driver.publish(turn_ended(), draft)
    await until(lambda: driver.forgotten)
    assert (await lab.kinds())[-1] == "session_ended"
    shown = await lab.get()
    assert (shown.state, list(shown.queue)) == (session_pb2.SESSION_STATE_ENDED, [])
    assert script.prompts == ["first"]
    await lab.restart()
    assert script.prompts == ["first"]


async def test_a_one_shot_session_ends_after_its_turn_with_the_exit(
    lab: Lab, script: Script
) -> None:
    driver = await running(lab, one_shot=True)
    await driver.end_turn()
    with Refused(error_pb2.ERROR_REASON_SESSION_ENDED):
        await lab.send("second")
    events = await lab.until("session_ended")
    ended = events[-1].session_ended
    assert ended.reason == event_pb2.SESSION_END_REASON_ONE_SHOT_DONE
    assert ended.ended_by == event_pb2.SESSION_ENDER_DAEMON
    assert ended.HasField("exit_code")
    assert ended.exit_code == 0
    assert driver.forgotten


async def test_a_one_shot_session_whose_agent_crashes_ends_with_that_exit(lab: Lab) -> None:
    driver = await running(lab, one_shot=True)
    driver.exit(CRASHED)
    events = await lab.until("session_ended")
    ended = events[-1].session_ended
    assert (ended.exit_code, ended.stderr_head) == (3, "boom")
    assert ended.error_code == CRASHED.code


@pytest.mark.parametrize("turns", [[FAILED], [COMPLETED, FAILED], [FAILED, COMPLETED]])
async def test_the_end_says_how_the_last_turn_failed(
    lab: Lab, turns: list[event_pb2.TurnStatus.ValueType]
) -> None:
    driver = await running(lab)
    used_up = error_pb2.ERROR_CODE_QUOTA_EXCEEDED
    codes = {FAILED: used_up, COMPLETED: error_pb2.ERROR_CODE_UNSPECIFIED}
    error = error_pb2.Error(message="no credit", code=used_up)
    for number, status in enumerate(turns, 1):
        if number > 1:
            await lab.send("on")
            await until(lambda: len(lab.script.prompts) == 2)
        await driver.end_turn(status, error if status == FAILED else None)
    await lab.manager.end("s")
    events = await lab.until("session_ended")
    assert events[-1].session_ended.error_code == codes[turns[-1]]


async def test_the_end_says_that_the_agent_ended_unasked_before(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    driver.exit(CRASHED)
    await lab.manager.end("s")
    events = await lab.until("session_ended")
    assert events[-1].session_ended.error_code == CRASHED.code


@pytest.mark.parametrize("crashes", [True, False])
async def test_a_one_shot_session_cut_off_by_the_daemons_end_ends_with_the_next(
    lab: Lab, crashes: bool
) -> None:
    await running(lab, one_shot=True)
    await (lab.crash() if crashes else lab.restart())
    events = await lab.until("session_ended")
    assert events[-1].session_ended.reason == event_pb2.SESSION_END_REASON_ONE_SHOT_DONE
    (ended,) = await lab.only("turn_ended")
    assert ended.error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED


async def test_a_one_shot_session_without_a_turn_survives_a_restart(lab: Lab) -> None:
    await lab.create(one_shot=True)
    await lab.restart()
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE
    await lab.send()


async def test_a_daemon_that_stops_says_so_of_the_turn_it_cuts_off(lab: Lab) -> None:
    driver = await running(lab)
    await driver.ask()
    await lab.restart()
    (ended,) = await lab.only("turn_ended")
    assert ended.error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED
    assert not (await lab.get()).pending_requests
