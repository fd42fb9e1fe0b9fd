"""Answering requests: by clients, by policy, at a timeout; each exactly once."""

import asyncio
import logging

from agentstream.v1 import error_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AdapterError
from agentstreamd.events.log import EventLog
from agentstreamd.sessions import stored
from agentstreamd.sessions.answers import answer_of, check_answer
from agentstreamd.sessions.errors import SessionError
from agentstreamd.sessions.requests import Answer, Pending, resolved_in
from agentstreamd.sessions.runtime import SessionRuntime

logger = logging.getLogger(__name__)

NOBODY = "nobody follows this one-shot session, and it has no request_timeout"
TIMEOUT = "nobody answered in time"


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
        self._locks: dict[str, asyncio.Lock] = {}
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
        lock = self._locks.setdefault(request_id, asyncio.Lock())
        try:
            async with lock:
                pending = self._runtime.keeper.pending.get(request_id)
                if pending is None:
                    return await self._already(request_id, digest)
                check_answer(pending.request, answer)
                ticket = await self._deliver(pending, request, answer, digest)
                if ticket is None:
                    return await self._already(request_id, digest)
                await self._runtime.recording.committed(ticket)
                return await self._already(request_id, digest)
        finally:
            if not lock.locked():
                self._locks.pop(request_id, None)

    async def _deliver(
        self,
        pending: Pending,
        request: service_pb2.RespondRequest,
        answer: Answer,
        digest: bytes,
    ) -> int | None:
        runtime = self._runtime
        request_id = pending.request.request_id
        # The intent is durable first: after a crash in between, that the answer may have arrived is
        # known, and nobody is asked to answer again what may be done already.
        intent = stored.intent_key(request_id)
        await runtime.recording.committed(
            runtime.journal.write((), puts={intent: request.SerializeToString()})
        )
        try:
            await runtime.seat.driver.answer(pending.adapter_id, answer)
        except AdapterError as error:
            runtime.journal.write((), deletes=[intent])
            if request_id not in runtime.keeper.pending:
                return None
            raise SessionError(
                error_pb2.ERROR_REASON_ANSWER_NOT_DELIVERED,
                f"the answer did not reach the agent: {error}",
                {"request_id": request_id},
            ) from error
        return self._settle(
            request_id, _outcome(answer), interaction_pb2.RESOLVED_BY_CLIENT, answer, "", digest
        )

    def _settle(
        self,
        request_id: str,
        outcome: interaction_pb2.RequestOutcome.ValueType,
        by: interaction_pb2.ResolvedBy.ValueType,
        answer: Answer | None,
        reason: str,
        digest: bytes = b"",
    ) -> int | None:
        runtime = self._runtime
        if request_id not in runtime.keeper.pending:
            return None
        runtime.recording.answer_digests[request_id] = digest
        runtime.recording.tick()
        runtime.keeper.resolve(request_id, outcome, by, answer=answer, reason=reason)
        return runtime.recording.flush()

    async def _already(self, request_id: str, digest: bytes) -> service_pb2.RespondResponse:
        """How a request was resolved, when that agrees with the answer of `digest`."""
        value = await self._log.get(self._runtime.session_id, stored.resolution_key(request_id))
        if value is None:
            # Resolved a moment ago, perhaps: what is on its way into the log comes first.
            await self._runtime.recording.committed(self._runtime.journal.write(()))
            value = await self._log.get(self._runtime.session_id, stored.resolution_key(request_id))
        if value is None:
            raise request_not_found(request_id)
        return same_answer(request_id, value, digest)

    # Nobody answers

    def _on_asked(self, pending: Pending) -> None:
        runtime = self._runtime
        request_id = pending.request.request_id
        if pending.request.HasField("expire_time"):
            wait_seconds = (
                pending.request.expire_time.ToNanoseconds() - pending.time_ns
            ) / 1_000_000_000
            self._timers[request_id] = asyncio.get_running_loop().call_later(
                max(0.0, wait_seconds), self._expire, request_id, TIMEOUT
            )
        elif runtime.config.one_shot and not runtime.followers:
            self._expire(request_id, NOBODY)

    def _on_resolved(self, request_id: str) -> None:
        timer = self._timers.pop(request_id, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, request_id: str, reason: str) -> None:
        self._timers.pop(request_id, None)
        self._runtime.spawn(self._apply_policy(request_id, reason), "expire")

    async def _apply_policy(self, request_id: str, reason: str) -> None:
        runtime = self._runtime
        policy = runtime.config.request_policy
        lock = self._locks.setdefault(request_id, asyncio.Lock())
        async with lock:
            pending = runtime.keeper.pending.get(request_id)
            if pending is None:
                return
            answer = _policy_answer(pending, policy, reason)
            try:
                await runtime.seat.driver.answer(pending.adapter_id, answer)
            except AdapterError as error:
                # The agent is gone or will be: the end of its turn resolves the request.
                logger.warning("session %s: %s", runtime.session_id, error)
                return
            outcome = _outcome(answer)
            if outcome != interaction_pb2.REQUEST_OUTCOME_ACCEPTED:
                outcome = interaction_pb2.REQUEST_OUTCOME_EXPIRED
            self._settle(request_id, outcome, interaction_pb2.RESOLVED_BY_POLICY, answer, reason)
        self._locks.pop(request_id, None)
        if policy == session_pb2.REQUEST_POLICY_INTERRUPT and runtime.keeper.turn_id:
            await runtime.turns.interrupt()

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


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


def _policy_answer(
    pending: Pending, policy: session_pb2.RequestPolicy.ValueType, reason: str
) -> Answer:
    match pending.request:
        case interaction_pb2.PermissionRequest():
            if policy == session_pb2.REQUEST_POLICY_ACCEPT:
                return interaction_pb2.PermissionAnswer(
                    decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
                )
            return interaction_pb2.PermissionAnswer(
                decision=interaction_pb2.PERMISSION_DECISION_REJECT,
                message=reason if pending.request.takes_message else "",
            )
        case interaction_pb2.QuestionRequest():
            return interaction_pb2.QuestionAnswer(
                rejected=interaction_pb2.RejectedQuestions(message=reason)
            )
        case interaction_pb2.FormRequest():
            return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)
