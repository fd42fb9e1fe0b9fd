"""Requests that wait for an answer, and how each kind of them is resolved."""

from dataclasses import dataclass

from agentstream.v1 import event_pb2, interaction_pb2, service_pb2
from agentstreamd.model import Draft, Kind, event

Request = (
    interaction_pb2.PermissionRequest
    | interaction_pb2.QuestionRequest
    | interaction_pb2.FormRequest
)
Answer = (
    interaction_pb2.PermissionAnswer | interaction_pb2.QuestionAnswer | interaction_pb2.FormAnswer
)
Resolved = (
    interaction_pb2.PermissionResolved
    | interaction_pb2.QuestionResolved
    | interaction_pb2.FormResolved
)

REQUESTED = {
    Kind.PERMISSION_REQUESTED: "permission_requested",
    Kind.QUESTION_REQUESTED: "question_requested",
    Kind.FORM_REQUESTED: "form_requested",
}
RESOLVED = {
    Kind.PERMISSION_RESOLVED: "permission_resolved",
    Kind.QUESTION_RESOLVED: "question_resolved",
    Kind.FORM_RESOLVED: "form_resolved",
}
_RESOLVING = {
    Kind.PERMISSION_REQUESTED: Kind.PERMISSION_RESOLVED,
    Kind.QUESTION_REQUESTED: Kind.QUESTION_RESOLVED,
    Kind.FORM_REQUESTED: Kind.FORM_RESOLVED,
}


@dataclass(slots=True)
class Pending:
    """A request that waits for an answer.

    Attributes:
        kind: Which kind of event asked.
        request: The request as it is in the stream.
        adapter_id: What the adapter calls it.
        sequence: Sequence of the event that asked.
        time_ns: When, Unix nanoseconds.
        turn_id: The turn it was asked in; empty outside a turn.
    """

    kind: Kind
    request: Request
    adapter_id: str
    sequence: int
    time_ns: int
    turn_id: str

    def describe(self) -> interaction_pb2.PendingRequest:
        """The request as snapshots show it."""
        shown = interaction_pb2.PendingRequest(sequence=self.sequence, turn_id=self.turn_id)
        shown.create_time.FromNanoseconds(self.time_ns)
        match self.request:
            case interaction_pb2.PermissionRequest():
                shown.permission.CopyFrom(self.request)
            case interaction_pb2.QuestionRequest():
                shown.question.CopyFrom(self.request)
            case interaction_pb2.FormRequest():
                shown.form.CopyFrom(self.request)
        return shown


def request_of(kind: Kind, of: event_pb2.Event) -> Request:
    """The request in an event that asks."""
    request: Request = getattr(of, REQUESTED[kind])
    return request


def resolved_of(kind: Kind, of: event_pb2.Event) -> Resolved:
    """The resolution in an event that resolves."""
    resolved: Resolved = getattr(of, RESOLVED[kind])
    return resolved


def resolution(
    pending: Pending,
    outcome: interaction_pb2.RequestOutcome.ValueType,
    by: interaction_pb2.ResolvedBy.ValueType,
    *,
    answer: Answer | None = None,
    reason: str = "",
    synthetic: bool = False,
) -> Draft:
    """The event that resolves `pending`. Text of secret answers is left out of it."""
    made = event(synthetic=synthetic, by_daemon=by != interaction_pb2.RESOLVED_BY_AGENT)
    kind = _RESOLVING[pending.kind]
    resolved = resolved_of(kind, made)
    resolved.request_id = pending.request.request_id
    resolved.outcome = outcome
    resolved.resolved_by = by
    resolved.reason = reason
    match answer, resolved:
        case interaction_pb2.PermissionAnswer(), interaction_pb2.PermissionResolved():
            resolved.answer.CopyFrom(answer)
        case interaction_pb2.QuestionAnswer(), interaction_pb2.QuestionResolved():
            resolved.answer.CopyFrom(answer)
            if isinstance(pending.request, interaction_pb2.QuestionRequest):
                secret = {q.question_id for q in pending.request.questions if q.secret}
                for single in resolved.answer.answered.answers:
                    if single.question_id in secret:
                        single.ClearField("text")
        case interaction_pb2.FormAnswer(), interaction_pb2.FormResolved():
            resolved.answer.CopyFrom(answer)
        case _:
            pass
    return Draft(kind, made)


def as_resolution_of(pending: Pending, draft: Draft) -> Draft:
    """The resolution as one of the kind of request that it resolves, if it is of another kind.

    An adapter tells the kinds apart by what the agent says of the request, and what an agent says
    when it asks and later, of its resolution, may differ.
    """
    if draft.kind == _RESOLVING[pending.kind]:
        return draft
    said = resolved_of(draft.kind, draft.event)
    fitting = resolution(pending, said.outcome, said.resolved_by, reason=said.reason)
    fitting.event.source = draft.event.source
    fitting.event.metadata_json = draft.event.metadata_json
    return Draft(fitting.kind, fitting.event, draft.raw)


def respond_response(resolved: Resolved, sequence: int) -> service_pb2.RespondResponse:
    """A resolution as `Respond` returns it."""
    response = service_pb2.RespondResponse(sequence=sequence)
    match resolved:
        case interaction_pb2.PermissionResolved():
            response.permission.CopyFrom(resolved)
        case interaction_pb2.QuestionResolved():
            response.question.CopyFrom(resolved)
        case interaction_pb2.FormResolved():
            response.form.CopyFrom(resolved)
    return response


def resolved_in(response: service_pb2.RespondResponse) -> Resolved:
    """The resolution in what `Respond` returns."""
    match response.WhichOneof("resolution"):
        case "question":
            return response.question
        case "form":
            return response.form
        case _:
            return response.permission
