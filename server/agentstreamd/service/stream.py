"""StreamEvents: a subscriber is a cursor on the log, read at the pace of the connection.

Responses are made of bytes as the log stores them; nothing is done per event. A subscriber holds
at most the one batch that is being written.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentstream.v1 import error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.events.log import Batch, Reader

from .errors import CallError, draining, limit_exceeded
from .ports import Sessions

Write = Callable[[bytes], Awaitable[None]]
"""Hands one serialized response to the transport; returns when it takes the next one."""

BATCH_EVENTS = 512
BATCH_BYTES = 1024 * 1024
"""Bounds of a batch: well below the 4 MiB that clients take by default."""

_BATCH_TAG = b"\x12"  # StreamEventsResponse.batch: field 2, length-delimited
_LAST_SEQUENCE_TAG = b"\x10"  # EventBatch.last_sequence: field 2, varint
_SESSION_ENDED = event_pb2.EVENT_KIND_SESSION_ENDED
_ENDED_ONLY = frozenset({int(_SESSION_ENDED)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How streams behave.

    Attributes:
        progress_interval_seconds: With nothing to send for this long, `progress` is sent.
        max_streams: So many streams may be open at once.
        now_ns: The server's time, in nanoseconds since the epoch.
    """

    progress_interval_seconds: float = 8.0
    max_streams: int = 10_000
    now_ns: Callable[[], int] = time.time_ns


class EventStreams:
    """All open event streams of the server.

    Attributes:
        settings: How they behave.
        delivered: How many events were sent so far, on all of them.
    """

    def __init__(self, sessions: Sessions, settings: StreamSettings) -> None:
        self._sessions = sessions
        self.settings = settings
        self._waiting: set[asyncio.Timeout] = set()
        self.delivered = 0
        self._count = 0
        self._draining = False

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._count

    def drain(self) -> None:
        """End all streams with SERVER_DRAINING, and refuse new ones."""
        self._draining = True
        now = asyncio.get_running_loop().time()
        for scope in tuple(self._waiting):
            scope.reschedule(now)

    def check_draining(self) -> None:
        """Raise SERVER_DRAINING once `drain` was called."""
        if self._draining:
            raise draining()

    async def wait_beyond(self, reader: Reader, sequence: int, until: float) -> None:
        """Wait for an event after `sequence`, the loop's time `until`, or the draining."""
        self.check_draining()
        try:
            async with asyncio.timeout_at(until) as scope:
                self._waiting.add(scope)
                try:
                    await reader.wait_beyond(sequence)
                finally:
                    self._waiting.discard(scope)
        except TimeoutError:
            pass

    async def stream_events(self, request: service_pb2.StreamEventsRequest, write: Write) -> None:
        """Serve one stream; the request is checked already. Returns where the stream ends OK."""
        self.check_draining()
        if self._count >= self.settings.max_streams:
            raise limit_exceeded("max_streams", self.settings.max_streams)
        self._count += 1
        try:
            stream = _Stream(self, request, *await self._open(request), write)
            following = self._sessions.following if request.follow else contextlib.nullcontext
            counted = following(request.session_id)
            del request  # not kept for as long as the stream waits
            with stream.reader, counted:
                await stream.run()
        finally:
            self._count -= 1

    async def _open(
        self, request: service_pb2.StreamEventsRequest
    ) -> tuple[Reader, session_pb2.Session]:
        """A reader, and a snapshot of the same session that is not older than it."""
        while True:
            reader = await self._sessions.log.open_reader(request.session_id)
            try:
                session = await self._sessions.get(request.session_id)
                if session.uid == reader.uid:
                    _check_uid(request, session)
                    return reader, session
            except BaseException:
                reader.close()
                raise
            # Deleted and made anew in between: the new one is what the caller asks for.
            reader.close()


def _check_uid(request: service_pb2.StreamEventsRequest, session: session_pb2.Session) -> None:
    if request.expected_session_uid not in ("", session.uid):
        raise CallError(
            error_pb2.ERROR_REASON_SESSION_REPLACED,
            f"session {request.session_id} is another one than expected: its uid is {session.uid}",
            metadata={"session_id": request.session_id, "session_uid": session.uid},
        )


class _Stream:
    """One open stream. There are thousands that wait: they keep no more than they need for it."""

    __slots__ = (
        "_cursor",
        "_due",
        "_end",
        "_kinds",
        "_loop",
        "_raw",
        "_session",
        "_streams",
        "_told",
        "_write",
        "reader",
    )

    def __init__(
        self,
        streams: EventStreams,
        request: service_pb2.StreamEventsRequest,
        reader: Reader,
        session: session_pb2.Session,
        write: Write,
    ) -> None:
        self._streams = streams
        self.reader = reader
        self._session: session_pb2.Session | None = session
        self._write = write
        self._kinds = frozenset(map(int, request.kinds)) or None
        self._raw = request.include_raw
        self._cursor = request.after_sequence
        self._told = request.after_sequence
        # Where the stream ends OK, once that is known.
        self._end: int | None = None if request.follow else reader.latest
        self._loop = asyncio.get_running_loop()
        self._due = 0.0

    async def run(self) -> None:
        # A read that fails says so before anything is sent.
        batch = await self._read()
        await self._open()
        while True:
            await self._deliver(batch)
            if self._end is not None and self._cursor >= self._end:
                break
            self._streams.check_draining()
            if self._loop.time() >= self._due:
                await self._send_progress()
            del batch  # up to a MiB, else held for as long as nothing happens
            if self._cursor >= self.reader.latest:
                await self._streams.wait_beyond(self.reader, self._cursor, self._due)
            batch = await self._read()
        if self._cursor > self._told:
            await self._send_progress()

    async def _read(self) -> Batch:
        events = BATCH_EVENTS
        if self._end is not None:
            # Not beyond the tail as it was at the call. The read itself checks the cursor.
            events = max(1, min(events, self._end - self._cursor))
        return await self.reader.read(
            self._cursor,
            kinds=self._kinds,
            include_raw=self._raw,
            max_events=events,
            max_bytes=BATCH_BYTES,
        )

    async def _deliver(self, batch: Batch) -> None:
        if batch.last_sequence <= self._cursor:
            return
        self._cursor = batch.last_sequence
        if batch.count:
            await self._send(encode_batch(batch))
            self._streams.delivered += batch.count
            self._told = batch.last_sequence
        if self._cursor >= self.reader.latest and (
            self._kinds is not None or batch.last_kind in _ENDED_ONLY
        ):
            await self._find_end()

    async def _open(self) -> None:
        session, self._session = self._session, None
        assert session is not None
        await self._send(_opened(session))
        await self._find_end_at_opening(session.state == session_pb2.SESSION_STATE_ENDED)

    async def _find_end_at_opening(self, is_over: bool) -> None:
        """Learn of an end that no batch will show: it lies behind the cursor."""
        if self._cursor < self.reader.latest:
            return
        await self._find_end()
        if self._cursor < self.reader.earliest and is_over:
            # Retention took the end too: only the snapshot knows. Else it is not to be trusted
            # with this: a session can be over before its end is in the log.
            self._end = self._cursor

    async def _find_end(self) -> None:
        """Learn whether the event at the cursor, the newest, ends the session."""
        if self._cursor < max(self.reader.earliest, 1):
            return
        last = await self.reader.read(self._cursor - 1, kinds=_ENDED_ONLY, max_events=1)
        if last.count:
            self._end = self._cursor

    async def _send_progress(self) -> None:
        response = service_pb2.StreamEventsResponse()
        response.progress.last_sequence = self._cursor
        response.progress.time.FromNanoseconds(self._streams.settings.now_ns())
        await self._send(response.SerializeToString())
        self._told = self._cursor

    async def _send(self, response: bytes) -> None:
        await self._write(response)
        self._due = self._loop.time() + self._streams.settings.progress_interval_seconds


def _opened(session: session_pb2.Session) -> bytes:
    return service_pb2.StreamEventsResponse(
        opened=service_pb2.StreamOpened(session=session)
    ).SerializeToString()


def encode_batch(batch: Batch) -> bytes:
    """The serialized response that holds the batch; made once for all who get this batch."""
    if batch.response is None:
        tail = _LAST_SEQUENCE_TAG + _varint(batch.last_sequence)
        head = _BATCH_TAG + _varint(batch.size + len(tail))
        batch.response = b"".join((head, *batch.parts, tail))
    return batch.response


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
