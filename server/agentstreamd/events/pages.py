"""Chunks read from disk lately, for readers that are behind the tail.

A stored chunk holds more events than a reader takes at once; without this it would be read from
disk several times. Bounded in bytes over all readers, so a reader that stalls holds nothing.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from operator import attrgetter

from .frames import Chunk

_first = attrgetter("first")
_Shelf = tuple[int, bool]


class PageCache:
    """Chunks by session and place; the ones used least lately go first."""

    def __init__(self, max_bytes: int) -> None:
        """Takes the bound in bytes."""
        self._max_bytes = max_bytes
        self._shelves: dict[_Shelf, list[Chunk]] = {}
        self._recent: OrderedDict[tuple[_Shelf, int], Chunk] = OrderedDict()
        self.bytes = 0

    def find(self, key: int, sequence: int, with_raws: bool) -> Chunk | None:
        """Gives a chunk of session `key` that holds an event, with its raws where asked."""
        shelf = (key, with_raws)
        chunks = self._shelves.get(shelf)
        if not chunks:
            return None
        i = bisect_right(chunks, sequence, key=_first) - 1
        if i < 0 or chunks[i].last < sequence:
            return None
        self._recent.move_to_end((shelf, chunks[i].first))
        return chunks[i]

    def put(self, key: int, chunk: Chunk, with_raws: bool) -> None:
        """Takes a chunk in, in place of one that begins at the same event."""
        shelf = (key, with_raws)
        if (shelf, chunk.first) in self._recent:
            self._remove(shelf, chunk.first)
        insort(self._shelves.setdefault(shelf, []), chunk, key=_first)
        self._recent[shelf, chunk.first] = chunk
        self.bytes += chunk.memory_bytes
        while self.bytes > self._max_bytes:
            self._remove(*next(iter(self._recent)))

    def _remove(self, shelf: _Shelf, first: int) -> None:
        chunk = self._recent.pop((shelf, first))
        chunks = self._shelves[shelf]
        del chunks[bisect_left(chunks, first, key=_first)]
        if not chunks:
            del self._shelves[shelf]
        self.bytes -= chunk.memory_bytes
