"""The event log: what the rest of the daemon may rely on, whatever stores it.

A log holds sessions. A session has events (bytes, numbered from 1 without a gap), a small
key/value state and blobs. One append changes all three in one transaction. Nobody sees an event
before it is durable.

All methods are called on one event loop and never block it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

MAX_KIND = 63


def blob_value_key(blob_id: str) -> str:
    """Gives the key of a value that describes a blob, and goes when the blob goes."""
    return f"blob/{blob_id}"


@dataclass(slots=True)
class Record:
    """One event to append.

    Attributes:
        event: the serialized event, without its raw part.
        raw: encoded protobuf field bytes, appended to the event for readers that ask for them;
            may be empty. Equal neighbours are stored once.
        kind: 0 to 63, for filters.
    """

    event: bytes
    raw: bytes = b""
    kind: int = 0


@dataclass(slots=True)
class Batch:
    """Events as read.

    Attributes:
        parts: put end to end, for each event `0x0a`, its length as a varint, its bytes: the
            encoding of a message whose field 1 is the repeated event.
        count: how many events `parts` hold; 0 where all were filtered or none was there.
        last_sequence: the cursor for the next read; beyond filtered events too.
        last_kind: the kind of the last event; None where there is none.
        response: room for what a reader makes of the batch: others at the same place get the same
            batch, and need not make it again.
    """

    parts: Sequence[bytes]
    count: int
    last_sequence: int
    last_kind: int | None = None
    response: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))

    @property
    def data(self) -> bytes:
        """All parts in one."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as listed.

    Attributes:
        session_id: the id it was created with.
        uid: tells it from an earlier session of the same id.
        earliest: sequence of the oldest event kept (latest + 1 where there is none).
        latest: sequence of the newest event, 0 before the first.
        value: what the key asked for holds, None where it is not set (or none was asked for).
    """

    session_id: str
    uid: str
    earliest: int
    latest: int
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of sessions in order of creation; `next_cursor` is empty on the last one."""

    sessions: Sequence[SessionInfo]
    next_cursor: str


class Reader(ABC):
    """A place to read one session from; a subscriber holds one, and a cursor of its own.

    It costs no memory per event and no queue: a reader that stalls costs nothing. It stays with
    the session it was opened on: when that is deleted, each call raises `SessionDeleted`, also
    where a new session has the same id. Close it, or use it in a `with`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session's id."""

    @property
    @abstractmethod
    def uid(self) -> str:
        """The session's uid."""

    @property
    @abstractmethod
    def earliest(self) -> int:
        """Sequence of the oldest event kept; latest + 1 where there is none."""

    @property
    @abstractmethod
    def latest(self) -> int:
        """Sequence of the newest event, 0 before the first."""

    @abstractmethod
    async def read(
        self,
        after_sequence: int,
        *,
        kinds: frozenset[int] | None = None,
        include_raw: bool = False,
        max_events: int = 256,
        max_bytes: int = 1024 * 1024,
    ) -> Batch:
        """Reads events after the cursor, as many as are at hand within the limits.

        Never waits for new events: at the tail the batch is empty. May give fewer than there are.
        One event larger than `max_bytes` comes alone. `kinds=None` is all kinds.

        Raises:
            CursorCompacted: events after the cursor are no longer kept.
            CursorInFuture: the cursor is beyond the newest event.
            SessionDeleted: the session is gone.
            LogUnavailable: the storage failed, or the log was closed.
        """

    @abstractmethod
    async def wait_beyond(self, sequence: int) -> int:
        """Waits until there is an event after `sequence`; returns the newest sequence.

        Raises:
            SessionDeleted: the session is gone.
            LogUnavailable: the log was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of the session; twice is fine."""

    def __enter__(self) -> Self:
        """Gives the reader itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the reader."""
        self.close()


class EventLog(ABC):
    """A durable log of events by session.

    Methods that change something return a future, and take effect in the order of the calls
    (also before anyone awaits); the future resolves when the change is durable. To cancel the
    wait doesn't take the change back. All of them raise `LogUnavailable` where the storage
    failed: the change was then not stored, nor was any that had been asked for in the meantime.
    """

    @abstractmethod
    def create_session(
        self,
        session_id: str,
        uid: str,
        *,
        puts: Mapping[str, bytes] | None = None,
        records: Sequence[Record] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
    ) -> asyncio.Future[int]:
        """Creates a session, with first state, events and blobs; gives its latest sequence.

        Raises:
            SessionExists: the id is taken.
        """

    @abstractmethod
    def append(
        self,
        session_id: str,
        expected_sequence: int,
        records: Sequence[Record],
        *,
        puts: Mapping[str, bytes] | None = None,
        deletes: Iterable[str] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
    ) -> asyncio.Future[int]:
        """Appends events at `expected_sequence` + 1 and on; gives the sequence of the last one.

        Keys are deleted, then set, in the same transaction. A blob whose id the session has
        already is left as it is, and counts as belonging to this append. A caller that does not
        await its appends must bound what it has in flight: the queue to the writer is bounded,
        the line before it is not.

        Raises:
            SequenceConflict: the log is not at `expected_sequence`.
            SessionNotFound: there is no such session.
        """

    @abstractmethod
    def delete_session(self, session_id: str) -> asyncio.Future[int]:
        """Deletes a session with all it has; its readers get `SessionDeleted`.

        Space is given back bit by bit afterwards. Gives the sequence it ended at.

        Raises:
            SessionNotFound: there is no such session.
        """

    @abstractmethod
    def compact(
        self, session_id: str, before_sequence: int, *, uid: str = ""
    ) -> asyncio.Future[int]:
        """Drops events before `before_sequence`, and the blobs that were appended with them.

        The value of a blob's `blob_value_key` goes with the blob.

        Only whole stored chunks go, so some events before it may stay. Gives the sequence of the
        oldest event kept.

        Raises:
            SessionNotFound: there is no such session, or it is not the one of `uid`.
        """

    @abstractmethod
    async def first_within(self, session_id: str, size_bytes: int) -> int:
        """Gives where a session's newest stored chunks that fit in `size_bytes` begin.

        To compact before it leaves at most so many bytes of events and raws. The sequence is
        `latest` + 1 where not even the newest chunk fits, `earliest` where all do.

        Raises:
            SessionNotFound: there is no such session.
            LogUnavailable: the storage failed.
        """

    @abstractmethod
    async def open_reader(self, session_id: str) -> Reader:
        """Opens a reader on a session.

        Raises:
            SessionNotFound: there is no such session.
            LogUnavailable: the storage failed.
        """

    @abstractmethod
    async def info(self, session_id: str) -> SessionInfo:
        """Gives uid and sequence bounds of a session.

        Raises:
            SessionNotFound: there is no such session.
        """

    @abstractmethod
    async def get(self, session_id: str, key: str) -> bytes | None:
        """Gives a value of the session's state, None where the key is not set.

        Raises:
            SessionNotFound: there is no such session.
        """

    @abstractmethod
    async def get_prefix(self, session_id: str, prefix: str) -> dict[str, bytes]:
        """Gives all values whose key begins with `prefix`, in the order of the keys.

        Raises:
            SessionNotFound: there is no such session.
        """

    @abstractmethod
    async def having(self, prefix: str) -> set[str]:
        """Gives the ids of all sessions with a key that begins with `prefix` (not empty).

        Raises:
            LogUnavailable: the storage failed.
        """

    @abstractmethod
    async def list_sessions(
        self, *, after: str = "", limit: int = 100, key: str | None = None
    ) -> SessionPage:
        """Lists sessions in order of creation, from the cursor of the page before.

        Pages stay right when sessions come and go in between. With `key`, each entry carries
        what that key holds.

        Raises:
            InvalidPageCursor: `after` is not a cursor of this log.
        """

    @abstractmethod
    def scan(self, key: str) -> AsyncIterator[SessionInfo]:
        """Gives all sessions that have `key` set, with its value, in order of creation."""

    @abstractmethod
    async def blob_size(self, session_id: str, blob_id: str) -> int:
        """Gives the size of a blob in bytes.

        Raises:
            SessionNotFound: there is no such session.
            BlobNotFound: the session has no such blob.
        """

    @abstractmethod
    def read_blob(
        self, session_id: str, blob_id: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[bytes]:
        """Gives a blob in pieces of at most 256 KiB, from `offset`, at most `limit` bytes.

        Raises:
            SessionNotFound: there is no such session.
            BlobNotFound: the session has no such blob, or it went while it was read.
            BlobOffsetOutOfRange: `offset` is negative or beyond the end.
        """

    @abstractmethod
    async def close(self) -> None:
        """Writes what was asked for, ends all readers, lets go of the storage; twice is fine."""
