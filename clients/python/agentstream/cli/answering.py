"""Who answers what the agent asks: a person, or a policy."""

from typing import Protocol

from agentstream.cli.prompts import Answer, Request
from agentstream.client import AsyncClient, typed_errors
from agentstream.v1 import event_pb2, interaction_pb2, service_pb2

NOBODY = "Nobody is here to answer."


class Answerer(Protocol):
    """Answers requests; raises `terminal.Interrupted` when the person would rather stop."""

    async def ask(self, request: Request) -> Answer:
        """The answer to `request`."""


class PolicyAnswerer:
    """Answers without a person: all permissions alike; questions and forms are declined."""

    def __init__(self, *, accept: bool) -> None:
        self._accept = accept

    async def ask(self, request: Request) -> Answer:
        """The answer to `request`."""
        match request:
            case interaction_pb2.PermissionRequest():
                if self._accept:
                    return interaction_pb2.PermissionAnswer(
                        decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
                    )
                return interaction_pb2.PermissionAnswer(
                    decision=interaction_pb2.PERMISSION_DECISION_REJECT,
                    message=NOBODY if request.takes_message else "",
                )
            case interaction_pb2.QuestionRequest():
                rejected = interaction_pb2.RejectedQuestions(message=NOBODY)
                return interaction_pb2.QuestionAnswer(rejected=rejected)
        return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)


def request_of(event: event_pb2.Event) -> Request | None:
    """The request that `event` brings, if it does."""
    match event.WhichOneof("payload"):
        case "permission_requested":
            return event.permission_requested
        case "question_requested":
            return event.question_requested
        case "form_requested":
            return event.form_requested
    return None


def resolved_request_id(event: event_pb2.Event) -> str:
    """The id of the request that `event` resolves; empty for any other event."""
    match event.WhichOneof("payload"):
        case "permission_resolved":
            return event.permission_resolved.request_id
        case "question_resolved":
            return event.question_resolved.request_id
        case "form_resolved":
            return event.form_resolved.request_id
    return ""


def pending_request(pending: interaction_pb2.PendingRequest) -> Request:
    """The request that waits."""
    match pending.WhichOneof("request"):
        case "permission":
            return pending.permission
        case "question":
            return pending.question
    return pending.form


def respond_request(session_id: str, request_id: str, answer: Answer) -> service_pb2.RespondRequest:
    """The call that gives `answer`."""
    request = service_pb2.RespondRequest(session_id=session_id, request_id=request_id)
    match answer:
        case interaction_pb2.PermissionAnswer():
            request.permission.CopyFrom(answer)
        case interaction_pb2.QuestionAnswer():
            request.question.CopyFrom(answer)
        case _:
            request.form.CopyFrom(answer)
    return request


async def respond(
    client: AsyncClient, session_id: str, request_id: str, answer: Answer
) -> service_pb2.RespondResponse:
    """Give `answer`; raises AgentstreamError."""
    with typed_errors():
        return await client.stub.Respond(respond_request(session_id, request_id, answer))
