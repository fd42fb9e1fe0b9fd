"""Watches calls: a span for each, in the trace of its caller, and its duration."""

import time
from collections.abc import Mapping

from opentelemetry import context, propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from agentstreamd.telemetry.metrics import Metrics

Metadata = tuple[tuple[str, str | bytes], ...]

_SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that are the server's fault, by OpenTelemetry's conventions."""


class CallWatches:
    """Makes a watch for each call. Calls of health checks and reflection have no spans."""

    def __init__(self, tracer: Tracer, metrics: Metrics, service: str) -> None:
        """Watch the calls of `service`, its full name."""
        self._tracer = tracer
        self._metrics = metrics
        self._prefix = f"/{service}/"

    def __call__(self, path: str, metadata: Metadata, request_id: str) -> "CallWatch | None":
        """Begin to watch a call, in the current context."""
        if not path.startswith(self._prefix):
            return None
        return CallWatch(self._tracer, self._metrics, path[1:], metadata, request_id)


class CallWatch:
    """One call. The span of an event stream ends when the stream is open: it may last for days."""

    def __init__(
        self, tracer: Tracer, metrics: Metrics, method: str, metadata: Metadata, request_id: str
    ) -> None:
        self._metrics = metrics
        self._method = method
        self._since = time.perf_counter()
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        self._span = tracer.start_span(
            method,
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "rpc.system.name": "grpc",
                "rpc.method": method,
                "agentstream.request_id": request_id,
            },
        )
        self._token = context.attach(trace.set_span_in_context(self._span))
        self._over = False

    @property
    def fields(self) -> Mapping[str, str]:
        """What a line in the log says of the trace."""
        found = self._span.get_span_context()
        return {
            "trace_id": trace.format_trace_id(found.trace_id),
            "span_id": trace.format_span_id(found.span_id),
        }

    def opened(self) -> None:
        """The first response of a stream was sent."""
        self._finish("OK")

    def ended(self, code: str, reason: str | None) -> None:
        """The call has ended."""
        if reason:
            self._span.set_attribute("error.type", reason)
        self._finish(code)
        context.detach(self._token)

    def _finish(self, code: str) -> None:
        if self._over:
            return
        self._over = True
        self._span.set_attribute("rpc.response.status_code", code)
        if code in _SERVER_FAULTS:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
        self._metrics.call_duration.record(
            time.perf_counter() - self._since,
            {
                "rpc.system.name": "grpc",
                "rpc.method": self._method,
                "rpc.response.status_code": code,
            },
        )
