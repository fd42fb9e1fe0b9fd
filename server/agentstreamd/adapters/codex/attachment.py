"""One session's place on a server: what the server says of its threads, on its way to the stream.

Each session has a queue and a task of its own: one whose stream is slow, or that is flooded, does
not hold up the others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from agentstreamd.adapters.base import AgentExit
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.native import Message
from agentstreamd.adapters.codex.normalizer import CodexNormalizer, Unsupported
from agentstreamd.model import Draft, Kind, unparsed

_log = logging.getLogger(__name__)

_BATCH = 256
"""Messages that are normalized at once, before other sessions have their turn."""


class Listener:
    """What an attachment tells its driver. A base to derive from."""

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """Drafts for the stream, in order; waits while the stream can't take more."""
        raise NotImplementedError

    def on_unsupported(self, request: Unsupported) -> None:
        """A request of the server must be refused."""
        raise NotImplementedError

    def on_exit(self, exit: AgentExit) -> None:
        """The server is gone, or let go of; all drafts were handed over."""
        raise NotImplementedError


class Attachment:
    """A session on a server, until one of them goes.

    Attributes:
        normalizer: Of what the server says.
        turn_open: A turn runs, or was asked for, as far as the stream knows.
    """

    def __init__(self, normalizer: CodexNormalizer, listener: Listener, limits: Limits) -> None:
        self.normalizer = normalizer
        self.turn_open = False
        self._listener = listener
        self._limits = limits
        self._queue: deque[Message | Draft | AgentExit] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._last: AgentExit | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def thread_id(self) -> str:
        """The session's thread; empty while it is not known."""
        return self.normalizer.threads.root

    @property
    def open(self) -> bool:
        """The server is there."""
        return not self._ended

    # From the server

    def put(self, message: Message) -> None:
        """Queue a message."""
        self._add(message, len(message.line))

    def put_unreadable(self, native: bytes, error: str, size: int) -> None:
        """Queue a line that is none of the protocol."""
        self._add(unparsed(native, error, size_bytes=size), len(native))

    def end(self, exit: AgentExit) -> None:
        """Nothing follows. Idempotent."""
        if not self._ended:
            self._ended = True
            self._last = exit
            self._room.set()
            self._queue.append(exit)
            self._news.set()
            self._wake()

    async def room(self) -> None:
        """Wait until more can be queued."""
        await self._room.wait()

    def _add(self, entry: Message | Draft, size: int) -> None:
        if self._ended:
            return
        self._queue.append(entry)
        self._bytes += size
        if self._bytes > self._limits.backlog_bytes:
            self._room.clear()
        self._news.set()

    # For the driver

    async def turn_change(self) -> None:
        """Wait until something about turns changed, or the server went."""
        changed = self._changed
        await changed.wait()

    async def drained(self) -> None:
        """Wait until all is handed over, after the end; bounded."""
        done, _ = await asyncio.wait({self._task}, timeout=self._limits.drain_seconds)
        if not done:
            _log.error("the last output of thread %s could not be put out in time", self.thread_id)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while True:
                await self._news.wait()
                exit = await self._batch()
                if exit is not None:
                    await self._hand_over(self.normalizer.finish())
                    self._listener.on_exit(exit)
                    return
        except asyncio.CancelledError:
            # The stream takes nothing; whoever waits must hear of the end all the same.
            self._listener.on_exit(self._last or AgentExit(expected=False))
            raise
        except Exception:
            _log.exception("what Codex says of thread %s can't be put out", self.thread_id)
            self._listener.on_exit(
                AgentExit(expected=False, message="The daemon failed to take Codex's output.")
            )
        finally:
            self._ended = True
            self._room.set()
            self._wake()

    async def _batch(self) -> AgentExit | None:
        drafts: list[Draft] = []
        exit = None
        for _ in range(_BATCH):
            if not self._queue:
                self._news.clear()
                break
            entry = self._queue.popleft()
            if isinstance(entry, AgentExit):
                exit = entry
                break
            if isinstance(entry, Draft):
                drafts.append(entry)
                continue
            self._bytes -= len(entry.line)
            drafts += self.normalizer.take(entry)
        if not self._queue:
            self._bytes = 0
        if self._bytes <= self._limits.backlog_bytes:
            self._room.set()
        for request in self.normalizer.take_unsupported():
            self._listener.on_unsupported(request)
        await self._hand_over(drafts)
        return exit

    async def _hand_over(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            if draft.kind is Kind.TURN_STARTED:
                self.turn_open = True
            elif draft.kind is Kind.TURN_ENDED:
                self.turn_open = False
        if drafts:
            await self._listener.on_drafts(drafts)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
