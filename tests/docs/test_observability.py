"""What docs/observability.md, the dashboard and the alerts name is what a daemon exports."""

import json
import re
from pathlib import Path

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from agentstreamd.telemetry.metrics import Counts, Gauges, Metrics

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "agentstream.json"
RULES = ROOT / "deploy" / "prometheus" / "agentstream.rules.yaml"
DOCUMENT = ROOT / "docs" / "observability.md"
NAME = re.compile(r"\b(?:agentstream|rpc_server)_[a-z_]+")
LABELS = {
    "agentstream_agent",
    "agentstream_turn_status",
    "agentstream_tool_failed",
    "agentstream_request_outcome",
}


@pytest.fixture
def exported() -> set[str]:
    """The names that Prometheus sees."""
    registry = CollectorRegistry()
    provider = MeterProvider(metric_readers=[PrometheusMetricReader(registry=registry)])
    counts = Counts()
    counts.events["mock"] = counts.unparsed["mock"] = 1
    metrics = Metrics(provider.get_meter("test"), counts, Gauges())
    for histogram in (
        metrics.turn_duration,
        metrics.tool_duration,
        metrics.request_duration,
        metrics.append_duration,
        metrics.call_duration,
    ):
        histogram.record(1)
    metrics.errors.add(1)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    return names | {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}


def test_the_dashboard_shows_metrics_that_there_are(exported: set[str]) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            named = set(NAME.findall(target["expr"])) - LABELS
            assert named, panel["title"]
            assert named <= exported, panel["title"]


def test_the_alerts_watch_metrics_that_there_are(exported: set[str]) -> None:
    text = RULES.read_text().replace("$labels.agentstream_agent", "")
    named = set(NAME.findall(text)) - LABELS
    assert named
    assert named <= exported


def test_the_document_names_all_metrics_and_no_others(exported: set[str]) -> None:
    rows = re.findall(r"^\| `((?:agentstream|rpc_server)_[a-z_]+)` ", DOCUMENT.read_text(), re.M)
    ours = {name for name in exported if name.startswith(("agentstream_", "rpc_"))}
    whole = {name for name in ours if not re.search(r"_(bucket|count|sum|created)$", name)}
    assert set(rows) == whole
