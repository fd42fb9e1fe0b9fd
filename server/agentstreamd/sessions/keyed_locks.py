"""Locks by name that exist only while somebody holds or wants them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLocks:
    """One lock for each name."""

    def __init__(self) -> None:
        """Nothing is locked."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        """How many names are held or wanted."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of `name`; waits for those who came before."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            # Only the last one takes the lock away: whoever comes next must meet those who wait.
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
