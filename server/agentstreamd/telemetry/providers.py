"""Sets OpenTelemetry up: what is exported where, by its own variables and `metrics_listen`."""

import logging
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, start_http_server

from agentstreamd import __version__
from agentstreamd.telemetry.calls import CallWatches
from agentstreamd.telemetry.metrics import Counts, Gauges, Metrics
from agentstreamd.telemetry.sessions import Sessions

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_SCOPE = "agentstreamd"
_EXPORT_SECONDS = 2.0
"""How long one export may take; a collector that is away must not keep the daemon from ending."""

_log = logging.getLogger(__name__)


class TelemetryError(Exception):
    """Telemetry can't be set up. `str(error)` is a sentence for people."""


def wanted(environment: Mapping[str, str], metrics_listen: str) -> bool:
    """Whether somebody wants any of it."""
    return bool(metrics_listen) or _exports(environment)


def _exports(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(environment.get(name) for name in _ENDPOINTS)


class Telemetry:
    """Everything that is watched, from start to stop.

    Attributes:
        gauges: Where figures of now come from; filled in by the daemon.
        sessions: Watches the streams of sessions.
        calls: Watches calls.
        metrics: The instruments.
        metrics_address: Where Prometheus can scrape, host:port; empty for nowhere.
    """

    def __init__(
        self, environment: Mapping[str, str], service: str, metrics_listen: str = ""
    ) -> None:
        """Set up exporters for gRPC `service`. Raises TelemetryError."""
        resource = Resource.create({"service.name": "agentstreamd", "service.version": __version__})
        exports = _exports(environment)
        self._tracers = TracerProvider(resource=resource)
        readers: list[MetricReader] = []
        if exports:
            self._tracers.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_SECONDS))
            )
            readers.append(
                PeriodicExportingMetricReader(OTLPMetricExporter(timeout=_EXPORT_SECONDS))
            )
        self.metrics_address = ""
        if metrics_listen:
            registry = CollectorRegistry()
            readers.append(PrometheusMetricReader(registry=registry))
            self._scraped = _listen(metrics_listen, registry)
            host = metrics_listen.rpartition(":")[0]
            self.metrics_address = f"{host}:{self._scraped[0].server_port}"
        self._meters = MeterProvider(metric_readers=readers, resource=resource)
        counts = Counts()
        self.gauges = Gauges()
        tracer = self._tracers.get_tracer(_SCOPE, __version__)
        meter = self._meters.get_meter(_SCOPE, __version__)
        self.metrics = Metrics(meter, counts, self.gauges)
        self.sessions = Sessions(tracer, self.metrics, counts)
        self.calls = CallWatches(tracer, self.metrics, service)

    def appended(self, seconds: float) -> None:
        """Events took so long to be durable."""
        self.metrics.append_duration.record(seconds)

    def stop(self) -> None:
        """Export what is left, and end. Blocks for a few seconds at most."""
        self._tracers.shutdown()
        self._meters.shutdown(_EXPORT_SECONDS * 1000)
        if self.metrics_address:
            server, thread = self._scraped
            server.shutdown()
            server.server_close()
            thread.join()


def _listen(address: str, registry: CollectorRegistry):  # type: ignore[no-untyped-def]
    host, _, port = address.rpartition(":")
    try:
        return start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError as error:
        raise TelemetryError(
            f"Can't serve metrics on {address}: {error.strerror or error}."
        ) from error
