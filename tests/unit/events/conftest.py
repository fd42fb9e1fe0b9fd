import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentstreamd.events import EventLogConfig, SqliteEventLog
from tests.unit.events.helpers import Gate, opened


@pytest.fixture
def config(tmp_path: Path) -> EventLogConfig:
    return EventLogConfig(directory=tmp_path / "log")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def log(config: EventLogConfig, gate: Gate) -> AsyncIterator[SqliteEventLog]:
    async with opened(config, gate) as log:
        yield log


@pytest.fixture(autouse=True)
def _no_thread_left_over() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("events-")]
    assert not left
