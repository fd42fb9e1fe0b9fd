"""The metrics: instruments, and the counts that they read when somebody asks."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from opentelemetry.metrics import CallbackOptions, Meter, Observation

Attributes = Mapping[str, str]

AGENT = "agentstream.agent"

# Boundaries in seconds, from a fraction of a commit to a turn of an hour.
_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)
_LONG = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(slots=True)
class Gauges:
    """Where figures of now come from. Read on the threads of exporters.

    Attributes:
        sessions_loaded: Sessions in memory.
        turns_running: Turns that run.
        streams_open: Event streams that are open.
        events_delivered: Events sent to readers so far.
        processes_running: Processes of agents.
        processes_started: The same, since the daemon started.
    """

    sessions_loaded: Callable[[], int] = lambda: 0
    turns_running: Callable[[], int] = lambda: 0
    streams_open: Callable[[], int] = lambda: 0
    events_delivered: Callable[[], int] = lambda: 0
    processes_running: Callable[[], int] = lambda: 0
    processes_started: Callable[[], int] = lambda: 0


@dataclass(slots=True)
class Counts:
    """What is counted event by event, by agent; plain numbers, for they are all an event costs.

    Attributes:
        events: Events appended.
        unparsed: Native messages that could not be read.
        pending: When each request that waits came, by session and request, with its agent.
    """

    events: Counter[str] = field(default_factory=Counter)
    unparsed: Counter[str] = field(default_factory=Counter)
    pending: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)


class Metrics:
    """The instruments."""

    def __init__(
        self,
        meter: Meter,
        counts: Counts,
        gauges: Gauges,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make them with `meter`; `now` is a clock in seconds."""
        self.turn_duration = meter.create_histogram(
            "agentstream.turn.duration",
            unit="s",
            description="Time from the start of a turn to its end",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self.tool_duration = meter.create_histogram(
            "agentstream.tool.duration",
            unit="s",
            description="Time from a tool's call to its result",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self.request_duration = meter.create_histogram(
            "agentstream.request.duration",
            unit="s",
            description="Time that a permission, question or form waited, by its outcome",
            explicit_bucket_boundaries_advisory=_LONG,
        )
        self.errors = meter.create_counter(
            "agentstream.errors", unit="{error}", description="Errors of agents, by code"
        )
        self.append_duration = meter.create_histogram(
            "agentstream.log.append.duration",
            unit="s",
            description="Time until events are durable",
            explicit_bucket_boundaries_advisory=_SHORT,
        )
        self.call_duration = meter.create_histogram(
            "rpc.server.call.duration",
            unit="s",
            description="Duration of calls; of event streams, until they are open",
            explicit_bucket_boundaries_advisory=_SHORT,
        )
        self._counts = counts
        self._now = now
        counted: tuple[tuple[str, str, str, Callable[[], Iterable[Observation]]], ...] = (
            (
                "agentstream.events.appended",
                "{event}",
                "Events that sessions had, by agent",
                lambda: _by_agent(counts.events),
            ),
            (
                "agentstream.events.unparsed",
                "{event}",
                "Native messages that could not be read, by agent",
                lambda: _by_agent(counts.unparsed),
            ),
            (
                "agentstream.events.delivered",
                "{event}",
                "Events sent to readers",
                lambda: [Observation(gauges.events_delivered())],
            ),
            (
                "agentstream.processes.started",
                "{process}",
                "Processes of agents that were started",
                lambda: [Observation(gauges.processes_started())],
            ),
        )
        for name, unit, description, read in counted:
            meter.create_observable_counter(name, [_callback(read)], unit, description)
        shown: tuple[tuple[str, str, str, Callable[[], Iterable[Observation]]], ...] = (
            (
                "agentstream.sessions.loaded",
                "{session}",
                "Sessions in memory",
                lambda: [Observation(gauges.sessions_loaded())],
            ),
            (
                "agentstream.turns.running",
                "{turn}",
                "Turns that run now",
                lambda: [Observation(gauges.turns_running())],
            ),
            (
                "agentstream.streams.open",
                "{stream}",
                "Event streams that are open",
                lambda: [Observation(gauges.streams_open())],
            ),
            (
                "agentstream.processes.running",
                "{process}",
                "Processes of agents that run now",
                lambda: [Observation(gauges.processes_running())],
            ),
            (
                "agentstream.requests.pending",
                "{request}",
                "Permissions, questions and forms that wait for an answer, by agent",
                self._pending,
            ),
            (
                "agentstream.requests.oldest_age",
                "s",
                "How long the oldest of them has waited; 0 when none does",
                lambda: [Observation(self._oldest_age())],
            ),
        )
        for name, unit, description, read in shown:
            meter.create_observable_gauge(name, [_callback(read)], unit, description)

    def _pending(self) -> Iterator[Observation]:
        waiting = Counter(agent for agent, _ in list(self._counts.pending.values()))
        # An agent that had requests is told as 0 once it has none.
        return _by_agent(dict.fromkeys(list(self._counts.events), 0) | waiting)

    def _oldest_age(self) -> float:
        came = [since for _, since in list(self._counts.pending.values())]
        return self._now() - min(came) if came else 0.0


def _by_agent(counter: Mapping[str, int]) -> Iterator[Observation]:
    return (Observation(count, {AGENT: agent}) for agent, count in list(counter.items()))


def _callback(
    read: Callable[[], Iterable[Observation]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: read()
