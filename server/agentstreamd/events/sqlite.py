"""The event log on SQLite: one writer thread, a few reader threads, the newest events in memory."""

import asyncio
import queue
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, Self, TypeVar

from . import queries
from .checkpoints import Checkpointer
from .config import EventLogConfig
from .database import Database
from .errors import (
    BlobNotFound,
    BlobOffsetOutOfRange,
    InvalidPageCursor,
    LogUnavailable,
    Reason,
    unavailable,
)
from .frames import build_chunks
from .handover import Handover
from .jobs import AppendJob, CompactJob, CreateJob, DeleteJob, Job, Outcome
from .live import LiveSessions, Session
from .log import EventLog, Record, SessionInfo, SessionPage
from .pages import PageCache
from .reader import LogReader
from .writer import Writer

_P = ParamSpec("_P")
_T = TypeVar("_T")

_JOB_BYTES = 200
_RECORD_BYTES = 16
_SCAN_PAGE = 500
_CURSOR = "s"


class SqliteEventLog(EventLog):
    """See `EventLog`. Made by `open`, on the event loop that it is used on."""

    def __init__(
        self, config: EventLogConfig, on_append: Callable[[float], None] | None = None
    ) -> None:
        self._config = config
        self._on_append = on_append
        self._loop = asyncio.get_running_loop()
        self._live = LiveSessions(config.tail_session_bytes, config.tail_total_bytes)
        self._pages = PageCache(config.page_cache_bytes)
        self._handover = Handover(self._loop)
        self._queued_bytes = 0
        self._line: deque[Job] = deque()  # jobs for which the queue has no room yet
        self._epoch = 0
        self._closed = asyncio.Event()
        self._finished = self._loop.create_future()
        self._database = Database(config)
        self._pool = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="events-reader")
        self._connections: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._writer: Writer
        self._checkpointer: Checkpointer
        self._writer_connection: sqlite3.Connection
        self._checkpoint_connection: sqlite3.Connection

    @classmethod
    async def open(
        cls,
        config: EventLogConfig,
        *,
        before_commit: Callable[[], None] | None = None,
        on_append: Callable[[float], None] | None = None,
    ) -> Self:
        """Opens the log, and makes it where it is missing.

        `before_commit` is for tests: called in the writer thread before each commit, to slow it
        down or make it fail. `on_append` is told of each append that became durable, and how many
        seconds that took.

        Raises:
            DataDirInUse: somebody else has the directory open.
            SchemaTooNew: a newer program wrote the log.
            LogUnavailable: it can't be read or written.
        """
        log = cls(config, on_append)
        try:
            await log._loop.run_in_executor(log._pool, log._connect, before_commit)
        except BaseException as error:
            log._pool.shutdown()  # its one thread has just ended its work
            raise unavailable(error) or error from error
        log._checkpointer.start()
        log._writer.start()
        log._drop_idle()
        return log

    @property
    def queued_bytes(self) -> int:
        """Bytes handed to the writer and not yet durable; bounded by `queue_bytes`."""
        return self._queued_bytes

    @property
    def sessions_in_memory(self) -> int:
        """Sessions with readers or with events appended lately."""
        return len(self._live)

    def create_session(
        self,
        session_id: str,
        uid: str,
        *,
        puts: Mapping[str, bytes] | None = None,
        records: Sequence[Record] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
    ) -> asyncio.Future[int]:
        """Creates a session; see `EventLog.create_session`."""
        puts = dict(puts or {})
        chunks = build_chunks(1, records, self._config.chunk_bytes)
        job = CreateJob(
            session_id=session_id,
            future=self._loop.create_future(),
            uid=uid,
            expected=0,
            chunks=chunks,
            puts=puts,
            blobs=tuple(blobs),
        )
        return self._submit(job, _size(job))

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
        """Appends events; see `EventLog.append`."""
        job = AppendJob(
            session_id=session_id,
            future=self._loop.create_future(),
            expected=expected_sequence,
            chunks=build_chunks(expected_sequence + 1, records, self._config.chunk_bytes),
            puts=dict(puts) if puts else {},
            deletes=tuple(deletes),
            blobs=tuple(blobs),
        )
        return self._submit(job, _size(job))

    def delete_session(self, session_id: str) -> asyncio.Future[int]:
        """Deletes a session; see `EventLog.delete_session`."""
        return self._submit(DeleteJob(session_id=session_id, future=self._loop.create_future()))

    def compact(
        self, session_id: str, before_sequence: int, *, uid: str = ""
    ) -> asyncio.Future[int]:
        """Drops old events; see `EventLog.compact`."""
        return self._submit(
            CompactJob(
                session_id=session_id,
                future=self._loop.create_future(),
                before=before_sequence,
                uid=uid,
            )
        )

    async def first_within(self, session_id: str, size_bytes: int) -> int:
        """Gives where the newest chunks that fit begin; see `EventLog.first_within`."""
        return await self._read(queries.first_within, session_id, size_bytes)

    async def open_reader(self, session_id: str) -> LogReader:
        """Opens a reader; see `EventLog.open_reader`."""
        session = await self._session(session_id)
        session.readers += 1
        return LogReader(session, self._live, self._pages, self._load, self._closed)

    async def info(self, session_id: str) -> SessionInfo:
        """Gives a session's uid and bounds; see `EventLog.info`."""
        session = self._live.get(session_id)
        if session is None:
            session = await self._read(queries.load_session, session_id)
        return SessionInfo(session_id, session.uid, session.earliest, session.latest)

    async def get(self, session_id: str, key: str) -> bytes | None:
        """Gives a value; see `EventLog.get`."""
        return await self._read(queries.get_value, session_id, key)

    async def get_prefix(self, session_id: str, prefix: str) -> dict[str, bytes]:
        """Gives values by prefix; see `EventLog.get_prefix`."""
        return await self._read(queries.get_values, session_id, prefix)

    async def having(self, prefix: str) -> set[str]:
        """Gives sessions by a prefix of keys; see `EventLog.having`."""
        return await self._read(queries.having, prefix)

    async def list_sessions(
        self, *, after: str = "", limit: int = 100, key: str | None = None
    ) -> SessionPage:
        """Lists sessions; see `EventLog.list_sessions`."""
        if limit < 1:
            raise ValueError(f"a page of {limit} sessions")
        rows = await self._read(queries.list_sessions, _parse_cursor(after), limit + 1, key)
        more = len(rows) > limit
        cursor = f"{_CURSOR}{rows[limit - 1][0]:x}" if more else ""
        return SessionPage([info for _, info in rows[:limit]], cursor)

    async def scan(self, key: str) -> AsyncIterator[SessionInfo]:
        """Gives all sessions with a key; see `EventLog.scan`."""
        cursor, more = "", True
        while more:
            page = await self.list_sessions(after=cursor, limit=_SCAN_PAGE, key=key)
            for info in page.sessions:
                if info.value is not None:
                    yield info
            cursor, more = page.next_cursor, bool(page.next_cursor)

    async def blob_size(self, session_id: str, blob_id: str) -> int:
        """Gives a blob's size; see `EventLog.blob_size`."""
        _, size = await self._read(queries.find_blob, session_id, blob_id)
        return size

    async def read_blob(
        self, session_id: str, blob_id: str, *, offset: int = 0, limit: int | None = None
    ) -> AsyncIterator[bytes]:
        """Gives a blob in pieces; see `EventLog.read_blob`."""
        key, size = await self._read(queries.find_blob, session_id, blob_id)
        if not 0 <= offset <= size:
            raise BlobOffsetOutOfRange(offset, size)
        end = size if limit is None else min(size, offset + limit)
        while offset < end:
            piece = await self._read(queries.blob_piece, key, offset)
            if not piece:
                raise BlobNotFound(session_id, blob_id)
            yield piece[: end - offset]
            offset += len(piece)

    async def close(self) -> None:
        """Writes what was asked for and ends; see `EventLog.close`."""
        if not self._closed.is_set():
            while self._line:  # what waits for room was asked for, too
                self._enqueue(self._line.popleft())
            self._closed.set()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._live.close()
            self._writer.stop()
        await asyncio.shield(self._finished)
        self._writer.join()

    def _connect(self, before_commit: Callable[[], None] | None) -> None:
        self._database.open()
        opened: list[sqlite3.Connection] = []
        try:
            for _ in range(2 + self._config.reader_threads):
                opened.append(self._database.connect())
            self._writer_connection, self._checkpoint_connection, *readers = opened
            self._checkpointer = Checkpointer(
                self._checkpoint_connection, self._writer_connection, self._config
            )
            self._writer = Writer(
                self._writer_connection,
                self._checkpointer,
                self._config,
                self._deliver,
                self._disconnect,
                before_commit,
            )
        except BaseException:
            for connection in opened:
                connection.close()
            self._database.close()
            raise
        for connection in readers:
            connection.execute("PRAGMA query_only = ON")
            self._connections.put(connection)

    def _disconnect(self) -> None:
        """Called by the writer thread, last."""
        try:
            self._pool.shutdown()
            self._checkpointer.stop()
            while not self._connections.empty():
                self._connections.get().close()
            self._checkpoint_connection.close()
            self._writer_connection.close()  # as the last one, checkpoints what is left
        finally:
            self._database.close()
            self._call(self._finish)

    def _finish(self) -> None:
        # Also reached when the writer died of what nobody thought of.
        self._closed.set()
        self._live.close()
        self._handover.close()
        for job in (*self._writer.abandoned(), *self._line):
            if not job.future.done():
                job.future.set_exception(LogUnavailable(Reason.CLOSED, "the log was closed"))
        self._line.clear()
        if not self._finished.done():
            self._finished.set_result(None)

    def _deliver(self, outcome: Outcome) -> None:
        """Called by the writer thread."""
        self._call(self._settle, outcome)
        self._handover.progress()

    def _call(self, function: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        # RuntimeError: the loop was closed without closing the log; nobody is left to be told.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def _submit(self, job: Job, size: int = 0) -> asyncio.Future[int]:
        if self._closed.is_set():
            job.future.set_exception(LogUnavailable(Reason.CLOSED, "the log was closed"))
            return job.future
        job.size = size + _JOB_BYTES
        job.epoch = self._epoch
        job.asked = self._loop.time()
        self._line.append(job)
        self._admit()
        return job.future

    def _admit(self) -> None:
        limit = self._config.queue_bytes
        while self._line and (
            not self._queued_bytes or self._queued_bytes + self._line[0].size <= limit
        ):
            self._enqueue(self._line.popleft())

    def _enqueue(self, job: Job) -> None:
        self._queued_bytes += job.size
        self._writer.submit(job)
        self._handover.begin()

    def _settle(self, outcome: Outcome) -> None:
        self._epoch = outcome.epoch
        now = self._loop.time()
        if not self._closed.is_set():
            for change in outcome.changes:
                self._live.apply(change, now)
        for job in outcome.jobs:
            self._queued_bytes -= job.size
            self._handover.end()
            if job.future.done():  # its awaiter was cancelled
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
                if self._on_append is not None and isinstance(job, AppendJob):
                    self._on_append(now - job.asked)
        self._admit()

    async def _session(self, session_id: str) -> Session:
        while (session := self._live.get(session_id)) is None:
            departures = self._live.departures
            loaded = await self._read(queries.load_session, session_id)
            if self._live.departures == departures and session_id not in self._live:
                self._live.add(loaded)
        return session

    async def _load(
        self, session: Session, after: int, mask: int | None, with_raws: bool
    ) -> queries.Loaded:
        return await self._read(
            queries.load_chunks,
            session.key,
            after,
            session.latest,
            mask,
            with_raws,
            self._config.read_bytes,
            self._config.chunk_bytes,
        )

    async def _read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        if self._closed.is_set():
            raise LogUnavailable(Reason.CLOSED, "the log was closed")
        self._handover.begin()
        try:
            return await self._loop.run_in_executor(
                self._pool, lambda: self._with_connection(query, *args, **kwargs)
            )
        except (OSError, sqlite3.Error) as error:
            raise unavailable(error) or error from error
        finally:
            self._handover.end()

    def _with_connection(
        self,
        query: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        connection = self._connections.get()  # there are as many as threads
        try:
            return query(connection, *args, **kwargs)
        finally:
            self._connections.put(connection)
            self._handover.progress()

    def _drop_idle(self) -> None:
        idle = self._config.idle_seconds
        self._live.drop_idle(self._loop.time() - idle)
        self._idle_timer = self._loop.call_later(idle / 2, self._drop_idle)


def _size(job: AppendJob) -> int:
    return (
        sum(chunk.stored_bytes + _RECORD_BYTES * len(chunk.tags) for chunk in job.chunks)
        + sum(map(len, job.puts.values()))
        + sum(len(data) for _, data in job.blobs)
    )


def _parse_cursor(cursor: str) -> int:
    if not cursor:
        return 0
    digits = cursor.removeprefix(_CURSOR)
    if digits == cursor or not 0 < len(digits) <= 12 or set(digits) - set("0123456789abcdef"):
        raise InvalidPageCursor(f"{cursor!r} is not a page cursor of this log")
    return int(digits, 16)
