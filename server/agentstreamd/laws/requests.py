"""Law 7: every request is resolved exactly once."""

from collections.abc import Callable
from dataclasses import dataclass

from agentstream.v1 import event_pb2, interaction_pb2
from agentstreamd.laws.violation import FORM, Report

_ACCEPTED = {
    interaction_pb2.PERMISSION_DECISION_ACCEPT: interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
    interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION: (
        interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION
    ),
    interaction_pb2.PERMISSION_DECISION_REJECT: interaction_pb2.REQUEST_OUTCOME_REJECTED,
}

_Resolved = (
    interaction_pb2.PermissionResolved
    | interaction_pb2.QuestionResolved
    | interaction_pb2.FormResolved
)


@dataclass(slots=True)
class _Pending:
    kind: str
    turn_id: str
    decisions: frozenset[int] = frozenset()
    secrets: frozenset[str] = frozenset()


class RequestLaws:
    """Follows permissions, questions and forms. Keeps the ids of all that were asked."""

    def __init__(self, report: Report, parent: Callable[[str, str], None]) -> None:
        """`parent` checks that a parent came before what names it."""
        self._report = report
        self._parent = parent
        self._known: set[str] = set()
        self._pending: dict[str, _Pending] = {}

    def requested(self, kind: str, event: event_pb2.Event) -> None:
        """Check a request; `kind` is permission, question or form."""
        request = getattr(event, f"{kind}_requested")
        request_id = request.request_id
        self._parent(request.parent_id, f"request {request_id}")
        if request_id in self._known:
            self._report(7, f"request {request_id} is asked again")
            return
        self._known.add(request_id)
        pending = _Pending(kind, event.turn_id)
        if isinstance(request, interaction_pb2.PermissionRequest):
            pending.decisions = frozenset(request.allowed_decisions)
        elif isinstance(request, interaction_pb2.QuestionRequest):
            pending.secrets = frozenset(one.question_id for one in request.questions if one.secret)
        self._pending[request_id] = pending

    def resolved(self, kind: str, event: event_pb2.Event) -> None:
        """Check a resolution; `kind` is permission, question or form."""
        resolved: _Resolved = getattr(event, f"{kind}_resolved")
        request_id = resolved.request_id
        pending = self._pending.pop(request_id, None)
        if pending is None:
            state = "resolved already" if request_id in self._known else "not asked"
            self._report(7, f"request {request_id} is resolved, but it was {state}")
            return
        if pending.kind != kind:
            self._report(7, f"request {request_id} is a {pending.kind}, but resolved as a {kind}")
        if pending.turn_id != event.turn_id:
            self._report(3, f"request {request_id} is resolved under another turn_id than asked")
        self._check_resolver(resolved, event)
        self._check_answer(resolved, pending)

    def turn_ended(self, turn_id: str) -> None:
        """Check that no request of a turn is left pending at its end."""
        self._check_none(
            [one for one, request in self._pending.items() if request.turn_id == turn_id],
            f"turn {turn_id} ended",
        )

    def session_ended(self) -> None:
        """Check that no request is left pending at the session's end."""
        self._check_none(list(self._pending), "the session ended")

    def _check_none(self, pending: list[str], when: str) -> None:
        for request_id in pending:
            self._report(7, f"request {request_id} was not resolved when {when}")
            del self._pending[request_id]

    def _check_resolver(self, resolved: _Resolved, event: event_pb2.Event) -> None:
        by = resolved.resolved_by
        if by == interaction_pb2.RESOLVED_BY_CLIENT:
            if event.source != event_pb2.EVENT_SOURCE_DAEMON or event.synthetic:
                self._report(
                    8,
                    f"a client resolved {resolved.request_id}: the event's source must be the "
                    "daemon, and it is not synthetic",
                )
            if not resolved.HasField("answer"):
                self._report(7, f"a client resolved {resolved.request_id}, but without an answer")
        elif (
            by in (interaction_pb2.RESOLVED_BY_DAEMON, interaction_pb2.RESOLVED_BY_POLICY)
            and event.source != event_pb2.EVENT_SOURCE_DAEMON
        ):
            self._report(8, f"the daemon resolved {resolved.request_id}, but is not the source")

    def _check_answer(self, resolved: _Resolved, pending: _Pending) -> None:
        if not resolved.HasField("answer"):
            return
        if isinstance(resolved, interaction_pb2.PermissionResolved):
            decision = resolved.answer.decision
            if decision not in pending.decisions:
                self._report(7, f"the answer to {resolved.request_id} is none of those it allows")
            if (
                resolved.outcome != interaction_pb2.REQUEST_OUTCOME_UNKNOWN_AFTER_CRASH
                and resolved.outcome != _ACCEPTED.get(decision)
            ):
                self._report(
                    7, f"outcome and answer of {resolved.request_id} contradict each other"
                )
        elif isinstance(resolved, interaction_pb2.QuestionResolved):
            for answer in resolved.answer.answered.answers:
                if answer.question_id in pending.secrets and answer.text:
                    self._report(FORM, f"the answer to {resolved.request_id} discloses a secret")
