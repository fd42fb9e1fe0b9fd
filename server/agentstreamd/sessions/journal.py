"""Writing one session's stream into the log: in order, once, and again while the log is out."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentstreamd.events.errors import EventLogError, LogUnavailable, SessionNotFound
from agentstreamd.events.log import EventLog, Record

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


class Journal:
    """The way of one session's events into the log.

    What is written while an append is under way goes into the next one together: the commits of a
    session are as large as the load makes them. An append that fails is repeated until the log
    takes
    it: nothing that was written is lost while the daemon lives, and no order changes.

    Attributes:
        failure: Why the log does not take events now; None when it does.
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
        """Go on after `sequence`. With `create_uid` the first write makes the session."""
        self.failure: LogUnavailable | None = None
        self._log = log
        self._session_id = session_id
        self._sequence = sequence
        self._backlog_bytes = backlog_bytes
        self._create_uid = create_uid
        self._pending = _Batch()
        self._in_flight_bytes = 0
        self._written = 0
        self._committed = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[tuple[int, bool, asyncio.Future[None]]] = []
        self._room = asyncio.Event()
        self._room.set()

    def write(
        self,
        records: Sequence[Record],
        *,
        puts: Mapping[str, bytes] | None = None,
        deletes: Iterable[str] = (),
        blobs: Iterable[tuple[str, bytes]] = (),
    ) -> int:
        """Take events and state for the log; returns a ticket to wait for."""
        batch = self._pending
        batch.records.extend(records)
        for key in deletes:
            batch.puts.pop(key, None)
            batch.deletes.add(key)
        if puts:
            batch.deletes.difference_update(puts)
            batch.puts.update(puts)
        batch.blobs.extend(blobs)
        batch.size_bytes += sum(len(record.event) + len(record.raw) for record in records)
        self._written += 1
        batch.ticket = self._written
        if batch.size_bytes + self._in_flight_bytes > self._backlog_bytes:
            self._room.clear()
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._written

    async def room(self) -> None:
        """Wait until the log has caught up far enough."""
        if not self._room.is_set():
            await self._room.wait()

    async def committed(self, ticket: int) -> None:
        """Wait until what `ticket` was given for is durable.

        Raises `LogUnavailable` when the log refuses it now; it is offered again nevertheless.
        """
        await self._wait(ticket, patient=False)

    async def settled(self, ticket: int) -> None:
        """Wait until what `ticket` was given for is durable, however long the log is out."""
        await self._wait(ticket, patient=True)

    async def close(self) -> None:
        """Wait for what is under way; what the log does not take now is left."""
        self._closed = True
        task = self._task
        if task is not None:
            if self.failure is not None:
                task.cancel()
            await asyncio.wait([task])

    async def _wait(self, ticket: int, *, patient: bool) -> None:
        if self._committed >= ticket:
            return
        if self.failure is not None and not patient:
            raise self.failure
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((ticket, patient, waiter))
        await waiter

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
                    self._room.set()
                self._wake()
        finally:
            self._task = None
            self._room.set()

    async def _append(self, batch: _Batch) -> bool:
        while True:
            try:
                await self._store(batch)
            except LogUnavailable as error:
                self.failure = error
                self._refuse(error)
                if self._closed:
                    return False
                await asyncio.sleep(RETRY_SECONDS)
            except SessionNotFound:
                # Deleted under us: there is nothing left to write to.
                self._closed = True
                return True
            else:
                self.failure = None
                return True

    async def _store(self, batch: _Batch) -> None:
        if self._create_uid:
            self._sequence = await self._log.create_session(
                self._session_id, self._create_uid, puts=batch.puts, records=batch.records
            )
            self._create_uid = ""
            if batch.blobs:
                await self._log.append(self._session_id, self._sequence, [], blobs=batch.blobs)
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
        waiting = []
        for ticket, patient, waiter in self._waiters:
            if waiter.done():
                continue
            if ticket <= self._committed:
                waiter.set_result(None)
            else:
                waiting.append((ticket, patient, waiter))
        self._waiters = waiting

    def _refuse(self, error: EventLogError) -> None:
        waiting: list[tuple[int, bool, asyncio.Future[None]]] = []
        for ticket, patient, waiter in self._waiters:
            if waiter.done():
                continue
            if patient:
                waiting.append((ticket, patient, waiter))
            else:
                waiter.set_exception(error)
        self._waiters = waiting
