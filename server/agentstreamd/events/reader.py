"""A reader of one session: from the tail in memory where possible, else from disk."""

import asyncio
from collections.abc import Awaitable, Callable

from .errors import CursorCompacted, CursorInFuture, LogUnavailable, Reason
from .frames import Filter, Selection
from .live import LiveSessions, Session
from .log import Batch, Reader
from .pages import PageCache
from .queries import Loaded

Load = Callable[[Session, int, int | None, bool], Awaitable[Loaded]]
"""Loads chunks of a session after a cursor, with a mask of kinds, with or without raws."""


class LogReader(Reader):
    """Holds a session; all else it uses is shared by all readers."""

    __slots__ = ("_closed", "_filters", "_live", "_load", "_pages", "_session")

    def __init__(
        self,
        session: Session,
        live: LiveSessions,
        pages: PageCache,
        load: Load,
        closed: asyncio.Event,
    ) -> None:
        """Takes the session, with this reader counted already."""
        self._session: Session = session
        self._live: LiveSessions | None = live
        self._pages = pages
        self._load = load
        self._closed = closed
        self._filters: tuple[frozenset[int], Filter] | None = None

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._session.session_id

    @property
    def uid(self) -> str:
        """The session's uid."""
        return self._session.uid

    @property
    def earliest(self) -> int:
        """Sequence of the oldest event kept; latest + 1 where there is none."""
        return self._session.earliest

    @property
    def latest(self) -> int:
        """Sequence of the newest event, 0 before the first."""
        return self._session.latest

    async def read(
        self,
        after_sequence: int,
        *,
        kinds: frozenset[int] | None = None,
        include_raw: bool = False,
        max_events: int = 256,
        max_bytes: int = 1024 * 1024,
    ) -> Batch:
        """Reads events after the cursor; see `Reader.read`."""
        session = self._session
        self._require(after_sequence)
        if after_sequence == session.latest:
            return Batch((), 0, after_sequence)
        memo = (after_sequence, kinds, include_raw, max_events, max_bytes)
        batch = session.recall(memo)
        if batch is not None:
            return batch
        wanted = None if kinds is None else self._filter(kinds)
        selection = Selection(wanted, include_raw, max_events, max_bytes)
        cursor = self._take_from_memory(selection, after_sequence, include_raw)
        if cursor == after_sequence:
            cursor = await self._take_from_disk(selection, cursor, wanted, include_raw)
            return Batch(selection.parts, selection.count, cursor, selection.last_kind)
        batch = Batch(selection.parts, selection.count, cursor, selection.last_kind)
        if session.tail and after_sequence + 1 >= session.tail[0].first:
            session.remember(memo, batch)
        return batch

    async def wait_beyond(self, sequence: int) -> int:
        """Waits for an event after `sequence`; see `Reader.wait_beyond`."""
        session = self._session
        self._require_open()
        while session.latest <= sequence:
            await session.changed()
            self._require_open()
        return session.latest

    def close(self) -> None:
        """Lets go of the session."""
        if self._live is not None:
            self._live.release(self._session)
            self._live = None

    def _require_open(self) -> None:
        self._session.require()
        if self._closed.is_set():
            raise LogUnavailable(Reason.CLOSED, "the log was closed")
        if self._live is None:
            raise ValueError("the reader was closed")

    def _require(self, after: int) -> None:
        self._require_open()
        session = self._session
        if after > session.latest:
            raise CursorInFuture(after, session.latest)
        if after + 1 < session.earliest or after < 0:
            raise CursorCompacted(after, session.earliest, session.latest)

    def _filter(self, kinds: frozenset[int]) -> Filter:
        if self._filters is None or self._filters[0] is not kinds:
            self._filters = (kinds, Filter(kinds))
        return self._filters[1]

    def _take_from_memory(self, selection: Selection, cursor: int, include_raw: bool) -> int:
        session = self._session
        while cursor < session.latest and not selection.full:
            chunk = session.find(cursor + 1) or self._pages.find(
                session.key, cursor + 1, include_raw
            )
            if chunk is None:
                break
            cursor = selection.take(chunk, cursor)
        return cursor

    async def _take_from_disk(
        self, selection: Selection, cursor: int, wanted: Filter | None, include_raw: bool
    ) -> int:
        session = self._session
        mask = None if wanted is None else wanted.mask
        loaded = await self._load(session, cursor, mask, include_raw)
        self._require_open()
        if loaded.earliest is None:
            # Deleted, and about to be told so: the row goes before the readers are woken.
            await self.wait_beyond(session.latest)
        elif loaded.earliest > cursor + 1:
            raise CursorCompacted(cursor, loaded.earliest, session.latest)
        if loaded.chunks:
            # Durable, so nothing hides it, though its append is still to be told.
            session.latest = max(session.latest, loaded.chunks[-1].last)
        for i, chunk in enumerate(loaded.chunks):
            if chunk.first > cursor + 1:
                if wanted is None:
                    break
                cursor = chunk.first - 1
            if selection.full:
                for left in loaded.chunks[i:]:
                    self._pages.put(session.key, left, include_raw)
                return cursor
            cursor = selection.take(chunk, cursor)
            if cursor < chunk.last:
                for left in loaded.chunks[i:]:
                    self._pages.put(session.key, left, include_raw)
                return cursor
        if wanted is not None:
            return max(cursor, loaded.end)
        if not selection.count:
            raise LogUnavailable(Reason.CORRUPT, f"event {cursor + 1} is missing from the log")
        return cursor
