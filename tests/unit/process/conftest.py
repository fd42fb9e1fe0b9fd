import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from agentstreamd.process import ProcessHost


def _event_loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return _event_loops()


@pytest.fixture
async def host(caplog: pytest.LogCaptureFixture) -> AsyncIterator[ProcessHost]:
    host = ProcessHost(f"test-{uuid.uuid4()}")
    await host.start()
    yield host
    await host.close()
    # The event loop logs what fails in its callbacks; nothing else would notice.
    assert [record for record in caplog.get_records("call") if record.name == "asyncio"] == []
