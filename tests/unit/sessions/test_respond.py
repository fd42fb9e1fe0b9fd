"""Requests of the agent and their answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import Answer, NotDelivered
from tests.support.scripted_adapter import (
    Script,
    ScriptedDriver,
    form,
    nothing,
    permission,
    question,
    withdrawn,
)
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.asking import asking, permission_answer
from tests.unit.sessions.lab import ACCEPT, REJECT, Lab, Refused, until

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


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ACCEPT, Outcome.REQUEST_OUTCOME_ACCEPTED),
        (FOR_SESSION, Outcome.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION),
        (
            interaction_pb2.PermissionAnswer(
                decision=interaction_pb2.PERMISSION_DECISION_REJECT, message="no"
            ),
            Outcome.REQUEST_OUTCOME_REJECTED,
        ),
    ],
)
async def test_an_answer_is_delivered_and_recorded(lab: Lab, answer: Any, outcome: int) -> None:
    driver = await asking(lab)
    shown = await lab.get()
    assert shown.state == session_pb2.SESSION_STATE_WAITING
    (pending,) = shown.pending_requests
    assert pending.permission.request_id == "ask"
    assert (pending.sequence, pending.turn_id) == (shown.latest_sequence, shown.turn_id)
    response = await lab.respond("ask", answer)
    assert driver.answers == [("ask", answer)]
    assert (response.permission.outcome, response.permission.answer) == (outcome, answer)
    assert response.permission.resolved_by == interaction_pb2.RESOLVED_BY_CLIENT
    event = (await lab.durable())[response.sequence - 1]
    assert event.permission_resolved == response.permission
    shown = await lab.get()
    assert (shown.state, len(shown.pending_requests)) == (session_pb2.SESSION_STATE_RUNNING, 0)


async def test_questions_and_forms_are_answered(lab: Lab) -> None:
    driver = await asking(lab)
    await driver.publish(question("q"), form("f"))
    answered = await lab.respond("q", BLUE)
    assert answered.question.outcome == Outcome.REQUEST_OUTCOME_ACCEPTED
    filled = await lab.respond("f", FILLED)
    assert (filled.form.outcome, filled.form.answer) == (Outcome.REQUEST_OUTCOME_ACCEPTED, FILLED)
    assert driver.answers == [("q", BLUE), ("f", FILLED)]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE),
            Outcome.REQUEST_OUTCOME_REJECTED,
        ),
        (
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL),
            Outcome.REQUEST_OUTCOME_CANCELLED,
        ),
        (
            interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions()),
            Outcome.REQUEST_OUTCOME_REJECTED,
        ),
    ],
)
async def test_questions_and_forms_are_declined(lab: Lab, answer: Any, outcome: int) -> None:
    driver = await asking(lab)
    is_form = isinstance(answer, interaction_pb2.FormAnswer)
    await driver.publish(form("r") if is_form else question("r"))
    response = await lab.respond("r", answer)
    assert (response.form if is_form else response.question).outcome == outcome


async def test_the_same_answer_again_gives_the_same_result(lab: Lab) -> None:
    driver = await asking(lab)
    first = await lab.respond("ask", ACCEPT)
    assert await lab.respond("ask", ACCEPT) == first
    await driver.end_turn()
    await lab.restart()
    assert await lab.respond("ask", ACCEPT) == first
    await lab.manager.end("s")
    assert await lab.respond("ask", ACCEPT) == first
    assert len(driver.answers) == 1


@pytest.mark.parametrize("restarts", [True, False])
async def test_another_answer_learns_the_resolution(lab: Lab, restarts: bool) -> None:
    driver = await asking(lab)
    first = await lab.respond("ask", ACCEPT)
    await driver.end_turn()
    if restarts:
        await lab.restart()
    with Refused(
        error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED,
        request_id="ask",
        outcome="REQUEST_OUTCOME_ACCEPTED",
        resolved_by="RESOLVED_BY_CLIENT",
        sequence=str(first.sequence),
    ):
        await lab.respond("ask", REJECT)


async def test_a_request_nobody_asked_is_not_found(lab: Lab) -> None:
    await asking(lab)
    with Refused(error_pb2.ERROR_REASON_REQUEST_NOT_FOUND, request_id="other"):
        await lab.respond("other", ACCEPT)
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.respond("ask", ACCEPT, session_id="t")


async def test_of_many_answers_at_once_one_is_delivered(lab: Lab, script: Script) -> None:
    driver = await asking(lab)

    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        await asyncio.sleep(0)

    script.on_answer = on_answer
    answers = [ACCEPT, REJECT, FOR_SESSION, ACCEPT, REJECT] * 10
    results = await asyncio.gather(
        *(lab.respond("ask", answer) for answer in answers), return_exceptions=True
    )
    assert driver.answers == [("ask", ACCEPT)]
    (resolved,) = await lab.only("permission_resolved")
    for answer, result in zip(answers, results, strict=True):
        if answer == ACCEPT:
            assert isinstance(result, service_pb2.RespondResponse)
            assert result.permission == resolved
        else:
            with Refused(error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED):
                assert isinstance(result, BaseException)
                raise result


async def test_answers_that_come_while_others_wait_never_meet_in_the_agent(
    lab: Lab, script: Script
) -> None:
    """Undelivered answers make way for others, and latecomers must queue behind those."""
    at_once = 0

    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0)
        at_once -= 1
        if answer == ACCEPT:
            raise NotDelivered("lost")

    script.on_answer = on_answer
    driver = await asking(lab)
    calls = [asyncio.ensure_future(lab.respond("ask", ACCEPT)) for _ in range(5)]
    await asyncio.wait([calls[0]])
    calls += [asyncio.ensure_future(lab.respond("ask", ACCEPT)) for _ in range(5)]
    await asyncio.wait([calls[1]])
    calls.append(asyncio.ensure_future(lab.respond("ask", REJECT)))
    await asyncio.wait(calls)
    assert driver.answers == [("ask", REJECT)]


@pytest.mark.parametrize("error", [NotDelivered("lost"), ZeroDivisionError("a fault")])
async def test_an_answer_that_is_not_delivered_leaves_the_request_pending(
    lab: Lab, script: Script, error: Exception
) -> None:
    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        raise error

    await asking(lab)
    script.on_answer = on_answer
    with Refused(error_pb2.ERROR_REASON_ANSWER_NOT_DELIVERED, request_id="ask"):
        await lab.respond("ask", ACCEPT)
    assert (await lab.get()).pending_requests
    assert not await lab.log.get_prefix("s", "intent/")
    script.on_answer = nothing
    response = await lab.respond("ask", REJECT)
    assert response.permission.outcome == Outcome.REQUEST_OUTCOME_REJECTED


async def test_an_agent_that_withdraws_while_an_answer_is_on_its_way_wins(
    lab: Lab, script: Script
) -> None:
    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        await driver.publish(withdrawn("ask"))

    await asking(lab)
    script.on_answer = on_answer
    with Refused(
        error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED,
        outcome="REQUEST_OUTCOME_CANCELLED",
        resolved_by="RESOLVED_BY_AGENT",
    ):
        await lab.respond("ask", ACCEPT)
    assert not await lab.log.get_prefix("s", "intent/")


async def test_a_request_that_goes_away_before_the_delivery_is_not_answered(
    lab: Lab, script: Script
) -> None:
    driver = await asking(lab)
    lab.gate.shut()
    call = asyncio.ensure_future(lab.respond("ask", ACCEPT))
    await asyncio.to_thread(lab.gate.reached.wait)
    await driver.publish(withdrawn("ask"), permission("ask"))
    lab.gate.open()
    with Refused(error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED):
        await call
    assert "answer" not in script.calls
    (pending,) = (await lab.get()).pending_requests
    await lab.respond(pending.permission.request_id, REJECT)
    assert driver.answers == [("ask", REJECT)]


async def test_an_answer_goes_on_without_its_caller(lab: Lab, script: Script) -> None:
    delivered = asyncio.Event()

    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        await delivered.wait()

    driver = await asking(lab)
    script.on_answer = on_answer
    call = asyncio.ensure_future(lab.respond("ask", ACCEPT))
    await until(lambda: "answer" in script.calls)
    call.cancel()
    await asyncio.wait([call])
    delivered.set()
    await lab.until("permission_resolved")
    assert len(driver.answers) == 1


async def test_an_agent_that_fails_to_end_the_turn_with_a_rejection_is_stopped(
    lab: Lab, script: Script
) -> None:
    lab.settings["interrupt_grace_seconds"] = 0.01
    await lab.restart()
    await asking(lab)
    answer = interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_REJECT, interrupt=True
    )
    await lab.respond("ask", answer)
    events = await lab.until("turn_ended")
    assert events[-1].turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    assert script.calls[-1] == "interrupt"


async def test_answers_while_the_log_is_out(lab: Lab) -> None:
    driver = await asking(lab)
    lab.gate.error = disk_full()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.respond("ask", ACCEPT)
    assert not driver.answers
    lab.gate.error = None
    await until(lambda: lab.manager._live.get("s").runtime.journal.failure is None)  # type: ignore[union-attr]
    assert not await lab.log.get_prefix("s", "intent/")
    await lab.respond("ask", REJECT)
    assert driver.answers == [("ask", REJECT)]


# Answers that do not fit


def answers(*given: interaction_pb2.SingleAnswer) -> interaction_pb2.QuestionAnswer:
    return interaction_pb2.QuestionAnswer(answered=interaction_pb2.AnsweredQuestions(answers=given))


def single(question_id: str, *labels: str, text: str = "") -> interaction_pb2.SingleAnswer:
    return interaction_pb2.SingleAnswer(question_id=question_id, labels=labels, text=text)


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (interaction_pb2.PermissionAnswer(), ["permission.decision"]),
        (permission_answer("ACCEPT_FOR_SESSION"), ["permission.decision"]),
        (permission_answer(message="m"), ["permission.message"]),
        (permission_answer("REJECT", message="m"), ["permission.message"]),
        (permission_answer(interrupt=True), ["permission.interrupt"]),
        (
            permission_answer(updated_arguments_json="{}"),
            ["permission.updated_arguments_json"],
        ),
        (permission_answer(suggestion_ids=["s1", "s9"]), ["permission.suggestion_ids[1]"]),
        (permission_answer("REJECT", suggestion_ids=["s1"]), ["permission.suggestion_ids"]),
        (BLUE, ["answer"]),
        (FILLED, ["answer"]),
    ],
)
async def test_a_permission_answer_that_does_not_fit(
    lab: Lab, answer: Any, fields: list[str]
) -> None:
    driver = await asking(lab)
    draft = permission("r", takes_message=False, takes_updated_arguments=False)
    del draft.event.permission_requested.allowed_decisions[1]
    await driver.publish(draft)
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.respond("r", answer)
    assert refused.fields == fields
    assert not driver.answers
    assert len((await lab.get()).pending_requests) == 2


@pytest.mark.parametrize(
    "arguments", ["", "[]", "{", "null", '{"a":1} x', '{"a":Infinity}', '{"a":' * 9999]
)
async def test_updated_arguments_are_one_object(lab: Lab, arguments: str) -> None:
    await asking(lab)
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.respond("ask", permission_answer(updated_arguments_json=arguments))
    assert refused.fields == ["permission.updated_arguments_json"]


async def test_updated_arguments_do_not_go_with_a_rejection(lab: Lab) -> None:
    await asking(lab)
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.respond("ask", permission_answer("REJECT", updated_arguments_json="{}"))
    assert refused.fields == ["permission.updated_arguments_json"]
    await lab.respond("ask", permission_answer(updated_arguments_json=f'{{"a": {"9" * 5000}}}'))


QUESTIONS = [
    interaction_pb2.Question(
        question_id="one",
        text="?",
        options=[interaction_pb2.QuestionOption(label=label) for label in "ab"],
    ),
    interaction_pb2.Question(
        question_id="many",
        text="?",
        multi_select=True,
        free_text=True,
        options=[interaction_pb2.QuestionOption(label=label) for label in "ab"],
    ),
    interaction_pb2.Question(question_id="free", text="?", free_text=True, optional=True),
]
AT = "question.answered.answers"


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (interaction_pb2.QuestionAnswer(), ["question.answer"]),
        (answers(), [AT, AT]),
        (answers(single("one", "a")), [AT]),
        (answers(single("one", "c"), single("many", "a")), [f"{AT}[0].labels[0]"]),
        (answers(single("one", "a", "b"), single("many", "a")), [f"{AT}[0].labels"]),
        (answers(single("one", text="x"), single("many", "a")), [f"{AT}[0].text"]),
        (answers(single("one"), single("many", "a")), [f"{AT}[0]"]),
        (answers(single("one", "a"), single("many", "a", "a")), [f"{AT}[1].labels"]),
        (
            answers(single("one", "a"), single("one", "a"), single("many", "a")),
            [f"{AT}[1].question_id"],
        ),
        (
            answers(single("one", "a"), single("many", "a"), single("zzz", "a")),
            [f"{AT}[2].question_id"],
        ),
        (ACCEPT, ["answer"]),
    ],
)
async def test_an_answer_to_questions_that_does_not_fit(
    lab: Lab, answer: Any, fields: list[str]
) -> None:
    driver = await asking(lab)
    await driver.publish(question("q", QUESTIONS))
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.respond("q", answer)
    assert refused.fields == fields


@pytest.mark.parametrize(
    "answer",
    [
        answers(single("one", "a"), single("many", "a", "b", text="and more")),
        answers(single("many", text="only text"), single("one", "b"), single("free", text="x")),
        answers(single("one", "a"), single("many", "a"), single("free")),
    ],
)
async def test_an_answer_to_questions_that_fits(lab: Lab, answer: Any) -> None:
    driver = await asking(lab)
    await driver.publish(question("q", QUESTIONS))
    assert (await lab.respond("q", answer)).question.answer == answer


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (interaction_pb2.FormAnswer(), "form.action"),
        (
            interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_ACCEPT),
            "form.content_json",
        ),
        (
            interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_ACCEPT, content_json='{"a":NaN}'
            ),
            "form.content_json",
        ),
        (
            interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_CANCEL, content_json="{}"
            ),
            "form.content_json",
        ),
        (interaction_pb2.FormAnswer(action=99), "form.action"),  # type: ignore[arg-type]
        (ACCEPT, "answer"),
    ],
)
async def test_an_answer_to_a_form_that_does_not_fit(lab: Lab, answer: Any, field: str) -> None:
    driver = await asking(lab)
    await driver.publish(form("f"))
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.respond("f", answer)
    assert refused.fields == [field]


async def test_an_answer_is_required(lab: Lab) -> None:
    await asking(lab)
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.manager.respond(service_pb2.RespondRequest(session_id="s", request_id="ask"))
    assert refused.fields == ["answer"]


async def test_a_secret_reaches_the_agent_and_nothing_else(lab: Lab, script: Script) -> None:
    driver = await asking(lab)
    secret = interaction_pb2.Question(question_id="key", text="?", free_text=True, secret=True)
    await driver.publish(question("q", [secret]))
    in_between: list[bool] = []

    async def on_answer(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        in_between.append(holds_secret(lab.directory))

    script.on_answer = on_answer
    answer = answers(single("key", text=SECRET))
    response = await lab.respond("q", answer)
    assert await lab.respond("q", answer) == response
    assert driver.answers == [("q", answer)]
    assert response.question.answer.answered.answers[0].text == ""
    await lab.restart()
    assert await lab.respond("q", answer) == response
    with Refused(error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED):
        await lab.respond("q", answers(single("key", text="other")))
    assert in_between == [False]
    assert not holds_secret(lab.directory)


def holds_secret(directory: Path) -> bool:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return any(SECRET.encode() in path.read_bytes() for path in files)
