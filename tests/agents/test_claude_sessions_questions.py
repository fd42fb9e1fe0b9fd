"""Claude Code through the daemon: questions, and requests that nobody answers."""

import json
from typing import Any

import pytest
from google.protobuf import duration_pb2
from grpc import StatusCode, aio

from agentstream.v1 import interaction_pb2, session_pb2
from tests.support.anthropic_server import AnthropicServer, reply, result_of, text, tool_use
from tests.support.e2e import COMPLETED, INTERRUPTED, Bench, refused
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

ACCEPTED = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
EXPIRED = interaction_pb2.REQUEST_OUTCOME_EXPIRED
POLICY = interaction_pb2.RESOLVED_BY_POLICY


def question(text: str, *labels: str, multi: bool = False) -> dict[str, Any]:
    return {
        "question": text,
        "header": text.split()[1][:12],
        "multiSelect": multi,
        "options": [{"label": label, "description": f"It is {label}"} for label in labels],
    }


QUESTIONS = {
    "questions": [
        question("Which color?", "Red", "Blue"),
        question("Which toppings?", "Olives", "Onions", "Capers", multi=True),
        question("Which name?", "Ada", "Grace"),
    ]
}


def ask(model: AnthropicServer, answer: str = "So be it.") -> None:
    model.script(
        reply(tool_use("AskUserQuestion", QUESTIONS, id="toolu_ask")),
        reply(text(answer), when=result_of("toolu_ask")),
    )


@EVERY_CLAUDE
async def test_several_questions_get_labels_and_free_text(
    bench: Bench, model: AnthropicServer
) -> None:
    ask(model)
    session = await bench.session()
    await session.send("Ask me")
    asked = await session.question()
    color, toppings, name = asked.questions
    assert [q.text for q in asked.questions] == [q["question"] for q in QUESTIONS["questions"]]
    assert [o.label for o in toppings.options] == ["Olives", "Onions", "Capers"]
    assert toppings.options[0].description == "It is Olives"
    assert (color.multi_select, toppings.multi_select) == (False, True)
    assert name.free_text
    assert asked.call_id == "toolu_ask"
    assert [p.question for p in (await session.get()).pending_requests] == [asked]

    answered = interaction_pb2.AnsweredQuestions()
    answered.answers.add(question_id=color.question_id, labels=["Blue"])
    answered.answers.add(question_id=toppings.question_id, labels=["Olives", "Capers"])
    answered.answers.add(question_id=name.question_id, text="Zoë")
    answer = interaction_pb2.QuestionAnswer(answered=answered)
    response = await session.respond(asked.request_id, question=answer)
    assert response.question.outcome == ACCEPTED
    assert response.question.answer == answer
    assert (await session.turn_ended()).status == COMPLETED
    told = model.requests[1].tool_results["toolu_ask"]["content"]
    for part in ('"Which color?"="Blue"', "Olives", "Capers", '"Which name?"="Zoë"'):
        assert part in told
    assert "Onions" not in told


@EVERY_CLAUDE
async def test_rejected_questions_let_the_model_go_on(bench: Bench, model: AnthropicServer) -> None:
    ask(model)
    session = await bench.session()
    await session.send("Ask me")
    asked = await session.question()
    rejected = interaction_pb2.RejectedQuestions(message="Ask someone else.")
    answer = interaction_pb2.QuestionAnswer(rejected=rejected)
    response = await session.respond(asked.request_id, question=answer)
    assert response.question.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
    assert (await session.turn_ended()).status == COMPLETED
    assert "Ask someone else." in model.requests[1].tool_results["toolu_ask"]["content"]


async def test_answers_that_do_not_fit_are_refused_and_change_nothing(
    bench: Bench, model: AnthropicServer
) -> None:
    ask(model)
    session = await bench.session()
    await session.send("Ask me")
    asked = await session.question()
    answered = interaction_pb2.AnsweredQuestions()
    answered.answers.add(question_id=asked.questions[0].question_id, labels=["Red", "Blue"])
    answer = interaction_pb2.QuestionAnswer(answered=answered)
    with pytest.raises(aio.AioRpcError) as failed:
        await session.respond(asked.request_id, question=answer)
    assert refused(failed.value) == (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    with pytest.raises(aio.AioRpcError) as failed:
        await session.respond("another", question=answer)
    assert refused(failed.value)[0] == StatusCode.INVALID_ARGUMENT or refused(failed.value) == (
        StatusCode.NOT_FOUND,
        "REQUEST_NOT_FOUND",
    )
    assert len((await session.get()).pending_requests) == 1
    rejection = interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions())
    await session.respond(asked.request_id, question=rejection)
    await session.turn_ended()
    del answered.answers[:]
    with pytest.raises(aio.AioRpcError) as failed:
        await session.respond(asked.request_id, question=answer)
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "REQUEST_ALREADY_RESOLVED")


@EVERY_CLAUDE
async def test_a_one_shot_session_ends_after_its_turn(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("Done.")))
    session = await bench.session(one_shot=True)
    await session.send("Do it")
    assert await session.stream_ended() is None
    ended = session.of("session_ended")[0].session_ended
    assert ended.reason == 2  # ONE_SHOT_DONE
    assert session.texts == ["Done."]
    with pytest.raises(aio.AioRpcError) as failed:
        await session.send("Again")
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "SESSION_ENDED")


@EVERY_CLAUDE
async def test_a_one_shot_session_that_nobody_follows_rejects_what_is_asked(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x")),
        reply(tool_use("AskUserQuestion", QUESTIONS, id="toolu_ask"), when=result_of("toolu_x")),
        reply(text("Then not."), when=result_of("toolu_ask")),
    )
    session = await bench.session(one_shot=True, follow=False)
    await session.send("Do it")
    await (await model.request(2)).ended.wait()
    await session.follow()
    assert await session.stream_ended() is None
    permission = session.of("permission_resolved")[0].permission_resolved
    asked = session.of("question_resolved")[0].question_resolved
    for resolved in (permission, asked):
        assert (resolved.outcome, resolved.resolved_by) == (EXPIRED, POLICY)
        assert resolved.reason
    assert session.texts == ["Then not."]
    assert not (bench.workspace / "x").exists()


@pytest.mark.parametrize(
    ("policy", "outcome", "status", "runs"),
    [
        (session_pb2.REQUEST_POLICY_REJECT, EXPIRED, COMPLETED, False),
        (session_pb2.REQUEST_POLICY_ACCEPT, ACCEPTED, COMPLETED, True),
        (session_pb2.REQUEST_POLICY_INTERRUPT, EXPIRED, INTERRUPTED, False),
    ],
)
async def test_the_policy_applies_to_what_nobody_answers_in_time(
    bench: Bench,
    model: AnthropicServer,
    policy: session_pb2.RequestPolicy.ValueType,
    outcome: interaction_pb2.RequestOutcome.ValueType,
    status: int,
    runs: bool,
) -> None:
    model.script(
        reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x")),
        reply(text("Next."), when=result_of("toolu_x")),
    )
    session = await bench.session(
        request_timeout=duration_pb2.Duration(nanos=300_000_000), request_policy=policy
    )
    await session.send("Touch it")
    asked = await session.next("permission_requested")
    waited = asked.permission_requested.expire_time.ToNanoseconds() - asked.time.ToNanoseconds()
    assert waited == pytest.approx(300_000_000, rel=0.2)
    assert (await session.turn_ended()).status == status
    resolved = session.of("permission_resolved")[0].permission_resolved
    assert (resolved.outcome, resolved.resolved_by) == (outcome, POLICY)
    assert (bench.workspace / "x").exists() == runs
    if status == INTERRUPTED:
        model.forget_script()


async def test_an_expired_question_is_rejected(bench: Bench, model: AnthropicServer) -> None:
    ask(model, "No answer.")
    session = await bench.session(
        request_timeout=duration_pb2.Duration(nanos=200_000_000),
        request_policy=session_pb2.REQUEST_POLICY_ACCEPT,
    )
    assert (await session.turn("Ask me")).status == COMPLETED
    resolved = session.of("question_resolved")[0].question_resolved
    assert (resolved.outcome, resolved.resolved_by) == (EXPIRED, POLICY)
    assert "toolu_ask" in model.requests[1].tool_results
    assert json.dumps(model.requests[1].tool_results["toolu_ask"]).count("is_error") == 1
