from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted_adapter import Script
from tests.unit.sessions.lab import Lab, laboratory


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def script(lab: Lab) -> Script:
    return lab.script
