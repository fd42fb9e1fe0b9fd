"""The driver of a session: made when it is first needed, used by one at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentstreamd.adapters.base import Driver


class DriverSeat:
    """Holds a session's driver.

    Attributes:
        closing: The session ends or unloads: nothing new is handed to the driver.
    """

    def __init__(self, make: Callable[[], Driver]) -> None:
        """Hold the driver that `make` makes."""
        self.closing = False
        self._lock = asyncio.Lock()
        self._make = make
        self._driver: Driver | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def driver(self) -> Driver:
        """The driver; made if there was none yet."""
        if self._driver is None:
            self._driver = self._make()
        return self._driver

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Have the driver alone, to send, steer or update; a stop that is under way comes first."""
        async with self._lock:
            while self._stopping is not None:
                await asyncio.wait([self._stopping])
            yield

    async def close(self, *, forget: bool = False) -> None:
        """Stop the agent, if there was a driver at all. Raises what the driver raises.

        Does not wait for who has the driver: a start that hangs has it, and is what must be ended.
        """
        while self._stopping is not None:
            await asyncio.wait([self._stopping])
        if self._driver is None:
            return
        # A task: a caller that goes away must not leave the agent half stopped.
        stopping = asyncio.get_running_loop().create_task(self._driver.close(forget=forget))
        self._stopping = stopping
        stopping.add_done_callback(self._stopped)
        await asyncio.shield(stopping)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping = None
        if not task.cancelled():
            task.exception()  # seen here too, for when nobody awaits it any more
