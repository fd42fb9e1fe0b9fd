"""The driver of a session: made when it is first needed, used by one at a time."""

import asyncio
from collections.abc import Callable

from agentstreamd.adapters.base import Driver


class DriverSeat:
    """Holds a session's driver.

    Attributes:
        lock: Held while the driver sends, steers, updates or closes.
        closing: The session ends or unloads: nothing new is handed to the driver.
    """

    def __init__(self, make: Callable[[], Driver]) -> None:
        """Hold the driver that `make` makes."""
        self.lock = asyncio.Lock()
        self.closing = False
        self._make = make
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        """The driver; made if there was none yet."""
        if self._driver is None:
            self._driver = self._make()
        return self._driver

    async def close(self, *, forget: bool = False) -> None:
        """Stop the agent, if there was a driver at all.

        Not under the lock: a start that hangs holds it, and is what has to be ended.
        """
        if self._driver is not None:
            await self._driver.close(forget=forget)
