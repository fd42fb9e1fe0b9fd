"""Ctrl-C: the first stops the turn, the second the program."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Stopper:
    """Counts how often the person wants to stop.

    Attributes:
        pressed: Whether it was wanted at all, since `begin`.
        quit: Set when it was wanted again.
    """

    def __init__(
        self, interrupt: Callable[[], Coroutine[Any, Any, object]], notice: Callable[[str], object]
    ) -> None:
        """`interrupt` stops what is running; `notice` gets a sentence for the person."""
        self.pressed = False
        self.quit = asyncio.Event()
        self._interrupt = interrupt
        self._notice = notice
        self._task: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """Something new is running: the next press is the first again."""
        self.pressed = False

    def press(self) -> None:
        """The person wants to stop."""
        if self.pressed:
            self.quit.set()
            return
        self.pressed = True
        self._notice("Interrupting the turn; Ctrl-C once more to quit.")
        self._task = asyncio.create_task(self._try())

    async def _try(self) -> None:
        try:
            await self._interrupt()
        except Exception as error:
            self._notice(f"The turn could not be interrupted: {error}")

    @contextlib.contextmanager
    def on_signal(self) -> Iterator[None]:
        """Inside, Ctrl-C is a press."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.press)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
