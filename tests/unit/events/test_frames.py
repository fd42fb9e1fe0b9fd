from hypothesis import given
from hypothesis import strategies as st

from agentstreamd.events import Record
from agentstreamd.events.frames import Chunk, Filter, Selection, build_chunks, join, pack
from tests.unit.events.helpers import decode

_RAWS = (b"", b"raw one", b"raw two" * 30)

_records = st.lists(
    st.builds(
        Record,
        event=st.integers(0, 300).map(lambda n: b"e" * n),
        raw=st.sampled_from(_RAWS),
        kind=st.sampled_from((0, 1, 5, 63)),
    ),
    min_size=1,
    max_size=40,
)


def expected(records: list[Record], kinds: frozenset[int] | None, raw: bool) -> list[bytes]:
    return [
        record.event + (record.raw if raw else b"")
        for record in records
        if kinds is None or record.kind in kinds
    ]


@given(
    records=_records,
    chunk_bytes=st.integers(1, 2000),
    kinds=st.none() | st.frozensets(st.sampled_from((0, 1, 2, 63))),
    raw=st.booleans(),
    max_events=st.integers(1, 50),
    max_bytes=st.integers(1, 3000),
    packed=st.booleans(),
)
def test_any_way_of_reading_gives_each_event_once_within_the_limits(
    records: list[Record],
    chunk_bytes: int,
    kinds: frozenset[int] | None,
    raw: bool,
    max_events: int,
    max_bytes: int,
    packed: bool,
) -> None:
    chunks = build_chunks(1, records, chunk_bytes)
    if packed:
        chunks = pack(chunks, 2 * chunk_bytes)
    assert [c.first for c in chunks[1:]] == [c.last + 1 for c in chunks[:-1]]
    wanted = None if kinds is None else Filter(kinds)
    out: list[bytes] = []
    cursor = 0
    while cursor < len(records):
        selection = Selection(wanted, raw, max_events, max_bytes)
        before = cursor
        for chunk in chunks:
            if chunk.last > cursor and not selection.full:
                cursor = selection.take(chunk, cursor)
        assert cursor > before
        data = b"".join(selection.parts)
        events = decode(data)
        assert len(events) == selection.count <= max_events
        assert len(data) <= max_bytes or selection.count == 1
        out += events
    assert out == expected(records, kinds, raw)


@given(records=_records, split=st.integers(1, 39))
def test_joined_chunks_read_as_those_they_were_made_of(records: list[Record], split: int) -> None:
    parts = [records[:split], records[split:]]
    chunks = [
        chunk
        for first, part in zip((1, split + 1), parts, strict=True)
        for chunk in build_chunks(first, part, 10**6)
    ]
    joined = join(chunks)
    selection = Selection(None, True, 1000, 10**6)
    assert selection.take(joined, 0) == len(records)
    assert decode(b"".join(selection.parts)) == expected(records, None, True)


def test_a_raw_shared_by_neighbours_is_stored_once() -> None:
    raw = b"r" * 1000
    records = [Record(b"e", raw, 1) for _ in range(100)] + [Record(b"e", bytes(bytearray(raw)), 1)]
    (chunk,) = build_chunks(1, records, 10**6)
    assert chunk.raws == raw


def test_a_chunk_is_no_larger_than_asked_unless_one_event_is() -> None:
    records = [Record(b"e" * size) for size in (400, 400, 400, 5000, 10)]
    chunks = build_chunks(1, records, 1000)
    assert [len(chunk.tags) for chunk in chunks] == [2, 1, 1, 1]


def test_frames_are_stored_as_they_are_sent() -> None:
    (chunk,) = build_chunks(1, [Record(b"e" * size) for size in (0, 127, 128, 20_000)], 10**6)
    selection = Selection(None, False, 10, 10**6)
    assert isinstance(chunk, Chunk)
    selection.take(chunk, 0)
    assert selection.parts == [chunk.frames]
    assert selection.parts[0] is chunk.frames


def test_a_chunk_that_does_not_fit_goes_whole_into_the_next_batch() -> None:
    records = [Record(event=b"e%d" % number, kind=0) for number in range(6)]
    one, other = build_chunks(1, records[:3], 1000) + build_chunks(4, records[3:], 1000)
    selection = Selection(None, False, max_events=5, max_bytes=1000)
    assert selection.take(one, 0) == 3
    assert selection.take(other, 3) == 3
    assert (selection.full, selection.count) == (True, 3)
    assert selection.parts == [one.frames]
