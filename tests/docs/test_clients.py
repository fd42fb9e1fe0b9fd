"""The programs and commands of docs/clients.md, run as they stand there."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, daemon
from tests.support.model_server import DEADLINE

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "clients.md").read_text()
ADDRESS = "127.0.0.1:50051"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path / "data") as made:
        yield made


def blocks(language: str, running: Daemon) -> list[str]:
    """The document's blocks of a language, for a daemon of the test's own."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.M | re.S)
    return [block.replace(ADDRESS, running.target) for block in found]


async def run(*argv: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": f"{ROOT}/.cache/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"},
    )
    async with asyncio.timeout(2 * DEADLINE):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_python_program_works(running: Daemon, tmp_path: Path) -> None:
    [text] = blocks("python", running)
    program = tmp_path / "session.py"
    program.write_text(text)
    output = await run(sys.executable, str(program), cwd=tmp_path)
    assert "Hello." in output
    assert "allowing: make clean" in output


async def test_the_go_program_works(running: Daemon, tmp_path: Path) -> None:
    [text] = blocks("go", running)
    (tmp_path / "main.go").write_text(text)
    module = (ROOT / "tests" / "clients" / "go" / "go.mod").read_text()
    module = module.replace("=> ../../../", f"=> {ROOT}/")
    (tmp_path / "go.mod").write_text(module)
    (tmp_path / "go.sum").write_text((ROOT / "tests/clients/go/go.sum").read_text())
    output = await run("go", "run", ".", cwd=tmp_path)
    assert "Hello." in output
    assert "allowing: make clean" in output


async def test_the_typescript_program_works(running: Daemon) -> None:
    [text] = blocks("ts", running)
    # Where the packages of the workspace are found. What it says is also JavaScript.
    directory = ROOT / "tests" / "clients" / "ts" / "dist"
    program = directory / "document.mjs"
    program.write_text(text)
    output = await run("node", str(program), cwd=directory)
    assert "Hello." in output
    assert "allowing: make clean" in output


async def test_the_commands_work(running: Daemon) -> None:
    curl, buf = blocks("sh", running)
    output = await run("bash", "-euc", curl + buf, cwd=ROOT)
    assert "rpc Respond ( .agentstream.v1.RespondRequest )" in output
    assert '"permission-1-2"' in output
    assert "REQUEST_OUTCOME_ACCEPTED" in output
