"""StreamEvents on a real server in this process, over a real event log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from agentstream.v1 import event_pb2, service_pb2
from agentstreamd.events import Record
from agentstreamd.model import Kind
from tests.support.grpc_edge import Details, Running, details, running
from tests.support.sessions import FakeSessions, fake_sessions

FAST = 0.005
"""A progress interval for tests that wait for progress; others never see one."""


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[FakeSessions]:
    async with fake_sessions(tmp_path) as made:
        await made.add("s")
        yield made


@pytest.fixture
async def server(sessions: FakeSessions) -> AsyncIterator[Running]:
    async with running(sessions) as made:
        yield made


def follow(server: Running, after: int = 0, *, follow: bool = True, **more: Any) -> Any:
    request = service_pb2.StreamEventsRequest(
        session_id="s", after_sequence=after, follow=follow, **more
    )
    return server.stub.StreamEvents(request)


async def end_of(call: Any) -> Details:
    """The status that a stream ends with, whatever comes before."""
    with pytest.raises(aio.AioRpcError) as caught:
        await rest_of(call)
    return details(caught.value)


async def rest_of(call: Any) -> list[service_pb2.StreamEventsResponse]:
    """All responses that are left."""
    responses = []
    while (response := await call.read()) is not aio.EOF:
        responses.append(response)
    return responses


def sequences(responses: list[service_pb2.StreamEventsResponse]) -> list[int]:
    return [event.sequence for one in responses for event in one.batch.events]


async def test_the_first_response_is_the_session_as_it_is(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, Kind.TURN_STARTED)
    first = await follow(server).read()
    assert first.opened.session == await sessions.get("s")
    assert first.opened.session.latest_sequence == 2


async def test_a_backlog_comes_in_batches_and_live_events_one_by_one(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, *[Kind.ITEM_DELTA] * 1199)
    call = follow(server)
    await call.read()
    batches = [(await call.read()).batch for _ in range(3)]
    assert [len(batch.events) for batch in batches] == [512, 512, 176]
    assert [batch.last_sequence for batch in batches] == [512, 1024, 1200]
    for number in (1201, 1202):
        await sessions.write("s", Kind.ITEM_DELTA)
        live = (await call.read()).batch
        assert [event.sequence for event in live.events] == [number]
        assert live.last_sequence == number


async def test_batches_stay_below_the_limit_of_clients_also_with_raw(
    server: Running, sessions: FakeSessions
) -> None:
    sequence = 0
    for _ in range(5):
        records = []
        for number in range(sequence + 1, sequence + 21):
            event = event_pb2.Event(sequence=number)
            event.item_delta.text = "x" * 60_000
            carrier = event_pb2.Event()
            carrier.raw.add(text="y" * 120_000 + str(number))
            records.append(
                Record(event.SerializeToString(), carrier.SerializeToString(), Kind.ITEM_DELTA)
            )
        sequence = await sessions.log.append("s", sequence, records)
    responses = [one async for one in follow(server, follow=False, include_raw=True)]
    assert sequences(responses) == list(range(1, 101))
    assert max(one.ByteSize() for one in responses) < 2 * 1024 * 1024
    assert all(
        event.raw[0].text.endswith(str(event.sequence))
        for one in responses
        for event in one.batch.events
    )


async def test_every_cursor_resumes_exactly_after_it(
    server: Running, sessions: FakeSessions
) -> None:
    kinds = [Kind.SESSION_STARTED, *[Kind.ITEM_DELTA] * 30, Kind.SESSION_ENDED]
    await sessions.write("s", *kinds)
    for after in range(len(kinds) + 1):
        responses = [one async for one in follow(server, after)]
        assert sequences(responses) == list(range(after + 1, len(kinds) + 1))
        assert responses[0].HasField("opened")


async def test_raw_is_there_only_for_those_who_ask(server: Running, sessions: FakeSessions) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, raw=b"\xff native")
    _, without = [one async for one in follow(server, follow=False)]
    _, with_raw = [one async for one in follow(server, follow=False, include_raw=True)]
    assert not without.batch.events[0].raw
    assert with_raw.batch.events[0].raw[0].data == b"\xff native"


async def test_an_idle_stream_says_that_it_is_alive_and_how_far_it_is(
    sessions: FakeSessions,
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, Kind.TURN_STARTED)
    async with running(sessions, progress_interval_seconds=FAST) as server:
        call = follow(server)
        await call.read()
        assert (await call.read()).batch.last_sequence == 2
        for _ in range(3):
            progress = (await call.read()).progress
            assert progress.last_sequence == 2
            assert progress.time.seconds > 0


async def test_without_following_the_stream_ends_ok_at_the_newest_event(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, *[Kind.ITEM_DELTA] * 299)
    call = follow(server, follow=False)
    responses = [one async for one in call]
    assert sequences(responses) == list(range(1, 301))
    assert await call.code() == grpc.StatusCode.OK


async def test_without_following_events_after_the_call_are_not_waited_for(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", *[Kind.ITEM_DELTA] * 600)
    call = follow(server, follow=False)
    await call.read()
    await sessions.write("s", *[Kind.ITEM_DELTA] * 100)
    assert sequences(await rest_of(call)) == list(range(1, 601))


async def test_an_empty_session_can_be_read(server: Running) -> None:
    responses = [one async for one in follow(server, follow=False)]
    assert [one.WhichOneof("response") for one in responses] == ["opened"]


async def test_a_followed_stream_ends_ok_after_session_ended_only(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    call = follow(server)
    await call.read()
    await call.read()
    # The bytes of the end's tag in an event's text are not the end.
    await sessions.write("s", Kind.ITEM_DELTA, label="\x16 \u0432\u0001 session_ended")
    assert (await call.read()).batch.last_sequence == 2
    await sessions.write("s", Kind.SESSION_ENDED)
    assert (await call.read()).batch.events[0].HasField("session_ended")
    assert await call.read() is aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_it_ends_ok_also_where_the_filter_hides_session_ended(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, Kind.ITEM_DELTA)
    call = follow(server, kinds=[event_pb2.EVENT_KIND_SESSION_STARTED])
    await call.read()
    assert sequences([await call.read()]) == [1]
    await sessions.write("s", Kind.ITEM_DELTA, Kind.SESSION_ENDED)
    last = await call.read()
    assert last.progress.last_sequence == 4
    assert await call.read() is aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_a_reader_that_has_seen_the_end_already_gets_ok(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED, Kind.SESSION_ENDED)
    call = follow(server, 2)
    assert [one.WhichOneof("response") async for one in call] == ["opened"]
    assert await call.code() == grpc.StatusCode.OK


async def test_the_end_is_seen_where_the_snapshot_does_not_know_it_yet(
    server: Running, sessions: FakeSessions
) -> None:
    running_state = sessions.states["s"]
    await sessions.write("s", Kind.SESSION_STARTED, Kind.SESSION_ENDED)
    sessions.states["s"] = running_state
    assert [one.WhichOneof("response") async for one in follow(server, 2)] == ["opened"]


async def test_a_filter_leaves_out_kinds_and_the_cursor_passes_them(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write(
        "s", Kind.SESSION_STARTED, *[Kind.ITEM_DELTA] * 400, Kind.TURN_ENDED, Kind.ITEM_DELTA
    )
    kinds = [event_pb2.EVENT_KIND_SESSION_STARTED, event_pb2.EVENT_KIND_TURN_ENDED]
    responses = [one async for one in follow(server, follow=False, kinds=kinds)]
    assert sequences(responses) == [1, 402]
    last = responses[-1]
    assert max(last.batch.last_sequence, last.progress.last_sequence) == 403


async def test_progress_moves_the_cursor_over_filtered_events(sessions: FakeSessions) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    async with running(sessions, progress_interval_seconds=FAST) as server:
        call = follow(server, 1, kinds=[event_pb2.EVENT_KIND_TURN_ENDED])
        await call.read()
        await sessions.write("s", Kind.ITEM_DELTA, Kind.ITEM_DELTA)
        while (await call.read()).progress.last_sequence != 3:
            pass


async def test_a_cursor_ahead_of_the_log_is_refused(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    for following in (True, False):
        found = await end_of(follow(server, 2, follow=following))
        assert found.info.reason == "SEQUENCE_IN_FUTURE"
        assert dict(found.info.metadata) == {"latest_sequence": "1"}


async def test_a_cursor_below_what_is_kept_is_refused(
    server: Running, sessions: FakeSessions
) -> None:
    for _ in range(40):
        await sessions.write("s", *[Kind.ITEM_DELTA] * 100, label="x" * 1000)
    earliest = await sessions.log.compact("s", 3000)
    assert earliest > 1
    found = await end_of(follow(server, 0))
    assert found.info.reason == "EVENTS_COMPACTED"
    assert dict(found.info.metadata) == {
        "earliest_sequence": str(earliest),
        "latest_sequence": "4000",
    }
    responses = [one async for one in follow(server, earliest - 1, follow=False)]
    assert sequences(responses) == list(range(earliest, 4001))


async def test_an_unknown_session_is_not_found(server: Running) -> None:
    call = server.stub.StreamEvents(service_pb2.StreamEventsRequest(session_id="other"))
    assert (await end_of(call)).info.reason == "SESSION_NOT_FOUND"


async def test_a_session_made_anew_is_told_from_the_one_before(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.delete("s")
    await sessions.add("s", "second")
    assert (await follow(server, expected_session_uid="second").read()).HasField("opened")
    found = await end_of(follow(server, expected_session_uid="uid-s"))
    assert found.info.reason == "SESSION_REPLACED"
    assert dict(found.info.metadata) == {"session_id": "s", "session_uid": "second"}


async def test_deleting_a_session_ends_its_streams(server: Running, sessions: FakeSessions) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    calls = [follow(server) for _ in range(3)]
    for call in calls:
        await call.read()
        await call.read()
    await sessions.delete("s")
    for call in calls:
        found = await end_of(call)
        assert found.info.reason == "SESSION_DELETED"
    assert sessions.followers == {"s": 0}


async def test_draining_ends_all_streams_and_refuses_new_ones(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    calls = [follow(server) for _ in range(5)]
    for call in calls:
        await call.read()
        await call.read()
    await server.server.drain()
    for call in [*calls, follow(server), follow(server, follow=False)]:
        with pytest.raises(aio.AioRpcError) as caught:
            await rest_of(call)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        found = details(caught.value)
        assert found.info.reason == "SERVER_DRAINING"
        assert found.retry_delay_seconds
    assert server.server.streams.count == 0


async def test_followers_are_counted_while_they_follow(
    server: Running, sessions: FakeSessions
) -> None:
    calls = [follow(server) for _ in range(3)]
    for call in calls:
        await call.read()
    assert sessions.followers["s"] == 3
    assert server.server.streams.count == 3
    for call in calls:
        call.cancel()
    async with asyncio.timeout(10):
        await sessions.until_unfollowed("s")
    assert server.server.streams.count == 0


async def test_who_only_reads_the_backlog_does_not_follow(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    await rest_of(follow(server, follow=False))
    assert sessions.followers == {}


async def test_streams_beyond_the_limit_are_refused(sessions: FakeSessions) -> None:
    async with running(sessions, max_streams=2) as server:
        calls = [follow(server), follow(server)]
        for call in calls:
            await call.read()
        found = await end_of(follow(server))
        assert found.info.reason == "LIMIT_EXCEEDED"
        assert dict(found.info.metadata) == {"limit": "max_streams", "value": "2"}


async def test_a_stalled_reader_holds_no_more_than_windows_and_loses_nothing(
    server: Running, sessions: FakeSessions
) -> None:
    count = 400
    for start in range(0, count, 50):
        records = []
        for number in range(start + 1, start + 51):
            event = event_pb2.Event(sequence=number)
            event.item_delta.text = "x" * 200_000
            records.append(Record(event.SerializeToString(), b"", Kind.ITEM_DELTA))
        await sessions.log.append("s", start, records)
    reads: dict[int, int] = {}
    """How often each reader read, by the order in which they were opened."""
    original = type(await sessions.log.open_reader("s")).read

    open_reader = sessions.log.open_reader

    async def open_counted(session_id: str) -> Any:
        number = len(reads)
        reads[number] = 0

        async def counted(reader: Any, after: int, **more: Any) -> Any:
            reads[number] += 1
            return await original(reader, after, **more)

        return _Counted(await open_reader(session_id), counted)

    sessions.log.open_reader = open_counted  # type: ignore[method-assign]
    stalled = follow(server)
    await stalled.read()
    # Another reader goes through all of it meanwhile, so there was time to read ahead.
    others = [one async for one in follow(server, follow=False)]
    assert sequences(others) == list(range(1, count + 1))
    assert server.server.streams.count == 1
    assert reads[0] < reads[1] / 2, "it read ahead of what the connection takes"
    seen: list[int] = []
    while len(seen) < count:
        seen += sequences([await stalled.read()])
    assert seen == list(range(1, count + 1))


async def test_a_stalled_reader_is_cut_by_a_stop_and_never_told_ok(
    server: Running, sessions: FakeSessions
) -> None:
    records = []
    for number in range(1, 201):
        event = event_pb2.Event(sequence=number)
        event.item_delta.text = "x" * 500_000
        records.append(Record(event.SerializeToString(), b"", Kind.ITEM_DELTA))
    await sessions.log.append("s", 0, records)
    stalled = follow(server, follow=False)
    await stalled.read()
    await server.server.drain()
    await server.server.stop(0)
    with pytest.raises(aio.AioRpcError) as caught:
        await rest_of(stalled)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class _Counted:
    """A reader whose reads are counted."""

    def __init__(self, reader: Any, read: Any) -> None:
        self._reader = reader
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __enter__(self) -> "_Counted":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    async def read(self, after: int, **more: Any) -> Any:
        return await self._read(self._reader, after, **more)


async def test_a_log_that_fails_ends_the_stream_with_a_status(
    server: Running, sessions: FakeSessions
) -> None:
    await sessions.write("s", Kind.SESSION_STARTED)
    call = follow(server)
    await call.read()
    await call.read()
    await sessions.log.close()
    assert (await end_of(call)).info.reason == "SERVER_DRAINING"
