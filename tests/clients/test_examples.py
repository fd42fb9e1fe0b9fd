"""The examples: a chat on the terminal in each language, which answers what the agent asks."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT
from tests.support.daemon import Daemon, daemon
from tests.support.model_server import DEADLINE

TYPED = """\
say Hello from the agent.
ask permission command "make"
y
ask question multi "Which colours?" red|green|blue
1,blue
"""
EXAMPLES = {
    "python": (ROOT, (sys.executable, "clients/python/examples/chat.py")),
    "go": (ROOT / "clients" / "go", ("go", "run", "./examples/chat")),
    "ts": (ROOT / "clients" / "ts", ("node", "dist/examples/chat.js")),
}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path / "data") as made:
        yield made


@pytest.mark.parametrize("language", EXAMPLES)
async def test_the_chat_answers_what_the_agent_asks(
    running: Daemon, language: str, tmp_path: Path
) -> None:
    directory, argv = EXAMPLES[language]
    if not os.environ.get("CI") and shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    flags = (f"--address={running.target}", "--agent=mock", f"--dir={tmp_path}")
    process = await asyncio.create_subprocess_exec(
        *argv,
        *flags,
        cwd=directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(2 * DEADLINE):
        output, _ = await process.communicate(TYPED.encode())
    text = output.decode()
    assert process.returncode == 0, text
    assert "Hello from the agent." in text
    assert "? allow Bash make" in text
    assert "[Bash " in text, "the command ran, since it was accepted"
    assert "? Which colours?" in text
    assert "red" in text
    assert text.rstrip().endswith(">")
