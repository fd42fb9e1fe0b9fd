"""The programs that carry out the scenarios, one for each client, and what they talk to."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_server import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
GO_PROGRAM = ROOT / ".cache" / "bin" / "conform"
TS_PROGRAM = ROOT / "tests" / "clients" / "ts" / "dist" / "conform.js"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that reads a plan and writes an outcome a line.

    Attributes:
        name: The client that it uses.
        argv: Its command line.
        resumes: The client follows a stream across cuts; else it is the generated stub alone.
    """

    name: str
    argv: tuple[str, ...]
    resumes: bool = True

    async def run(
        self, plan: Json, on_opened: Callable[[], object] = lambda: None
    ) -> dict[tuple[str, int], Json]:
        """Carry out a plan; the result of each step, by scenario and number.

        `on_opened` is called when a stream is open whose step announces that.
        """
        process = await asyncio.create_subprocess_exec(
            *self.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 30,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "generated" / "betterproto")},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(plan).encode())
        process.stdin.close()
        results: dict[tuple[str, int], Json] = {}
        try:
            async with asyncio.timeout(2 * DEADLINE):
                async for line in process.stdout:
                    said = json.loads(line)
                    if "announce" in said:
                        on_opened()
                    else:
                        results[said["scenario"], said["step"]] = said["result"]
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{self.name}: {errors.decode()[-4000:]}"
        return results


def built(path: Path, needs: str) -> str:
    """The path of a program that `make clients` builds; fails or skips the test without it."""
    if path.exists():
        return str(path)
    if os.environ.get("CI") or shutil.which(needs):
        pytest.fail(f"{path.relative_to(ROOT)} is missing: run make clients", pytrace=False)
    pytest.skip(f"{needs} is not installed")


def python(kind: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.clients.programs.conform", kind)


NAMES = ("grpcio", "grpcio-aio", "betterproto", "go", "connect-node", "grpc-js")


def program(name: str) -> Program:
    """The program of a client."""
    match name:
        case "go":
            return Program(name, (built(GO_PROGRAM, "go"),))
        case "connect-node" | "grpc-js":
            return Program(name, ("node", built(TS_PROGRAM, "node"), name))
        case _:
            return Program(name, python(name), resumes=name != "betterproto")


@pytest.fixture(params=NAMES)
def client(request: pytest.FixtureRequest) -> Program:
    """Each client."""
    return program(request.param)
