from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentstreamd.adapters.mock.adapter import MockAdapter
from agentstreamd.process import ProcessHost
from tests.unit.adapters.mock.harness import Session

NewSession = Callable[..., Session]


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    host = ProcessHost("test-mock")
    yield host
    await host.close()


@pytest.fixture
async def new_session(processes: ProcessHost, tmp_path: Path) -> AsyncIterator[NewSession]:
    """Makes sessions of one adapter, and closes them."""
    adapter = MockAdapter()
    sessions: list[Session] = []

    def make(**settings: Any) -> Session:
        session = Session(adapter, processes, tmp_path, **settings)
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        await session.driver.close()
    await adapter.close()
