import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstreamd.process import Line, LineFramer, OversizedLine

# Few distinct bytes, so that line ends, carriage returns and long lines meet often.
streams = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xc2\x85", b"bcdef"])).map(
    b"".join
)


def frame(framer: LineFramer, *chunks: bytes) -> list[Line]:
    lines = [line for chunk in chunks for line in framer.feed(chunk)]
    return lines + framer.finish()


def expected(stream: bytes, limit: int, head: int) -> list[Line]:
    *whole, last = stream.split(b"\n")
    lines: list[Line] = []
    for line in whole:
        long = len(line) > limit
        lines.append(OversizedLine(line[:head], len(line)) if long else line.removesuffix(b"\r"))
    if last:
        lines.append(OversizedLine(last[:head], len(last)) if len(last) > limit else last)
    return lines


@given(streams, st.data(), st.integers(1, 12), st.integers(0, 12))
def test_the_cut_into_chunks_never_changes_the_lines(
    stream: bytes, data: st.DataObject, limit: int, head: int
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    framer = LineFramer(limit, oversized_head_bytes=head)
    assert frame(framer, *chunks) == expected(stream, limit, min(head, limit))


@given(streams, st.integers(1, 5))
def test_empty_lines_are_skipped_when_asked(stream: bytes, size: int) -> None:
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    lines = frame(LineFramer(skip_empty=True), *chunks)
    assert lines == [line for line in frame(LineFramer(), stream) if line != b""]


def test_only_line_feeds_end_lines() -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\rh"
    assert frame(LineFramer(), f"{text}\nnext".encode()) == [text.encode(), b"next"]


def test_a_framer_starts_afresh_after_finish() -> None:
    framer = LineFramer()
    assert frame(framer, b"cut") == [b"cut"]
    assert frame(framer, b"whole\n") == [b"whole"]


def test_a_line_of_exactly_the_limit_is_whole_and_one_byte_more_is_not() -> None:
    limit = 64 * 2**20
    chunk = bytes(2**20).replace(b"\0", b"x")
    framer = LineFramer()
    whole = frame(framer, *[chunk] * 64, b"\nafter\n")
    assert [len(line) for line in whole if isinstance(line, bytes)] == [limit, 5]
    long, after = frame(framer, *[chunk] * 64, b"y\nafter\n")
    assert isinstance(long, OversizedLine)
    assert (len(long.head), long.length, after) == (64 * 2**10, limit + 1, b"after")


def test_an_endless_line_takes_bounded_memory() -> None:
    framer = LineFramer(2**20)
    chunk = b"x" * 2**18
    tracemalloc.start()
    try:
        for _ in range(4000):
            framer.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert framer.finish() == [OversizedLine(b"x" * 2**16, 4000 * 2**18)]
    assert peak < 4 * 2**20


@pytest.mark.parametrize("chunk_size", [1, 7])
def test_a_long_line_in_tiny_chunks_is_put_together(chunk_size: int) -> None:
    line = bytes(range(11, 256)) * 800
    framer = LineFramer()
    chunks = [line[start : start + chunk_size] for start in range(0, len(line), chunk_size)]
    assert frame(framer, *chunks, b"\n") == [line]
