"""A collector of OpenTelemetry on loopback, which keeps what it is sent.

async with Collector() as collector:
    ... a daemon with collector.environment ...
    span = await collector.span("invoke_agent mock")
"""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from grpc import aio
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.model_server import DEADLINE


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """Takes traces and metrics by OTLP over gRPC.

    Attributes:
        spans: All spans, in order of arrival.
        metrics: The newest of each metric, by name.
    """

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.metrics: dict[str, metrics_pb2.Metric] = {}
        self._news = asyncio.Condition()
        self._server = aio.server()
        self._port = 0

    @property
    def environment(self) -> dict[str, str]:
        """What a daemon needs to export here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    async def Export(self, request: Any, context: Any) -> Any:
        async with self._news:
            if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
                answer: Any = trace_service_pb2.ExportTraceServiceResponse()
            else:
                for measured in request.resource_metrics:
                    for scoped in measured.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scoped.metrics}
                answer = metrics_service_pb2.ExportMetricsServiceResponse()
            self._news.notify_all()
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was sent makes a condition true."""
        try:
            async with asyncio.timeout(DEADLINE), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            names = sorted(span.name for span in self.spans)
            raise TimeoutError(f"spans: {names}, metrics: {sorted(self.metrics)}") from None

    def named(self, name: str) -> list[trace_pb2.Span]:
        """The spans of a name so far."""
        return [span for span in self.spans if span.name == name]

    async def span(self, name: str, count: int = 1) -> trace_pb2.Span:
        """The span of a name with this number, from 1, waited for."""
        await self.until(lambda: len(self.named(name)) >= count)
        return self.named(name)[count - 1]

    async def __aenter__(self) -> Self:
        add_traces: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
        add_traces(self, self._server)
        add_metrics(self, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    """The attributes of a span."""
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind) if kind else None
    return found
