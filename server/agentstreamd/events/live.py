"""Sessions in memory: those with readers, and those with events appended lately.

Lives on the event loop alone. A session that has neither is not here at all.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from .errors import SessionDeleted
from .frames import Chunk
from .jobs import Appended, Change, Compacted, Deleted
from .log import Batch

_first = attrgetter("first")
_MEMO_ENTRIES = 4
_MEMO_BYTES = 256 * 1024

MemoKey = tuple[int, frozenset[int] | None, bool, int, int]


class Session:
    """A session in memory.

    Attributes:
        session_id: its id.
        uid: its uid.
        key: its number in the storage, never given to another session.
        earliest: sequence of the oldest event kept.
        latest: sequence of the newest durable event.
        deleted: it is gone; readers may still hold this object.
        readers: how many readers are open on it.
        tail: its newest chunks, without a gap up to `latest`; may be empty.
        appended_at: when it was last appended to, by the event loop's clock, in seconds.
    """

    __slots__ = (
        "_memo",
        "_waiters",
        "appended_at",
        "deleted",
        "earliest",
        "key",
        "latest",
        "readers",
        "session_id",
        "tail",
        "tail_bytes",
        "uid",
    )

    def __init__(self, session_id: str, uid: str, key: int, earliest: int, latest: int) -> None:
        """Takes what the storage has of it."""
        self.session_id = session_id
        self.uid = uid
        self.key = key
        self.earliest = earliest
        self.latest = latest
        self.deleted = False
        self.readers = 0
        self.tail: list[Chunk] | None = None
        self.tail_bytes = 0
        self.appended_at = 0.0
        self._waiters: set[asyncio.Future[None]] | None = None
        self._memo: dict[MemoKey, Batch] | None = None

    def find(self, sequence: int) -> Chunk | None:
        """Gives the chunk of the tail that holds an event."""
        tail = self.tail
        if not tail or not tail[0].first <= sequence <= tail[-1].last:
            return None
        if sequence >= tail[-1].first:
            return tail[-1]
        return tail[bisect_right(tail, sequence, key=_first) - 1]

    def recall(self, key: MemoKey) -> Batch | None:
        """Gives the batch that another reader at the same place got since the last append."""
        return self._memo.get(key) if self._memo else None

    def remember(self, key: MemoKey, batch: Batch) -> None:
        """Keeps a batch for other readers at the same place, until the next append."""
        if batch.size <= _MEMO_BYTES:
            if self._memo is None:
                self._memo = {}
            if len(self._memo) < _MEMO_ENTRIES:
                self._memo[key] = batch

    def forget(self) -> None:
        """Drops the batches kept for others."""
        self._memo = None

    async def changed(self) -> None:
        """Waits for the next append, the deletion or the end of the log."""
        if self._waiters is None:
            self._waiters = set()
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            if self._waiters is not None:
                self._waiters.discard(waiter)

    def wake(self) -> None:
        """Wakes all who wait."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def require(self) -> None:
        """Raises `SessionDeleted` where the session is gone."""
        if self.deleted:
            raise SessionDeleted(self.session_id)


class LiveSessions:
    """The sessions in memory, with a bound on what their tails take."""

    def __init__(self, session_bytes: int, total_bytes: int) -> None:
        """Takes the bounds of one tail and of all of them, in bytes."""
        self._session_bytes = session_bytes
        self._total_bytes = total_bytes
        self._sessions: dict[str, Session] = {}
        self._tails: OrderedDict[Session, None] = OrderedDict()  # the one appended to last is last
        self.tail_bytes = 0
        # Counts sessions that left: who loads one meanwhile may have missed an append and must
        # load again.
        self.departures = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def get(self, session_id: str) -> Session | None:
        """Gives the session where it is in memory."""
        return self._sessions.get(session_id)

    def add(self, session: Session) -> None:
        """Takes in a session loaded from the storage."""
        self._sessions[session.session_id] = session

    def release(self, session: Session) -> None:
        """Takes one reader off a session."""
        session.readers -= 1
        self._leave_if_unused(session)

    def apply(self, change: Change, now: float) -> None:
        """Makes a durable change visible, and wakes the session's readers."""
        match change:
            case Appended():
                self._append(change, now)
            case Deleted(session_id):
                session = self._sessions.pop(session_id, None)
                self.departures += 1
                if session is not None:
                    session.deleted = True
                    self._drop_tail(session)
                    session.wake()
            case Compacted(session_id, earliest):
                session = self._sessions.get(session_id)
                if session is not None:
                    session.earliest = earliest
                    session.forget()
                    stale = sum(chunk.first < earliest for chunk in session.tail or ())
                    self._shorten(session, stale)
                else:
                    self.departures += 1

    def drop_idle(self, before: float) -> None:
        """Drops the tails of sessions last appended to before this time."""
        for session in list(self._tails):
            if session.appended_at >= before:
                break
            self._drop_tail(session)
            self._leave_if_unused(session)

    def close(self) -> None:
        """Wakes everyone and forgets everything."""
        for session in self._sessions.values():
            session.wake()
        self._sessions.clear()
        self._tails.clear()
        self.tail_bytes = 0

    def _append(self, change: Appended, now: float) -> None:
        session = self._sessions.get(change.session_id)
        last = change.chunks[-1].last
        if session is None:
            session = Session(change.session_id, change.uid, change.key, change.earliest, last)
            self._sessions[change.session_id] = session
        # It may have been loaded from the storage after the commit and before this.
        session.latest = max(session.latest, last)
        session.appended_at = now
        session.forget()
        if session.tail and session.tail[-1].last + 1 != change.chunks[0].first:
            self._drop_tail(session)
        self._extend(session, change.chunks)
        while self.tail_bytes > self._total_bytes and len(self._tails) > 1:
            oldest = next(iter(self._tails))
            self._drop_tail(oldest)
            self._leave_if_unused(oldest)
        session.wake()

    def _extend(self, session: Session, chunks: Sequence[Chunk]) -> None:
        tail = session.tail
        if tail is None:
            tail = session.tail = []
        tail += chunks
        grown = sum(chunk.memory_bytes for chunk in chunks)
        session.tail_bytes += grown
        self.tail_bytes += grown
        self._tails[session] = None
        self._tails.move_to_end(session)
        if session.tail_bytes > self._session_bytes:
            # Some more than needed, so that a long tail is not shifted at each append.
            size, keep, drop = session.tail_bytes, self._session_bytes * 3 // 4, 0
            while size > keep and drop < len(tail) - 1:
                size -= tail[drop].memory_bytes
                drop += 1
            self._shorten(session, drop)

    def _shorten(self, session: Session, drop: int) -> None:
        tail = session.tail or []
        if drop >= len(tail):
            self._drop_tail(session)
            return
        gone = sum(chunk.memory_bytes for chunk in tail[:drop])
        del tail[:drop]
        session.tail_bytes -= gone
        self.tail_bytes -= gone

    def _drop_tail(self, session: Session) -> None:
        self.tail_bytes -= session.tail_bytes
        session.tail, session.tail_bytes = None, 0
        session.forget()
        self._tails.pop(session, None)

    def _leave_if_unused(self, session: Session) -> None:
        if session.readers or session.tail or session.deleted:
            return
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
            self.departures += 1
