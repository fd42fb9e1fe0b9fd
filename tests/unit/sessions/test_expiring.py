"""Requests that nobody answers in time."""

import time
from typing import Any

import pytest
from google.protobuf import duration_pb2

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, session_pb2
from agentstreamd.adapters.base import Answer, NotDelivered
from agentstreamd.sessions.interactions import NOBODY, TIMEOUT
from tests.support.scripted_adapter import (
    Script,
    ScriptedDriver,
    form,
    permission,
    question,
)
from tests.unit.sessions.asking import asking, permission_answer
from tests.unit.sessions.lab import ACCEPT, Lab, Refused, until

FOR_SESSION = interaction_pb2.PermissionAnswer(
    decision=interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION, suggestion_ids=["s1"]
)
SECRET = "hunter2-sesame"
Outcome = interaction_pb2.RequestOutcome
BLUE = interaction_pb2.QuestionAnswer(
    answered=interaction_pb2.AnsweredQuestions(
        answers=[interaction_pb2.SingleAnswer(question_id="colour", labels=["blue"])]
    )
)
FILLED = interaction_pb2.FormAnswer(
    action=interaction_pb2.FORM_ACTION_ACCEPT, content_json='{"name":"x"}'
)


def expiring(policy: session_pb2.RequestPolicy.ValueType, seconds: float = 0.01) -> dict[str, Any]:
    timeout = duration_pb2.Duration()
    timeout.FromNanoseconds(int(seconds * 1_000_000_000))
    return {"request_timeout": timeout, "request_policy": policy}


async def test_a_request_says_when_it_expires(lab: Lab) -> None:
    await asking(lab, **expiring(session_pb2.REQUEST_POLICY_REJECT, 60))
    (asked,) = [e for e in await lab.events() if e.HasField("permission_requested")]
    wait = asked.permission_requested.expire_time.ToNanoseconds() - asked.time.ToNanoseconds()
    assert wait == 60_000_000_000


@pytest.mark.parametrize(
    "policy", [session_pb2.REQUEST_POLICY_UNSPECIFIED, session_pb2.REQUEST_POLICY_REJECT]
)
async def test_an_expired_request_is_rejected_and_the_turn_goes_on(
    lab: Lab, policy: session_pb2.RequestPolicy.ValueType
) -> None:
    driver = await asking(lab, **expiring(policy))
    await driver.publish(question("q"), form("f"))
    await lab.until("form_resolved")
    for kind in ("permission", "question", "form"):
        (resolved,) = await lab.only(f"{kind}_resolved")
        assert resolved.outcome == Outcome.REQUEST_OUTCOME_EXPIRED
        assert resolved.resolved_by == interaction_pb2.RESOLVED_BY_POLICY
        assert resolved.reason == TIMEOUT
    assert dict(driver.answers)["ask"] == permission_answer("REJECT", message=TIMEOUT)
    assert (await lab.get()).state == session_pb2.SESSION_STATE_RUNNING
    with Refused(
        error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED, outcome="REQUEST_OUTCOME_EXPIRED"
    ):
        await lab.respond("ask", ACCEPT)


async def test_an_expired_permission_is_given_where_the_policy_says_so(lab: Lab) -> None:
    driver = await asking(lab, **expiring(session_pb2.REQUEST_POLICY_ACCEPT))
    await driver.publish(question("q"))
    await lab.until("question_resolved")
    (resolved,) = await lab.only("permission_resolved")
    assert resolved.outcome == Outcome.REQUEST_OUTCOME_ACCEPTED
    assert (resolved.resolved_by, resolved.answer) == (interaction_pb2.RESOLVED_BY_POLICY, ACCEPT)
    (declined,) = await lab.only("question_resolved")
    assert declined.outcome == Outcome.REQUEST_OUTCOME_EXPIRED


async def test_a_policy_gives_no_answer_that_the_request_does_not_take(
    lab: Lab, script: Script
) -> None:
    driver = await asking(lab, **expiring(session_pb2.REQUEST_POLICY_ACCEPT))
    draft = permission("r")
    del draft.event.permission_requested.allowed_decisions[:2]
    await driver.publish(draft)
    await lab.until("permission_resolved", 2)
    assert dict(driver.answers)["r"] == permission_answer("REJECT", message=TIMEOUT)


async def test_a_request_that_takes_no_rejection_ends_with_its_turn(lab: Lab) -> None:
    driver = await asking(lab, **expiring(session_pb2.REQUEST_POLICY_REJECT))
    draft = permission("r")
    del draft.event.permission_requested.allowed_decisions[1:]
    await driver.publish(draft)
    events = await lab.until("turn_ended")
    assert events[-1].turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED


async def test_an_expired_request_interrupts_the_turn_where_the_policy_says_so(lab: Lab) -> None:
    driver = await asking(lab, **expiring(session_pb2.REQUEST_POLICY_INTERRUPT))
    events = await lab.until("turn_ended")
    assert events[-1].turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    answer = permission_answer("REJECT", message=TIMEOUT, interrupt=True)
    assert driver.answers == [("ask", answer)]


async def test_a_policy_that_can_not_be_carried_out_interrupts_the_turn(
    lab: Lab, script: Script
) -> None:
    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        raise NotDelivered("lost")

    script.on_answer = on_answer
    await asking(lab, **expiring(session_pb2.REQUEST_POLICY_REJECT))
    await lab.until("turn_ended")
    (resolved,) = await lab.only("permission_resolved")
    assert resolved.outcome == Outcome.REQUEST_OUTCOME_CANCELLED


async def test_an_answered_request_does_not_expire(lab: Lab) -> None:
    driver = await asking(lab, **expiring(session_pb2.REQUEST_POLICY_INTERRUPT, 0.05))
    await lab.respond("ask", ACCEPT)
    until_time = time.monotonic() + 0.1
    await until(lambda: time.monotonic() > until_time)
    assert driver.answers == [("ask", ACCEPT)]
    assert (await lab.get()).state == session_pb2.SESSION_STATE_RUNNING


async def test_a_one_shot_session_that_nobody_follows_rejects_at_once(lab: Lab) -> None:
    driver = await asking(lab, one_shot=True, request_policy=session_pb2.REQUEST_POLICY_ACCEPT)
    await lab.until("permission_resolved")
    (resolved,) = await lab.only("permission_resolved")
    assert (resolved.outcome, resolved.reason) == (Outcome.REQUEST_OUTCOME_EXPIRED, NOBODY)
    assert driver.answers[0][1] == permission_answer("REJECT", message=NOBODY)


async def test_a_one_shot_session_that_is_followed_waits(lab: Lab) -> None:
    await lab.create(one_shot=True)
    with lab.manager.following("s"), lab.manager.following("s"):
        pass
    with lab.manager.following("s"):
        await lab.send()
        await until(lambda: lab.script.prompts)
        await lab.script.driver.ask()
        assert (await lab.get()).state == session_pb2.SESSION_STATE_WAITING
        await lab.respond("ask", ACCEPT)


async def test_who_followed_before_the_session_was_in_memory_counts(lab: Lab) -> None:
    await lab.create(one_shot=True)
    await lab.restart()
    with lab.manager.following("s"):
        await lab.send()
        await until(lambda: lab.script.prompts)
        await lab.script.driver.ask()
        assert (await lab.get()).pending_requests
