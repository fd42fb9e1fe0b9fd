"""Retention: removes what is older, or more, than the settings allow to keep."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from agentstream.v1 import service_pb2, session_pb2
from agentstreamd.events.errors import EventLogError, SessionNotFound
from agentstreamd.events.log import EventLog, Reader, SessionInfo
from agentstreamd.sessions import stored
from agentstreamd.sessions.errors import SessionError

logger = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000
_LOOKS_PER_AGE = 10
_LEAST_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """What is kept; 0 is without a limit.

    Attributes:
        ended_sessions_seconds: An ended session is deleted so long after its end.
        event_age_seconds: Events older than this are removed.
        session_bytes: Bytes of events and raws that a session may keep; the oldest go first.
    """

    ended_sessions_seconds: float = 0.0
    event_age_seconds: float = 0.0
    session_bytes: int = 0

    @property
    def pause_seconds(self) -> float:
        """How long to rest between two passes."""
        ages = [age for age in (self.ended_sessions_seconds, self.event_age_seconds) if age]
        wanted = min(ages, default=_MOST_PAUSE_SECONDS * _LOOKS_PER_AGE) / _LOOKS_PER_AGE
        return min(max(wanted, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return bool(self.ended_sessions_seconds or self.event_age_seconds or self.session_bytes)


class Retention:
    """Looks at all sessions, one after the other, again and again.

    Events go in whole stored chunks, so a little more than the limits may stay. What came after a
    session last was at rest always stays: a turn, an item or a request that is open begins there,
    and a restart reads on from there. So does the last event of an ended session.
    """

    def __init__(
        self,
        log: EventLog,
        delete: Callable[[str, str], Awaitable[None]],
        limits: RetentionLimits,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`delete` takes a session's id and uid; `now_ns` gives Unix nanoseconds."""
        self._log = log
        self._delete = delete
        self._limits = limits
        self._now_ns = now_ns

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While it is entered, passes are made in the background; none without limits."""
        if not self._limits:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            try:
                await self.pass_once()
            except EventLogError as error:
                logger.warning("retention stopped for now: %s", error)
            except Exception:
                logger.exception("retention failed")
            await asyncio.sleep(self._limits.pause_seconds)

    async def pass_once(self) -> None:
        """Look at every session once. Raises EventLogError where the list can't be read."""
        async for info in self._log.scan(stored.SESSION):
            try:
                await self._look_at(info)
            except SessionNotFound:
                continue  # deleted meanwhile
            except (EventLogError, SessionError) as error:
                # One session that can't be read must not keep the others for ever.
                logger.warning("retention left session %s alone: %s", info.session_id, error)

    async def _look_at(self, info: SessionInfo) -> None:
        record = session_pb2.Session.FromString(info.value or b"")
        limits = self._limits
        ended = record.state == session_pb2.SESSION_STATE_ENDED
        if ended and limits.ended_sessions_seconds:
            # The record of an ended session was last written at its end.
            age_ns = self._now_ns() - record.update_time.ToNanoseconds()
            if age_ns > limits.ended_sessions_seconds * _SECOND_NS:
                await self._delete(info.session_id, info.uid)
                return
        rest = record.latest_sequence
        if rest <= info.earliest:
            return
        before = 0
        if limits.session_bytes:
            before = await self._log.first_within(info.session_id, limits.session_bytes)
        if limits.event_age_seconds and before < rest:
            before = max(before, await self._first_young(info, rest))
        before = min(before, rest)
        if before > info.earliest:
            await self._log.compact(info.session_id, before, uid=info.uid)

    async def _first_young(self, info: SessionInfo, end: int) -> int:
        """Sequence of the first event that is not too old; `end` where all before it are."""
        limit_ns = self._now_ns() - int(self._limits.event_age_seconds * _SECOND_NS)
        with await self._log.open_reader(info.session_id) as reader:
            low = reader.earliest
            if low >= end or await _time_ns(reader, low) >= limit_ns:
                return low
            # Times never go back in a stream, so a few looks find the place.
            while low + 1 < end:
                middle = (low + end) // 2
                if await _time_ns(reader, middle) < limit_ns:
                    low = middle
                else:
                    end = middle
            return end


async def _time_ns(reader: Reader, sequence: int) -> int:
    batch = await reader.read(sequence - 1, max_events=1)
    (event,) = service_pb2.EventBatch.FromString(batch.data).events
    return event.time.ToNanoseconds()
