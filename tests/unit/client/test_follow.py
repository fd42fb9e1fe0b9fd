"""The resuming iterator, on a fake channel: no network, no waiting."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import grpc
import grpc_testing
import pytest

from agentstream.client import (
    AgentstreamError,
    Backoff,
    Client,
    EventsCompacted,
    EventStream,
    ResourceExhausted,
    SessionDeleted,
    SessionReplaced,
    StreamBroken,
    Unavailable,
    sync,
)
from agentstream.client.resume import Cursor
from agentstream.v1 import event_pb2, service_pb2, session_pb2
from tests.unit.client.stream_responses import batch, opened, progress, status_details

SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]
STREAM_EVENTS = SERVICE.methods_by_name["StreamEvents"]
NO_JITTER = Backoff(jitter=0.0, attempts=4)


class Fake:
    """A daemon that the test plays, and a reader in a thread."""

    def __init__(self) -> None:
        self.channel = grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())
        self.client = Client(self.channel)
        self.slept: list[float] = []
        self.taken = threading.Semaphore(0)
        self._pool = futures.ThreadPoolExecutor(1)

    def read(self, stream: EventStream) -> "futures.Future[list[int]]":
        return self._pool.submit(lambda: [event.sequence for event in stream])

    def call(
        self, *responses: service_pb2.StreamEventsResponse
    ) -> tuple[service_pb2.StreamEventsRequest, Callable[..., None]]:
        """Answer the next call with `responses`; returns its request and how to end it."""
        _, request, rpc = self.channel.take_unary_stream(STREAM_EVENTS)
        rpc.send_initial_metadata(())
        for response in responses:
            rpc.send_response(response)
            self.taken.acquire()  # a fake call that ends drops what was not read yet

        def end(
            code: grpc.StatusCode = grpc.StatusCode.OK, reason: str = "", **details: object
        ) -> None:
            trailing = status_details(code, "it broke", reason, **details) if reason else ()  # type: ignore[arg-type]
            rpc.terminate(trailing, code, "it broke")

        return request, end

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    made = Fake()

    class ObservedCursor(Cursor):
        def take(self, response: service_pb2.StreamEventsResponse) -> Sequence[event_pb2.Event]:
            try:
                return super().take(response)
            finally:
                made.taken.release()

    monkeypatch.setattr(sync, "Cursor", ObservedCursor)
    yield made
    made.close()


def follow(fake: Fake, after: int = 0, **options: object) -> EventStream:
    options.setdefault("backoff", NO_JITTER)
    return fake.client.follow("s", after, sleep=fake.slept.append, **options)  # type: ignore[arg-type]


def test_a_stream_that_is_not_cut_is_read_to_the_end_of_the_session(fake: Fake) -> None:
    result = fake.read(follow(fake, include_raw=True))
    request, end = fake.call(opened(), batch(1, 2), progress(2), batch(3, ended=True))
    end()
    assert result.result() == [1, 2, 3]
    assert request == service_pb2.StreamEventsRequest(session_id="s", follow=True, include_raw=True)


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED],
)
def test_a_cut_is_resumed_after_the_last_event_of_the_same_session(
    fake: Fake, code: grpc.StatusCode
) -> None:
    result = fake.read(follow(fake, after=4))
    request, end = fake.call(opened("uid-7"), batch(5, 6))
    assert (request.after_sequence, request.expected_session_uid) == (4, "")
    end(code)
    request, end = fake.call(opened("uid-7"), batch(7, 8, ended=True))
    assert (request.after_sequence, request.expected_session_uid) == (6, "uid-7")
    end()
    assert result.result() == [5, 6, 7, 8]
    assert fake.slept == [0.1]


def test_a_limit_is_waited_for_by_a_stream_that_was_open_and_refuses_one_that_was_not(
    fake: Fake,
) -> None:
    limit = {"limit": "max_streams_per_client", "value": "1"}
    result = fake.read(follow(fake))
    _, end = fake.call(opened(), batch(1))
    end(grpc.StatusCode.UNAVAILABLE)
    _, end = fake.call()  # the daemon has not noticed that the first was cut
    end(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", metadata=limit)
    _, end = fake.call(opened(), batch(2, ended=True))
    end()
    assert result.result() == [1, 2]
    assert fake.slept == [0.1, 0.2]
    result = fake.read(follow(fake))
    _, end = fake.call()
    end(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", metadata=limit)
    with pytest.raises(ResourceExhausted) as caught:
        result.result()
    assert caught.value.metadata == limit


def test_an_event_that_comes_again_is_not_repeated(fake: Fake) -> None:
    result = fake.read(follow(fake))
    _, end = fake.call(opened(), batch(1, 2))
    end(grpc.StatusCode.UNAVAILABLE)
    _, end = fake.call(opened(), batch(1, 2, 3, ended=True))
    end()
    assert result.result() == [1, 2, 3]


def test_a_missing_event_is_an_error_not_a_gap(fake: Fake) -> None:
    result = fake.read(follow(fake))
    fake.call(opened(), batch(1), batch(3))
    with pytest.raises(StreamBroken, match="event 2 is missing"):
        result.result()


def test_a_stream_without_opened_is_an_error(fake: Fake) -> None:
    result = fake.read(follow(fake))
    fake.call(batch(1))
    with pytest.raises(StreamBroken, match="batch instead of opened"):
        result.result()


def test_under_a_filter_the_cursor_moves_over_what_is_left_out(fake: Fake) -> None:
    stream = follow(fake, kinds=[event_pb2.EVENT_KIND_TURN_ENDED])
    result = fake.read(stream)
    _, end = fake.call(opened(), batch(4, last=9), progress(12))
    end(grpc.StatusCode.UNAVAILABLE)
    request, end = fake.call(opened(), batch(20, last=23))
    assert request.after_sequence == 12
    assert list(request.kinds) == [event_pb2.EVENT_KIND_TURN_ENDED]
    end()
    assert result.result() == [4, 20]
    assert stream.last_sequence == 23


def test_the_delay_that_the_server_asks_for_is_kept(fake: Fake) -> None:
    result = fake.read(follow(fake))
    _, end = fake.call(opened(), batch(1))
    end(grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING", retry_seconds=2.5)
    _, end = fake.call(opened(), batch(2, ended=True))
    end()
    assert result.result() == [1, 2]
    assert fake.slept == [2.5]


def test_the_wait_grows_and_then_the_error_is_raised(fake: Fake) -> None:
    told: list[float] = []
    result = fake.read(follow(fake, on_reconnect=lambda error, delay: told.append(delay)))
    for _ in range(5):
        _, end = fake.call()
        end(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(Unavailable, match="it broke"):
        result.result()
    assert fake.slept == told == [0.1, 0.2, 0.4, 0.8]


def test_opening_alone_does_not_count_as_recovery_but_news_does(fake: Fake) -> None:
    result = fake.read(follow(fake))
    for _ in range(4):
        _, end = fake.call(opened())
        end(grpc.StatusCode.INTERNAL)
    _, end = fake.call(opened(), batch(1))
    end(grpc.StatusCode.INTERNAL)
    for _ in range(4):
        _, end = fake.call(opened())
        end(grpc.StatusCode.INTERNAL)
    with pytest.raises(AgentstreamError):
        result.result()
    assert fake.slept == [0.1, 0.2, 0.4, 0.8, 0.1, 0.2, 0.4, 0.8]


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, "SESSION_DELETED", SessionDeleted),
        (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_REPLACED", SessionReplaced),
        (grpc.StatusCode.OUT_OF_RANGE, "EVENTS_COMPACTED", EventsCompacted),
    ],
)
def test_what_cannot_be_resumed_is_a_typed_error(
    fake: Fake, code: grpc.StatusCode, reason: str, kind: type[AgentstreamError]
) -> None:
    result = fake.read(follow(fake))
    _, end = fake.call(opened(), batch(1))
    end(code, reason, metadata={"earliest_sequence": "5"})
    with pytest.raises(kind) as caught:
        result.result()
    assert caught.value.metadata == {"earliest_sequence": "5"}
    assert fake.slept == []


def test_ok_before_the_session_has_ended_is_a_cut(fake: Fake) -> None:
    result = fake.read(follow(fake))
    _, end = fake.call(opened(), batch(1))
    end()
    request, end = fake.call(opened(), batch(2, ended=True))
    assert request.after_sequence == 1
    end()
    assert result.result() == [1, 2]


def test_a_stream_of_an_ended_session_after_its_last_event_is_empty(fake: Fake) -> None:
    result = fake.read(follow(fake, after=3))
    _, end = fake.call(opened(latest=3, state=session_pb2.SESSION_STATE_ENDED))
    end()
    assert result.result() == []


def test_without_follow_the_tail_is_the_end(fake: Fake) -> None:
    result = fake.read(follow(fake, follow=False))
    _, end = fake.call(opened(latest=2), batch(1, 2))
    end()
    assert result.result() == [1, 2]


def test_events_that_were_not_handed_out_are_after_last_sequence(fake: Fake) -> None:
    stream = follow(fake)
    result = fake._pool.submit(
        lambda: (stream.open().uid, next(stream).sequence, stream.last_sequence)
    )
    fake.call(opened("uid-1", latest=2), batch(1, 2))
    assert result.result() == ("uid-1", 1, 1)


def test_closing_from_another_thread_ends_a_waiting_reader(fake: Fake) -> None:
    stream = follow(fake)
    seen = threading.Event()

    def read() -> list[int]:
        sequences = []
        for event in stream:
            sequences.append(event.sequence)
            seen.set()
        return sequences

    result = fake._pool.submit(read)
    fake.call(opened(), batch(1))
    seen.wait()
    stream.close()
    assert result.result() == [1]
