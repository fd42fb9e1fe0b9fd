"""Answers of a recorded client, as they fit the requests of a replay. Pure."""

import json

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.base import Answer
from agentstreamd.sessions.requests import Pending

_PERMISSION_OUTCOMES = {
    interaction_pb2.PERMISSION_DECISION_ACCEPT: interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
    interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION: (
        interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION
    ),
}
_FORM_OUTCOMES = {
    interaction_pb2.FORM_ACTION_ACCEPT: interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
    interaction_pb2.FORM_ACTION_DECLINE: interaction_pb2.REQUEST_OUTCOME_REJECTED,
}


def fitting(pending: Pending, answer: Answer) -> Answer:
    """The answer, of the request's own kind: a native rejection may not say what it rejects, and a
    native acceptance may repeat arguments that nobody has changed, or be wider than was offered.
    """
    match pending.request:
        case interaction_pb2.PermissionRequest() as request:
            return _permission(request, answer)
        case interaction_pb2.QuestionRequest() as asked:
            if isinstance(answer, interaction_pb2.QuestionAnswer):
                return _words_apart(asked, answer)
            rejected = interaction_pb2.RejectedQuestions()
            if isinstance(answer, interaction_pb2.PermissionAnswer):
                rejected.message, rejected.interrupt = answer.message, answer.interrupt
            return interaction_pb2.QuestionAnswer(rejected=rejected)
        case _:
            if isinstance(answer, interaction_pb2.FormAnswer):
                return answer
            return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)


def _words_apart(
    asked: interaction_pb2.QuestionRequest, answer: interaction_pb2.QuestionAnswer
) -> Answer:
    """The answer with what is none of the options as text of one's own: not every agent's protocol
    tells them apart.
    """
    options = {q.question_id: {option.label for option in q.options} for q in asked.questions}
    for single in answer.answered.answers:
        known = options.get(single.question_id, set())
        own = [label for label in single.labels if label not in known]
        if own:
            kept = [label for label in single.labels if label in known]
            single.text = "\n".join([*([single.text] if single.text else []), *own])
            del single.labels[:]
            single.labels.extend(kept)
    return answer


def _permission(request: interaction_pb2.PermissionRequest, answer: Answer) -> Answer:
    if not isinstance(answer, interaction_pb2.PermissionAnswer):
        accepted = outcome_of(answer) == interaction_pb2.REQUEST_OUTCOME_ACCEPTED
        return interaction_pb2.PermissionAnswer(
            decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
            if accepted
            else interaction_pb2.PERMISSION_DECISION_REJECT
        )
    if _equal_json(answer.updated_arguments_json, request.arguments_json):
        answer.ClearField("updated_arguments_json")
    if answer.decision not in request.allowed_decisions:
        answer.decision = interaction_pb2.PERMISSION_DECISION_ACCEPT
    return answer


def _equal_json(one: str, other: str) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def outcome_of(answer: Answer) -> interaction_pb2.RequestOutcome.ValueType:
    """How a request is resolved by this answer."""
    match answer:
        case interaction_pb2.PermissionAnswer():
            return _PERMISSION_OUTCOMES.get(
                answer.decision, interaction_pb2.REQUEST_OUTCOME_REJECTED
            )
        case interaction_pb2.QuestionAnswer():
            if answer.WhichOneof("answer") == "answered":
                return interaction_pb2.REQUEST_OUTCOME_ACCEPTED
            return interaction_pb2.REQUEST_OUTCOME_REJECTED
        case _:
            return _FORM_OUTCOMES.get(answer.action, interaction_pb2.REQUEST_OUTCOME_CANCELLED)
