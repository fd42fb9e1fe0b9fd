import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from agentstreamd.events.handover import Handover


class Timers:
    """Stands in for the loop: keeps the one timer that is armed."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.due: Callable[[], None] | None = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert self.due is None
        self.delay, self.due = delay, callback
        return None

    def fire(self) -> None:
        due, self.due = self.due, None
        assert due is not None
        due()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def handover(timers: Timers) -> Handover:
    return Handover(cast(asyncio.AbstractEventLoop, timers))


def test_threads_without_progress_get_a_turn(
    handover: Handover, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float | None] = []

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        turns.append(timeout)
        return True

    monkeypatch.setattr(threading.Event, "wait", wait)
    handover.begin()
    timers.fire()
    assert len(turns) == 1
    handover.progress()
    timers.fire()
    assert len(turns) == 1  # they got on by themselves
    timers.fire()
    assert len(turns) == 2


def test_turns_that_bring_nothing_become_rare_until_one_does(
    handover: Handover, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: False)
    handover.begin()
    delays = []
    for _ in range(10):
        delays.append(timers.delay)
        timers.fire()
    assert delays == sorted(delays)
    assert delays[-1] == delays[-2] > delays[0]
    handover.progress()
    timers.fire()
    assert timers.delay == delays[0]


def test_nothing_is_watched_while_no_work_is_out(handover: Handover, timers: Timers) -> None:
    handover.begin()
    handover.end()
    timers.fire()
    assert timers.due is None
    handover.begin()
    assert timers.due is not None
