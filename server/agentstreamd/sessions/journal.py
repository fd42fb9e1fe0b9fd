"""Writing one session's stream into the log: in order, once, and again while the log is out."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentstreamd.events.errors import LogUnavailable, SessionNotFound
from agentstreamd.events.log import EventLog, Record
from agentstreamd.sessions.errors import SessionError, log_unavailable, session_deleted

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""How long to wait before events that the log did not take are offered to it again."""


@dataclass(slots=True)
class _Batch:
    records: list[Record] = field(default_factory=list)
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    blobs: list[tuple[str, bytes]] = field(default_factory=list)
    size_bytes: int = 0
    ticket: int = 0


@dataclass(slots=True)
class _Waiter:
    ticket: int
    patient: bool
    future: asyncio.Future[None]


class Journal:
    """The way of one session's events into the log.

    What is written while an append is under way goes into the next one together: the commits of a
    session are as large as the load makes them. An append that fails is repeated until the log
    takes it: nothing that was written is lost while the daemon lives, and no order changes.

    Attributes:
        failure: Why the log does not take events now; None when it does.
        broken: The log will never take them: the session must be loaded anew.
        written: Ticket of the last write.
    """

    def __init__(
        self,
        log: EventLog,
        session_id: str,
        *,
        sequence: int,
        backlog_bytes: int,
        create_uid: str = "",
    ) -> None:
        """Go on after `sequence`. With `create_uid` the session is not in the log yet: what is
        written is held until `create`, and then makes it, all at once.
        """
        self.failure: LogUnavailable | None = None
        self.broken = False
        self._log = log
        self._session_id = session_id
        self._sequence = sequence
        self._backlog_bytes = backlog_bytes
        self._create_uid = create_uid
        self._held = bool(create_uid)
        self._pending = _Batch()
        self._in_flight_bytes = 0
        self.written = 0
        self._committed = 0
        self._closing = False
        self._refusal: SessionError | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[_Waiter] = []
        self._room: asyncio.Event | None = None

    def create(self) -> None:
        """Put the session into the log, with all that was written so far."""
        self._held = False
        self._start()

    def write(
        self,
        records: Sequence[Record],
        *,
        puts: Mapping[str, bytes] | None = None,
        deletes: Iterable[str] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
    ) -> int:
        """Take events and state for the log; returns a ticket to wait for.

        After `close` nothing is taken; whoever waits for the ticket learns why.
        """
        self.written += 1
        if self._refusal is not None:
            return self.written
        batch = self._pending
        batch.records.extend(records)
        size = sum(len(record.event) + len(record.raw) for record in records)
        for key in deletes:
            batch.puts.pop(key, None)
            batch.deletes.add(key)
        if puts:
            batch.deletes.difference_update(puts)
            batch.puts.update(puts)
            size += sum(map(len, puts.values()))
        for blob in blobs:
            batch.blobs.append(blob)
            size += len(blob[1])
        batch.size_bytes += size
        batch.ticket = self.written
        if not self._held:
            self._start()
            if batch.size_bytes + self._in_flight_bytes > self._backlog_bytes and not self._room:
                self._room = asyncio.Event()
        return self.written

    async def room(self) -> None:
        """Wait until the log has caught up far enough."""
        if self._room is not None:
            await self._room.wait()

    async def committed(self, ticket: int) -> None:
        """Wait until what `ticket` was given for is durable.

        Raises:
            SessionError: LOG_UNAVAILABLE when the log refuses it now; it is offered again
                nevertheless. Otherwise what `close` was given.
        """
        await self._wait(ticket, patient=False)

    async def settled(self, ticket: int) -> None:
        """Wait until what `ticket` was given for is durable, however long the log is out.

        Raises what `close` was given when that comes before.
        """
        await self._wait(ticket, patient=True)

    async def close(self, refusal: SessionError) -> None:
        """Wait for what is under way; what the log does not take now is left.

        Whoever waits for what was left, or writes from now on, gets `refusal`.
        """
        self._closing = True
        task = self._task
        if task is not None:
            if self.failure is not None:
                task.cancel()
            await asyncio.wait([task])
        self._refuse_all(refusal)

    async def _wait(self, ticket: int, *, patient: bool) -> None:
        if self._committed >= ticket:
            return
        if self._refusal is not None:
            raise self._refusal
        if self.failure is not None and not patient:
            raise log_unavailable(self.failure.detail)
        waiter = _Waiter(ticket, patient, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        await waiter.future

    def _start(self) -> None:
        if self._task is None and self._pending.ticket > self._committed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending.ticket > self._committed:
                batch, self._pending = self._pending, _Batch()
                self._in_flight_bytes = batch.size_bytes
                if not await self._append(batch):
                    return
                self._committed = batch.ticket
                self._in_flight_bytes = 0
                if self._pending.size_bytes <= self._backlog_bytes:
                    self._make_room()
                self._wake()
        finally:
            self._task = None

    async def _append(self, batch: _Batch) -> bool:
        """Have the log take `batch`; False when it never will."""
        while True:
            try:
                await self._store(batch)
            except LogUnavailable as error:
                self.failure = error
                self._wake()
                if self._closing:
                    return False
                await asyncio.sleep(RETRY_SECONDS)
            except SessionNotFound:
                self._refuse_all(session_deleted(self._session_id))
                return False
            except Exception:
                # Another writer, or a fault of ours: to go on would break the stream's order.
                logger.exception("session %s can't be written any more", self._session_id)
                self.broken = True
                self._refuse_all(log_unavailable("this session can't be written any more"))
                return False
            else:
                self.failure = None
                return True

    async def _store(self, batch: _Batch) -> None:
        if self._create_uid:
            self._sequence = await self._log.create_session(
                self._session_id,
                self._create_uid,
                puts=batch.puts,
                records=batch.records,
                blobs=batch.blobs,
            )
            self._create_uid = ""
            return
        self._sequence = await self._log.append(
            self._session_id,
            self._sequence,
            batch.records,
            puts=batch.puts,
            deletes=batch.deletes,
            blobs=batch.blobs,
        )

    def _wake(self) -> None:
        """Tell those whose write is durable, and, while the log is out, those who won't wait."""
        waiting = []
        for waiter in self._waiters:
            if waiter.future.done():
                continue
            if waiter.ticket <= self._committed:
                waiter.future.set_result(None)
            elif self.failure is not None and not waiter.patient:
                waiter.future.set_exception(log_unavailable(self.failure.detail))
            else:
                waiting.append(waiter)
        self._waiters = waiting

    def _refuse_all(self, refusal: SessionError) -> None:
        if self._refusal is None:
            self._refusal = refusal
        self._pending = _Batch(ticket=self._committed)
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(self._refusal)
        self._waiters = []
        self._make_room()

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
