"""Answering requests: by clients, by policy, at a timeout; each exactly once."""

import asyncio
import logging

from agentstream.v1 import error_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AdapterError
from agentstreamd.events.log import EventLog
from agentstreamd.sessions import stored
from agentstreamd.sessions.answers import answer_of, check_answer
from agentstreamd.sessions.errors import SessionError, log_errors
from agentstreamd.sessions.keyed_locks import KeyedLocks
from agentstreamd.sessions.requests import Answer, Pending, Request, resolved_in
from agentstreamd.sessions.runtime import SessionRuntime

logger = logging.getLogger(__name__)

NOBODY = "nobody follows this one-shot session, and it has no request_timeout"
TIMEOUT = "nobody answered in time"

_INTENT = b"1"
_CLIENT = interaction_pb2.RESOLVED_BY_CLIENT
_POLICY = interaction_pb2.RESOLVED_BY_POLICY
_ACCEPTED = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
_EXPIRED = interaction_pb2.REQUEST_OUTCOME_EXPIRED


class Interactions:
    """The requests of one session, between clients, policies and the agent.

    Of several answers to one request one is delivered; the others wait for it and learn the
    outcome. A request stays pending until its answer is with the agent: one that can't be delivered
    changes nothing.
    """

    def __init__(self, runtime: SessionRuntime, log: EventLog) -> None:
        """Look after the requests of `runtime`."""
        self._runtime = runtime
        self._log = log
        self._locks = KeyedLocks()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        runtime.recording.on_asked = self._on_asked
        runtime.recording.on_resolved = self._on_resolved

    async def respond(self, request: service_pb2.RespondRequest) -> service_pb2.RespondResponse:
        """Deliver a client's answer; returns when the resolution is durable.

        Raises:
            SessionError: INVALID_FIELD, REQUEST_NOT_FOUND, REQUEST_ALREADY_RESOLVED,
                ANSWER_NOT_DELIVERED, LOG_UNAVAILABLE.
        """
        answer = answer_of(request)
        digest = stored.digest(answer)
        request_id = request.request_id
        async with self._locks.hold(request_id):
            pending = self._runtime.keeper.pending.get(request_id)
            if pending is not None:
                check_answer(pending.request, answer)
                await self._deliver(pending, answer, digest)
            return await self._resolution(request_id, digest)

    async def _deliver(self, pending: Pending, answer: Answer, digest: bytes) -> None:
        """Deliver and settle; nothing when the request is resolved otherwise in the meantime."""
        runtime = self._runtime
        request_id = pending.request.request_id
        # The intent is durable first: after a crash in between, that the answer may have arrived is
        # known, and nobody is asked to answer again what may be done already.
        intent = stored.intent_key(request_id)
        try:
            await runtime.recording.committed(runtime.journal.write((), puts={intent: _INTENT}))
            if self._is_pending(pending):
                await runtime.seat.driver.answer(pending.adapter_id, answer)
        except BaseException as error:
            runtime.journal.write((), deletes=[intent])
            if not isinstance(error, Exception) or isinstance(error, SessionError):
                raise
            if not isinstance(error, AdapterError):
                logger.exception("session %s: the driver failed to answer", runtime.session_id)
            if self._is_pending(pending):
                raise _not_delivered(request_id, error) from error
            return
        if self._is_pending(pending):
            self._settle(pending, _outcome(answer), _CLIENT, answer, digest=digest)
            if _ends_turn(answer) and pending.turn_id:
                runtime.spawn(runtime.turns.stop_late(pending.turn_id), "interrupt")

    def _is_pending(self, pending: Pending) -> bool:
        return self._runtime.keeper.pending.get(pending.request.request_id) is pending

    def _settle(
        self,
        pending: Pending,
        outcome: interaction_pb2.RequestOutcome.ValueType,
        by: interaction_pb2.ResolvedBy.ValueType,
        answer: Answer | None,
        *,
        reason: str = "",
        digest: bytes = b"",
    ) -> None:
        runtime = self._runtime
        request_id = pending.request.request_id
        runtime.recording.answer_digests[request_id] = digest
        runtime.recording.tick()
        runtime.keeper.resolve(request_id, outcome, by, answer=answer, reason=reason)
        runtime.recording.flush()

    async def _resolution(self, request_id: str, digest: bytes) -> service_pb2.RespondResponse:
        """How a request was resolved, when that agrees with the answer of `digest`."""
        session_id = self._runtime.session_id
        # Resolved a moment ago, perhaps: what is on its way into the log comes first.
        await self._runtime.recording.sync()
        with log_errors(session_id):
            value = await self._log.get(session_id, stored.resolution_key(request_id))
        if value is None:
            raise request_not_found(request_id)
        return same_answer(request_id, value, digest)

    # Nobody answers

    def _on_asked(self, pending: Pending) -> None:
        request = pending.request
        if request.HasField("expire_time"):
            wait_ns = request.expire_time.ToNanoseconds() - pending.time_ns
            self._timers[request.request_id] = asyncio.get_running_loop().call_later(
                max(0.0, wait_ns / 1_000_000_000), self._on_timeout, pending
            )
        elif self._runtime.config.one_shot and not self._runtime.followers:
            self._expire(pending, session_pb2.REQUEST_POLICY_REJECT, NOBODY)

    def _on_resolved(self, request_id: str) -> None:
        timer = self._timers.pop(request_id, None)
        if timer is not None:
            timer.cancel()

    def _on_timeout(self, pending: Pending) -> None:
        self._timers.pop(pending.request.request_id, None)
        self._expire(pending, self._runtime.config.request_policy, TIMEOUT)

    def _expire(
        self, pending: Pending, policy: session_pb2.RequestPolicy.ValueType, reason: str
    ) -> None:
        self._runtime.spawn(self._apply_policy(pending, policy, reason), "expire")

    async def _apply_policy(
        self, pending: Pending, policy: session_pb2.RequestPolicy.ValueType, reason: str
    ) -> None:
        runtime = self._runtime
        async with self._locks.hold(pending.request.request_id):
            if not self._is_pending(pending):
                return
            answer = policy_answer(pending.request, policy, reason)
            told = answer is not None and await self._tell(pending, answer)
            if not self._is_pending(pending):
                return
            if told and answer is not None and _outcome(answer) == _ACCEPTED:
                self._settle(pending, _ACCEPTED, _POLICY, answer, reason=reason)
            elif told or not pending.turn_id:
                self._settle(pending, _EXPIRED, _POLICY, None, reason=reason)
        # Also where the agent can't be told: nothing must hang for ever.
        stops = not told or policy == session_pb2.REQUEST_POLICY_INTERRUPT
        if stops and pending.turn_id and runtime.keeper.turn_id == pending.turn_id:
            if told and answer is not None and _ends_turn(answer):
                await runtime.turns.stop_late(pending.turn_id)
            else:
                await runtime.turns.stop()

    async def _tell(self, pending: Pending, answer: Answer) -> bool:
        try:
            await self._runtime.seat.driver.answer(pending.adapter_id, answer)
        except AdapterError as error:
            logger.warning("session %s: %s", self._runtime.session_id, error)
            return False
        except Exception:
            logger.exception("session %s: the driver failed to answer", self._runtime.session_id)
            return False
        return True

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


def _not_delivered(request_id: str, error: Exception) -> SessionError:
    return SessionError(
        error_pb2.ERROR_REASON_ANSWER_NOT_DELIVERED,
        f"the answer did not reach the agent: {error}",
        {"request_id": request_id},
    )


def request_not_found(request_id: str) -> SessionError:
    """There is and was no such request."""
    return SessionError(
        error_pb2.ERROR_REASON_REQUEST_NOT_FOUND,
        f"there is no request {request_id!r} in this session",
        {"request_id": request_id},
    )


def same_answer(request_id: str, value: bytes, digest: bytes) -> service_pb2.RespondResponse:
    """The stored resolution, when it came from the same answer; else REQUEST_ALREADY_RESOLVED."""
    answered, encoded = stored.split_digest(value)
    response = service_pb2.RespondResponse.FromString(encoded)
    if answered == digest:
        return response
    resolved = resolved_in(response)
    outcome = interaction_pb2.RequestOutcome.Name(resolved.outcome)
    by = interaction_pb2.ResolvedBy.Name(resolved.resolved_by)
    raise SessionError(
        error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED,
        f"request {request_id!r} was resolved already: {outcome}",
        {
            "request_id": request_id,
            "outcome": outcome,
            "resolved_by": by,
            "sequence": str(response.sequence),
        },
    )


def _outcome(answer: Answer) -> interaction_pb2.RequestOutcome.ValueType:
    match answer:
        case interaction_pb2.PermissionAnswer():
            return {
                interaction_pb2.PERMISSION_DECISION_ACCEPT: (
                    interaction_pb2.REQUEST_OUTCOME_ACCEPTED
                ),
                interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION: (
                    interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION
                ),
            }.get(answer.decision, interaction_pb2.REQUEST_OUTCOME_REJECTED)
        case interaction_pb2.QuestionAnswer():
            if answer.WhichOneof("answer") == "answered":
                return interaction_pb2.REQUEST_OUTCOME_ACCEPTED
            return interaction_pb2.REQUEST_OUTCOME_REJECTED
        case interaction_pb2.FormAnswer():
            return {
                interaction_pb2.FORM_ACTION_ACCEPT: interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
                interaction_pb2.FORM_ACTION_DECLINE: interaction_pb2.REQUEST_OUTCOME_REJECTED,
            }.get(answer.action, interaction_pb2.REQUEST_OUTCOME_CANCELLED)


def _ends_turn(answer: Answer) -> bool:
    match answer:
        case interaction_pb2.PermissionAnswer():
            return answer.interrupt
        case interaction_pb2.QuestionAnswer():
            return answer.rejected.interrupt
        case _:
            return False


def policy_answer(
    request: Request, policy: session_pb2.RequestPolicy.ValueType, reason: str
) -> Answer | None:
    """The answer that a policy gives; None where the request takes no such answer."""
    # With the answer itself: an agent that got it alone might be done before it is interrupted.
    interrupt = policy == session_pb2.REQUEST_POLICY_INTERRUPT
    match request:
        case interaction_pb2.PermissionRequest():
            accept = interaction_pb2.PERMISSION_DECISION_ACCEPT
            if policy == session_pb2.REQUEST_POLICY_ACCEPT and accept in request.allowed_decisions:
                return interaction_pb2.PermissionAnswer(decision=accept)
            reject = interaction_pb2.PERMISSION_DECISION_REJECT
            if reject not in request.allowed_decisions:
                return None
            message = reason if request.takes_message else ""
            return interaction_pb2.PermissionAnswer(
                decision=reject, message=message, interrupt=interrupt
            )
        case interaction_pb2.QuestionRequest():
            return interaction_pb2.QuestionAnswer(
                rejected=interaction_pb2.RejectedQuestions(message=reason, interrupt=interrupt)
            )
        case interaction_pb2.FormRequest():
            return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)
