from collections.abc import Callable

import pytest

from agentstream.v1 import service_pb2
from agentstreamd.laws import ResponseChecker
from tests.unit.laws.streams import lawful

Response = service_pb2.StreamEventsResponse
Responses = list[Response]

AFTER = 3


def batch(*sequences: int) -> Response:
    response = Response()
    response.batch.events.extend(lawful()[one - 1] for one in sequences)
    response.batch.last_sequence = sequences[-1]
    return response


def progress(sequence: int) -> Response:
    response = Response()
    response.progress.last_sequence = sequence
    response.progress.time.GetCurrentTime()
    return response


def responses() -> Responses:
    opened = Response()
    opened.opened.session.uid = "uid"
    opened.opened.session.latest_sequence = 8
    return [opened, progress(3), batch(4, 5, 6), batch(7), progress(7), batch(8, 9)]


def violations(fed: Responses, *, filtered: bool = False) -> list[str]:
    checker = ResponseChecker(after_sequence=AFTER, filtered=filtered)
    for response in fed:
        checker.feed(response)
    return [one.sentence for one in checker.violations]


def test_a_resumed_stream_without_gap_is_fine() -> None:
    assert violations(responses()) == []


BREAKS: dict[str, Callable[[Responses], object]] = {
    "nothing is opened": lambda r: r.pop(0),
    "it opens twice": lambda r: r.append(r[0]),
    "a batch is missing": lambda r: r.pop(2),
    "a batch comes again": lambda r: r.insert(3, r[2]),
    "an event is missing": lambda r: r[2].batch.events.pop(1),
    "a batch is empty": lambda r: r[2].batch.ClearField("events"),
    "a batch says another end": lambda r: r[3].batch.ClearField("last_sequence"),
    "progress is ahead": lambda r: r.insert(1, progress(5)),
    "progress falls back": lambda r: r.append(progress(3)),
    "progress has no time": lambda r: r[1].progress.ClearField("time"),
    "a response is empty": lambda r: r.append(Response()),
    "the session has no uid": lambda r: r[0].opened.session.ClearField("uid"),
    "the cursor is ahead of the log": lambda r: r[0].opened.session.ClearField("latest_sequence"),
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS.keys())
def test_a_stream_that_breaks_its_order_is_found(broken: Callable[[Responses], object]) -> None:
    fed = responses()
    broken(fed)
    assert violations(fed)


def test_a_filter_leaves_events_out_and_moves_the_cursor() -> None:
    checker = ResponseChecker(after_sequence=AFTER, filtered=True)
    for response in [responses()[0], batch(5, 8), progress(9)]:
        assert checker.feed(response) == []
    assert checker.last_sequence == 9


def test_a_filter_does_not_excuse_going_back() -> None:
    assert violations([responses()[0], batch(8), batch(5)], filtered=True)
