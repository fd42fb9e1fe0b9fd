"""Checking an answer against its request."""

import json

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.sessions.errors import invalid
from agentstreamd.sessions.requests import Answer, Request

Violations = list[tuple[str, str]]

_FORM_ACTIONS = (
    interaction_pb2.FORM_ACTION_ACCEPT,
    interaction_pb2.FORM_ACTION_DECLINE,
    interaction_pb2.FORM_ACTION_CANCEL,
)


def answer_of(request: service_pb2.RespondRequest) -> Answer:
    """The answer that a `RespondRequest` carries."""
    match request.WhichOneof("answer"):
        case "permission":
            return request.permission
        case "question":
            return request.question
        case "form":
            return request.form
        case _:
            raise invalid(("answer", "is required"))


def check_answer(request: Request, answer: Answer) -> None:
    """Refuse an answer that does not fit its request, naming each field at fault.

    Raises:
        SessionError: INVALID_FIELD.
    """
    match request, answer:
        case interaction_pb2.PermissionRequest(), interaction_pb2.PermissionAnswer():
            found = _check_permission(request, answer)
        case interaction_pb2.QuestionRequest(), interaction_pb2.QuestionAnswer():
            found = _check_questions(request, answer)
        case interaction_pb2.FormRequest(), interaction_pb2.FormAnswer():
            found = _check_form(answer)
        case _:
            wanted = type(request).__name__.removesuffix("Request").lower()
            found = [("answer", f"must be a {wanted} answer: that is what was asked")]
    if found:
        raise invalid(*found)


def _check_permission(
    request: interaction_pb2.PermissionRequest, answer: interaction_pb2.PermissionAnswer
) -> Violations:
    found: Violations = []
    rejects = answer.decision == interaction_pb2.PERMISSION_DECISION_REJECT
    if answer.decision not in request.allowed_decisions:
        allowed = ", ".join(
            interaction_pb2.PermissionDecision.Name(decision)
            for decision in request.allowed_decisions
        )
        found.append(("permission.decision", f"must be one of {allowed}"))
    if answer.message and not (rejects and request.takes_message):
        found.append(("permission.message", "is taken only with a rejection, where offered"))
    if answer.interrupt and not rejects:
        found.append(("permission.interrupt", "is taken only with a rejection"))
    if answer.HasField("updated_arguments_json"):
        if rejects or not request.takes_updated_arguments:
            found.append(
                ("permission.updated_arguments_json", "is not taken by this request or decision")
            )
        elif not _is_object(answer.updated_arguments_json):
            found.append(("permission.updated_arguments_json", "must be one JSON object"))
    known = {suggestion.suggestion_id for suggestion in request.suggestions}
    for index, suggestion_id in enumerate(answer.suggestion_ids):
        if suggestion_id not in known:
            found.append((f"permission.suggestion_ids[{index}]", "is not one that was suggested"))
    if answer.suggestion_ids and rejects:
        found.append(("permission.suggestion_ids", "can't be granted with a rejection"))
    return found


def _check_questions(
    request: interaction_pb2.QuestionRequest, answer: interaction_pb2.QuestionAnswer
) -> Violations:
    which = answer.WhichOneof("answer")
    if which is None:
        return [("question.answer", "is required")]
    if which == "rejected":
        return []
    found: Violations = []
    questions = {question.question_id: question for question in request.questions}
    answered: set[str] = set()
    for index, single in enumerate(answer.answered.answers):
        path = f"question.answered.answers[{index}]"
        question = questions.get(single.question_id)
        if question is None:
            found.append((f"{path}.question_id", "is not one of the questions"))
            continue
        if single.question_id in answered:
            found.append((f"{path}.question_id", "is answered twice"))
        answered.add(single.question_id)
        found.extend(_check_single(path, question, single))
    for question_id, question in questions.items():
        if question_id not in answered and not question.optional:
            found.append(("question.answered.answers", f"{question_id} is not answered"))
    return found


def _check_single(
    path: str, question: interaction_pb2.Question, single: interaction_pb2.SingleAnswer
) -> Violations:
    found: Violations = []
    labels = {option.label for option in question.options}
    for index, label in enumerate(single.labels):
        if label not in labels:
            found.append((f"{path}.labels[{index}]", "is not one of the options"))
    if len(set(single.labels)) != len(single.labels):
        found.append((f"{path}.labels", "names an option twice"))
    if len(single.labels) > 1 and not question.multi_select:
        found.append((f"{path}.labels", "only one option may be chosen"))
    if single.text and not question.free_text:
        found.append((f"{path}.text", "this question takes only its options"))
    if not single.labels and not single.text and not question.optional:
        found.append((path, "is empty"))
    return found


def _check_form(answer: interaction_pb2.FormAnswer) -> Violations:
    if answer.action not in _FORM_ACTIONS:
        return [("form.action", "must be accept, decline or cancel")]
    if answer.action == interaction_pb2.FORM_ACTION_ACCEPT:
        return (
            []
            if _is_object(answer.content_json)
            else [("form.content_json", "must be one JSON object")]
        )
    return [("form.content_json", "is taken only with accept")] if answer.content_json else []


def _is_object(text: str) -> bool:
    try:
        # Numbers stay text: Python refuses integers of more than 4300 digits.
        value = json.loads(text, parse_int=str, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
