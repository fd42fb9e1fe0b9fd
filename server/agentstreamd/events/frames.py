"""How events are laid out in a stored chunk, and how parts of a chunk are read.

A chunk is a run of events of one session. Its `frames` are what a reader sends, so that reading is
slicing. Beside them stand columns of one entry an event; all of them can be put end to end, which
makes joining two chunks a concatenation.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import or_

from .log import MAX_KIND, Record

EVENT_TAG = 0x0A  # field 1, length-delimited
_KIND_BITS = 0x3F
_NEW_RAW = 0x40

CHUNK_OVERHEAD = 400  # bytes of the Python objects of a chunk, measured


def _make_prefix(length: int) -> bytes:
    out = bytearray((EVENT_TAG,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


_PREFIXES = [_make_prefix(n) for n in range(4096)]


def frame_prefix(length: int) -> bytes:
    """Gives what stands before an event of `length` bytes: the tag and its length as a varint."""
    return _PREFIXES[length] if length < 4096 else _make_prefix(length)


def _prefix_length(frame_length: int) -> int:
    length, size = 2, 0x7F
    while frame_length > size + length:
        length += 1
        size = size << 7 | 0x7F
    return length


@dataclass(slots=True)
class Chunk:
    """A run of events.

    Attributes:
        first: sequence of the first event.
        tags: a byte an event: the kind, and 0x40 where the event begins a new raw.
        lengths: a little-endian uint32 an event: the length of its frame.
        frames: tag, length and bytes of the events, end to end.
        raw_lengths: a little-endian uint32 a raw.
        raws: the raws end to end; None where they were not loaded.
        kinds: bit n is set where an event of kind n is in the chunk.
    """

    first: int
    tags: bytes
    lengths: bytes
    frames: bytes
    raw_lengths: bytes
    raws: bytes | None
    kinds: int
    _ends: "array[int] | None" = None
    _raw_of: "array[int] | None" = None

    @property
    def last(self) -> int:
        """Sequence of the last event."""
        return self.first + len(self.tags) - 1

    @property
    def stored_bytes(self) -> int:
        """Bytes of events and raws."""
        return len(self.frames) + (len(self.raws) if self.raws else 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes the chunk takes in memory, with the offsets it may come to hold."""
        return self.stored_bytes + 16 * len(self.tags) + CHUNK_OVERHEAD

    @property
    def ends(self) -> "array[int]":
        """Offsets in `frames`: event i is from [i] to [i + 1]."""
        if self._ends is None:
            count = len(self.tags)
            lengths = struct.unpack(f"<{count}I", self.lengths)
            self._ends = array("I", accumulate(lengths, initial=0))
        return self._ends

    def raw_slices(self) -> tuple["array[int]", Sequence[bytes]]:
        """Gives the number of each event's raw, and the raws."""
        if self.raws is None:
            raise ValueError("the chunk was loaded without its raws")
        if self._raw_of is None:
            self._raw_of = array("I", accumulate(tag >> 6 for tag in self.tags))
        lengths = struct.unpack(f"<{len(self.raw_lengths) // 4}I", self.raw_lengths)
        raws, start = [b""], 0  # events count raws from 1
        for length in lengths:
            raws.append(self.raws[start : start + length])
            start += length
        return self._raw_of, raws


def kinds_mask(kinds: Iterable[int]) -> int:
    """Gives the bits of a set of kinds."""
    return reduce(or_, (1 << kind for kind in kinds), 0)


def _chunk(
    first: int, tags: bytearray, lengths: list[int], parts: list[bytes], raws: list[bytes]
) -> Chunk:
    return Chunk(
        first=first,
        tags=bytes(tags),
        lengths=struct.pack(f"<{len(lengths)}I", *lengths),
        frames=b"".join(parts),
        raw_lengths=struct.pack(f"<{len(raws)}I", *map(len, raws)),
        raws=b"".join(raws),
        kinds=kinds_mask({tag & _KIND_BITS for tag in tags}),
    )


def build_chunks(first: int, records: Sequence[Record], chunk_bytes: int) -> list[Chunk]:
    """Lays records out as chunks of at most `chunk_bytes` (or one event, where it is larger)."""
    chunks: list[Chunk] = []
    tags, lengths, parts, raws = bytearray(), list[int](), list[bytes](), list[bytes]()
    size = 0
    previous: bytes | None = None
    for record in records:
        event, raw, kind = record.event, record.raw, record.kind
        if not 0 <= kind <= MAX_KIND:
            raise ValueError(f"kind {kind} is not within 0 to {MAX_KIND}")
        prefix = frame_prefix(len(event))
        length = len(prefix) + len(event)
        fresh = raw is not previous and raw != previous
        grown = size + length + (len(raw) if fresh else 0)
        if grown > chunk_bytes and tags:
            chunks.append(_chunk(first, tags, lengths, parts, raws))
            first += len(tags)
            tags, lengths, parts, raws = bytearray(), [], [], []
            fresh, grown = True, length + len(raw)
        size = grown
        if fresh:
            tags.append(kind | _NEW_RAW)
            raws.append(raw)
            previous = raw
        else:
            tags.append(kind)
        lengths.append(length)
        parts.append(prefix)
        parts.append(event)
    if tags:
        chunks.append(_chunk(first, tags, lengths, parts, raws))
    return chunks


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Joins chunks that follow each other into one; all with their raws, or all without."""
    if len(chunks) == 1:
        return chunks[0]
    raws = [chunk.raws for chunk in chunks if chunk.raws is not None]
    return Chunk(
        first=chunks[0].first,
        tags=b"".join([chunk.tags for chunk in chunks]),
        lengths=b"".join([chunk.lengths for chunk in chunks]),
        frames=b"".join([chunk.frames for chunk in chunks]),
        raw_lengths=b"".join([chunk.raw_lengths for chunk in chunks]),
        raws=b"".join(raws) if len(raws) == len(chunks) else None,
        kinds=reduce(or_, [chunk.kinds for chunk in chunks]),
    )


def pack(chunks: Sequence[Chunk], chunk_bytes: int) -> list[Chunk]:
    """Joins neighbours as far as the results stay within `chunk_bytes`."""
    packed: list[Chunk] = []
    run: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if run and size + chunk.stored_bytes > chunk_bytes:
            packed.append(join(run))
            run, size = [], 0
        run.append(chunk)
        size += chunk.stored_bytes
    if run:
        packed.append(join(run))
    return packed


class Filter:
    """Which kinds pass; `mask` has a bit for each."""

    __slots__ = ("mask", "table")

    def __init__(self, kinds: frozenset[int]) -> None:
        """Takes kinds; those outside 0 to 63 match nothing."""
        self.mask = kinds_mask(kind for kind in kinds if 0 <= kind <= MAX_KIND)
        self.table = bytes(self.mask >> (tag & _KIND_BITS) & 1 for tag in range(256))


class Selection:
    """Gathers a batch from chunks, within limits of events and bytes."""

    __slots__ = (
        "_bytes",
        "_filter",
        "_max_bytes",
        "_max_events",
        "_raw",
        "count",
        "full",
        "last_kind",
        "parts",
    )

    def __init__(
        self, kinds: Filter | None, include_raw: bool, max_events: int, max_bytes: int
    ) -> None:
        """Takes what passes and the limits; the first event is taken whatever its size."""
        self._filter = kinds
        self._raw = include_raw
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._bytes = 0
        self.parts: list[bytes] = []
        self.count = 0
        self.last_kind: int | None = None
        self.full = False

    def take(self, chunk: Chunk, after: int) -> int:
        """Takes what passes of `chunk` after the cursor `after`; gives the new cursor."""
        start, count = after + 1 - chunk.first, len(chunk.tags)
        if self._filter is None or not chunk.kinds & ~self._filter.mask:
            if start == 0 and self.count and self._would_split(chunk):
                # Whole chunks are handed on as they are; one more message costs less than to cut
                # this one, and the next, and all after them.
                self.full = True
                return after
            return chunk.first + self._take_run(chunk, start, count) - 1
        if not chunk.kinds & self._filter.mask:
            return chunk.last
        passing = chunk.tags.translate(self._filter.table)
        while (start := passing.find(1, start)) >= 0:
            if self.full:
                return chunk.first + start - 1
            end = passing.find(0, start)
            stop = self._take_run(chunk, start, end if end >= 0 else count)
            if stop != end:
                if stop < count:
                    return chunk.first + stop - 1
                break
            start = stop
        return chunk.last

    def _would_split(self, chunk: Chunk) -> bool:
        return (
            self.count + len(chunk.tags) > self._max_events
            or self._bytes + chunk.stored_bytes > self._max_bytes
        )

    def _take_run(self, chunk: Chunk, start: int, end: int) -> int:
        stop = min(end, start + self._max_events - self.count)
        stop = (
            self._take_with_raw(chunk, start, stop) if self._raw else self._take(chunk, start, stop)
        )
        if stop > start:
            self.last_kind = chunk.tags[stop - 1] & _KIND_BITS
        self.count += stop - start
        self.full = self.full or self.count >= self._max_events
        return stop

    def _take(self, chunk: Chunk, start: int, stop: int) -> int:
        room = self._max_bytes - self._bytes
        if start == 0 and stop == len(chunk.tags) and len(chunk.frames) <= room:
            part = chunk.frames
        else:
            ends = chunk.ends
            base = ends[start]
            if ends[stop] - base > room:
                self.full = True
                stop = bisect_right(ends, base + room, start, stop) - 1
                if stop == start and not self.count:
                    stop += 1
            part = chunk.frames[base : ends[stop]]
        self.parts.append(part)
        self._bytes += len(part)
        return stop

    def _take_with_raw(self, chunk: Chunk, start: int, stop: int) -> int:
        ends, frames = chunk.ends, chunk.frames
        raw_of, raws = chunk.raw_slices()
        size, parts = self._bytes, self.parts
        for i in range(start, stop):
            begin, end = ends[i], ends[i + 1]
            raw = raws[raw_of[i]]
            skip = _prefix_length(end - begin)
            prefix = frame_prefix(end - begin - skip + len(raw))
            grown = size + len(prefix) + end - begin - skip + len(raw)
            if grown > self._max_bytes and (self.count or i > start):
                self.full = True
                stop = i
                break
            size = grown
            parts += (prefix, frames[begin + skip : end], raw)
        self._bytes = size
        return stop
