"""How a stream is resumed: the decisions, without I/O, shared by the sync and the async client."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc

from agentstream.client.errors import AgentstreamError, StreamBroken
from agentstream.v1 import event_pb2, service_pb2, session_pb2

# INTERNAL is what Envoy makes of a backend that died in mid-stream.
_RESUMABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a stream is opened again, and when to give up.

    Attributes:
        initial: Seconds before the first attempt.
        multiplier: Each further attempt waits this times longer.
        maximum: Never wait longer than this, in seconds, unless the server asks for it.
        jitter: Spread the wait by up to this fraction, so that clients do not come back at once.
        attempts: Attempts in a row that bring nothing new before the error is raised.
    """

    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 5.0
    jitter: float = 0.2
    attempts: int = 12

    def delay(self, attempt: int, asked: float | None, uniform: float) -> float:
        """Seconds before attempt `attempt` (from 1); `uniform` is random in [0, 1)."""
        grown = min(self.maximum, self.initial * self.multiplier ** (attempt - 1))
        spread = grown * (1 + self.jitter * (2 * uniform - 1))
        return max(spread, asked or 0.0)


@dataclass(slots=True)
class Cursor:
    """Where a reader of a session's stream is, across any number of calls.

    Attributes:
        request: What is streamed, as for the first call; its `after_sequence` is where to begin.
        backoff: When to try again.
        uniform: Source of jitter, random in [0, 1).
        sequence: Everything up to this sequence was seen, or passed by the filter.
        session: The session as the newest call opened; None before the first.
    """

    request: service_pb2.StreamEventsRequest
    backoff: Backoff = field(default_factory=Backoff)
    uniform: Callable[[], float] = random.random
    sequence: int = field(init=False)
    session: session_pb2.Session | None = field(init=False, default=None)
    _uid: str = field(init=False)
    _failures: int = field(init=False, default=0)
    _ended: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.sequence = self.request.after_sequence
        self._uid = self.request.expected_session_uid

    def next_request(self) -> service_pb2.StreamEventsRequest:
        """The request of the next call: it goes on after what was seen, in the same session."""
        request = service_pb2.StreamEventsRequest()
        request.CopyFrom(self.request)
        request.after_sequence = self.sequence
        request.expected_session_uid = self._uid
        return request

    def take(self, response: service_pb2.StreamEventsResponse) -> Sequence[event_pb2.Event]:
        """The events of `response` that were not seen yet. Raises StreamBroken for a gap."""
        kind = response.WhichOneof("response")
        if kind == "opened":
            self._open(response.opened.session)
            return ()
        if self.session is None:
            raise StreamBroken(f"the stream began with {kind or 'nothing'} instead of opened")
        if kind == "batch":
            events = self._fresh(response.batch.events)
            self._reach(response.batch.last_sequence)
            return events
        if kind == "progress":
            self._reach(response.progress.last_sequence)
        return ()

    def finished(self) -> bool:
        """Whether a call that ended with OK was the end of the stream; else it was a cut."""
        if self.session is None:
            return False
        ended = self._ended or self.session.state == session_pb2.SESSION_STATE_ENDED
        return ended or not self.request.follow or bool(self.request.kinds)

    def failed(self, error: AgentstreamError) -> float:
        """Seconds to wait before the next call; raises `error` when there should be none."""
        self._failures += 1
        # Without a reason of the daemon, CANCELLED is a connection that was reset, not an answer.
        reset = error.code == grpc.StatusCode.CANCELLED and not error.reason
        # A server that has not noticed yet that the call before was cut still counts its stream.
        counted = error.reason == "LIMIT_EXCEEDED" and self.session is not None
        resumable = error.code in _RESUMABLE or reset or counted
        if not resumable or self._failures > self.backoff.attempts:
            raise error
        return self.backoff.delay(self._failures, error.retry_delay, self.uniform())

    def cut(self) -> AgentstreamError:
        """The error of a call that ended with OK but not at the end of the stream."""
        return AgentstreamError(
            "the stream ended before the session did", code=grpc.StatusCode.UNAVAILABLE
        )

    def _open(self, session: session_pb2.Session) -> None:
        self.session = session
        self._uid = session.uid

    def _fresh(self, events: Iterable[event_pb2.Event]) -> list[event_pb2.Event]:
        fresh: list[event_pb2.Event] = []
        for event in events:
            if event.sequence <= self.sequence:
                continue
            if event.sequence != self.sequence + 1 and not self.request.kinds:
                raise StreamBroken(
                    f"event {self.sequence + 1} is missing: {event.sequence} came after "
                    f"{self.sequence}"
                )
            fresh.append(event)
            self._ended = self._ended or event.HasField("session_ended")
            self._reach(event.sequence)
        return fresh

    def _reach(self, sequence: int) -> None:
        # Only news shows that the trouble is over: a server that opens the stream and then fails,
        # again and again, must not be asked for ever.
        self._failures = 0
        self.sequence = max(self.sequence, sequence)
