"""Watches the streams of sessions: a span for each turn and for each tool, and their figures."""

import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, item_pb2
from agentstreamd.events.log import Record
from agentstreamd.model import Kind
from agentstreamd.telemetry.metrics import AGENT, Counts, Metrics

MAX_OPEN_TOOLS = 1000
"""Of one session. An agent that never ends its tools must not grow the daemon."""

_FAILED = Status(StatusCode.ERROR)


class Sessions:
    """Watches sessions. What is said in them, and by whom, is never read."""

    def __init__(
        self,
        tracer: Tracer,
        metrics: Metrics,
        counts: Counts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is a clock in seconds."""
        self.tracer = tracer
        self.metrics = metrics
        self.counts = counts
        self.now = now

    def watch(self, session_id: str, agent: str) -> Callable[[event_pb2.Event, Record], None]:
        """A listener for the events of a session."""
        return _Watch(self, session_id, agent)


class _Watch:
    """One session."""

    def __init__(self, sessions: Sessions, session_id: str, agent: str) -> None:
        self._tracer = sessions.tracer
        self._metrics = sessions.metrics
        self._counts = sessions.counts
        self._now = sessions.now
        self._session_id = session_id
        self._agent = agent
        self._turn: Span | None = None
        self._turn_since = 0
        self._tools: dict[str, tuple[Span, int]] = {}
        self._queued: dict[str, SpanContext] = {}
        self._left: dict[str, SpanContext] = {}
        self._handlers: dict[int, Callable[[event_pb2.Event], None]] = {
            Kind.SESSION_UPDATED: self._on_updated,
            Kind.TURN_STARTED: self._on_turn_started,
            Kind.TURN_ENDED: self._on_turn_ended,
            Kind.ITEM_STARTED: self._on_item_started,
            Kind.ITEM_COMPLETED: self._on_item_completed,
            Kind.PERMISSION_REQUESTED: lambda e: self._on_asked(e.permission_requested.request_id),
            Kind.QUESTION_REQUESTED: lambda e: self._on_asked(e.question_requested.request_id),
            Kind.FORM_REQUESTED: lambda e: self._on_asked(e.form_requested.request_id),
            Kind.PERMISSION_RESOLVED: lambda e: self._on_resolved(
                e.permission_resolved.request_id, e.permission_resolved.outcome
            ),
            Kind.QUESTION_RESOLVED: lambda e: self._on_resolved(
                e.question_resolved.request_id, e.question_resolved.outcome
            ),
            Kind.FORM_RESOLVED: lambda e: self._on_resolved(
                e.form_resolved.request_id, e.form_resolved.outcome
            ),
            Kind.ERROR: self._on_error,
            Kind.AGENT_UNPARSED: self._on_unparsed,
        }

    def __call__(self, event: event_pb2.Event, record: Record) -> None:
        self._counts.events[self._agent] += 1
        handler = self._handlers.get(record.kind)
        if handler is not None:
            handler(event)

    def _on_updated(self, event: event_pb2.Event) -> None:
        if not event.session_updated.HasField("queue"):
            return
        before = self._queued
        current = trace.get_current_span().get_span_context()
        # New ones were brought by the call that runs now.
        self._queued = {
            queued.turn_id: before.get(queued.turn_id, current)
            for queued in event.session_updated.queue.messages
        }
        # One that left is about to begin its turn.
        self._left = {turn: call for turn, call in before.items() if turn not in self._queued}

    def _on_turn_started(self, event: event_pb2.Event) -> None:
        started = event.turn_started
        trigger = event_pb2.TurnTrigger.Name(started.trigger).removeprefix("TURN_TRIGGER_").lower()
        queued = self._left.get(event.turn_id)
        by_call = started.trigger in (
            event_pb2.TURN_TRIGGER_CLIENT,
            event_pb2.TURN_TRIGGER_COMMAND,
        )
        self._turn_since = event.time.ToNanoseconds()
        self._turn = self._tracer.start_span(
            f"invoke_agent {self._agent}",
            # A turn that waited, or that the agent began, is nobody's child.
            context=None if by_call else trace.set_span_in_context(trace.INVALID_SPAN),
            start_time=self._turn_since,
            links=[Link(queued)] if queued is not None and queued.is_valid else [],
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._agent,
                "gen_ai.conversation.id": self._session_id,
                "agentstream.turn.id": event.turn_id,
                "agentstream.turn.trigger": trigger,
            },
        )

    def _on_turn_ended(self, event: event_pb2.Event) -> None:
        at = event.time.ToNanoseconds()
        for call_id in list(self._tools):
            self._end_tool(call_id, at, failed=True)
        turn, self._turn = self._turn, None
        if turn is None:
            return  # it began in an earlier daemon
        ended = event.turn_ended
        status = event_pb2.TurnStatus.Name(ended.status).removeprefix("TURN_STATUS_").lower()
        turn.set_attribute("agentstream.turn.status", status)
        for name in ("input_tokens", "output_tokens"):
            if ended.usage.HasField(name):
                turn.set_attribute(f"gen_ai.usage.{name}", getattr(ended.usage, name))
        if ended.status == event_pb2.TURN_STATUS_FAILED:
            turn.set_status(_FAILED)
            turn.set_attribute("error.type", _code(ended.error.code))
        turn.end(at)
        self._metrics.turn_duration.record(
            (at - self._turn_since) / 1e9,
            {AGENT: self._agent, "agentstream.turn.status": status},
        )

    def _on_item_started(self, event: event_pb2.Event) -> None:
        item = event.item_started.item
        if item.kind != item_pb2.ITEM_KIND_TOOL_CALL or len(self._tools) >= MAX_OPEN_TOOLS:
            return
        call = item.content[0].tool_call if item.content else None
        if call is None or not call.call_id or call.call_id in self._tools:
            return
        parent = self._turn if self._turn is not None and event.turn_id else trace.INVALID_SPAN
        at = event.time.ToNanoseconds()
        span = self._tracer.start_span(
            f"execute_tool {call.name}",
            context=trace.set_span_in_context(parent),
            start_time=at,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.call_id,
                "gen_ai.conversation.id": self._session_id,
            },
        )
        self._tools[call.call_id] = (span, at)

    def _on_item_completed(self, event: event_pb2.Event) -> None:
        item = event.item_completed.item
        if item.kind == item_pb2.ITEM_KIND_TOOL_RESULT and item.content:
            result = item.content[0].tool_result
            self._end_tool(result.call_id, event.time.ToNanoseconds(), failed=result.is_error)

    def _end_tool(self, call_id: str, at: int, *, failed: bool) -> None:
        span, since = self._tools.pop(call_id, (None, 0))
        if span is None:
            return
        if failed:
            span.set_status(_FAILED)
        span.end(at)
        self._metrics.tool_duration.record(
            (at - since) / 1e9, {AGENT: self._agent, "agentstream.tool.failed": failed}
        )

    def _on_asked(self, request_id: str) -> None:
        self._counts.pending[self._session_id, request_id] = (self._agent, self._now())

    def _on_resolved(
        self, request_id: str, outcome: interaction_pb2.RequestOutcome.ValueType
    ) -> None:
        _, since = self._counts.pending.pop((self._session_id, request_id), ("", None))
        if since is not None:
            name = interaction_pb2.RequestOutcome.Name(outcome)
            self._metrics.request_duration.record(
                self._now() - since,
                {
                    AGENT: self._agent,
                    "agentstream.request.outcome": name.removeprefix("REQUEST_OUTCOME_").lower(),
                },
            )

    def _on_error(self, event: event_pb2.Event) -> None:
        code = _code(event.error.code)
        self._metrics.errors.add(1, {AGENT: self._agent, "error.type": code})

    def _on_unparsed(self, event: event_pb2.Event) -> None:
        self._counts.unparsed[self._agent] += 1


def _code(code: error_pb2.ErrorCode.ValueType) -> str:
    return error_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_").lower()
