"""What comes for a session, in order, on its way through the normalizer into the stream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from agentstreamd.adapters.base import AgentExit
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.model import Draft

_log = logging.getLogger(__name__)

Item = bytes | AgentExit | Callable[[], list[Draft]]
"""An event, the end of the server, or something else that makes drafts."""

_WAITING = 1024
_AT_ONCE = 256


class Inbox:
    """A bounded queue and the task that empties it.

    `publish` gets the drafts and waits while the stream can't take more, `on_exit` the end of the
    server after all that it said was published.
    """

    def __init__(
        self,
        normalizer: OpenCodeNormalizer,
        publish: Callable[[Sequence[Draft]], Awaitable[None]],
        on_exit: Callable[[AgentExit], None],
    ) -> None:
        self._normalizer = normalizer
        self._publish = publish
        self._on_exit = on_exit
        self._queue: asyncio.Queue[Item] = asyncio.Queue(_WAITING)
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: Item) -> None:
        """Add something; waits while too much is waiting."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await self._queue.put(item)

    async def emptied(self, seconds: float) -> None:
        """Wait until all is published, for so long at most."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            _log.error("the last events of an OpenCode session were not published in time")

    def close(self) -> None:
        """Stop; what is left is dropped."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._queue = asyncio.Queue(_WAITING)

    async def _run(self) -> None:
        while True:
            taken = [await self._queue.get()]
            while len(taken) < _AT_ONCE and not self._queue.empty():
                taken.append(self._queue.get_nowait())
            try:
                await self._handle(taken)
            except Exception:
                _log.exception("events of an OpenCode session could not be published")
            finally:
                for _ in taken:
                    self._queue.task_done()

    async def _handle(self, items: Sequence[Item]) -> None:
        drafts: list[Draft] = []
        for item in items:
            if isinstance(item, bytes):
                drafts += self._normalizer.feed(item)
            elif isinstance(item, AgentExit):
                drafts += self._normalizer.finish()
                await self._publish(drafts)
                drafts = []
                self._on_exit(item)
            else:
                drafts += item()
        await self._publish(drafts)
