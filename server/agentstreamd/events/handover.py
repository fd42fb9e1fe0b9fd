"""Gives worker threads a turn when the event loop never rests.

A thread that wants the interpreter lock asks for it only if the holder kept it for a whole switch
interval. An event loop that is always busy lets go of it for a moment at each poll and takes it
back before the thread is awake, so the thread may wait for seconds (seen: no commit in three).
"""

import asyncio
import threading

_PATIENCE = 0.001  # seconds without progress before threads are given a turn
_TURN = 0.002  # seconds that a turn lasts at most; the loop stands still
_MAX_PATIENCE = 0.064


class Handover:
    """Watches work given to threads; `begin` and `end` on the event loop, `progress` in a thread.

    Where a turn brings nothing the threads wait for the disk and not for us: turns then become
    rare, and the loop goes on.
    """

    __slots__ = ("_loop", "_outstanding", "_patience", "_progress", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outstanding = 0
        self._patience = _PATIENCE
        self._progress = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Work was given to a thread."""
        self._outstanding += 1
        if self._timer is None:
            self._arm()

    def end(self) -> None:
        """The outcome of some work has reached the loop."""
        self._outstanding -= 1

    def progress(self) -> None:
        """A thread has done some work."""
        self._progress.set()

    def close(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._progress.clear()
        self._timer = self._loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._outstanding:
            self._patience = _PATIENCE
        elif self._progress.is_set() or self._progress.wait(_TURN):
            self._patience = _PATIENCE
            self._arm()
        else:
            self._patience = min(2 * self._patience, _MAX_PATIENCE)
            self._arm()
