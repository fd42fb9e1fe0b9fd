"""Traces and metrics by OpenTelemetry: of calls, turns and tools; nothing of what is said.

The other layers know nothing of it. They take callables that are told of what happens, and that
are absent unless `OTEL_EXPORTER_OTLP_ENDPOINT` or `metrics_listen` is set. Nothing is done for a
single event but a count.
"""

from agentstreamd.telemetry.providers import Telemetry, TelemetryError, wanted

__all__ = ["Telemetry", "TelemetryError", "wanted"]
