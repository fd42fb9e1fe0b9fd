"""The command line against a real daemon and the mock agent, through pipes and a terminal."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from agentstream.v1 import event_pb2
from tests.support.daemon import Daemon, daemon

PAYLOADS = {
    field.json_name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["payload"].fields
}
AGENTSTREAM = (sys.executable, "-m", "agentstream.cli.main")


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def kinds(self) -> list[str]:
        """The payloads of the events it wrote."""
        return [next(key for key in event if key in PAYLOADS) for event in self.json]


class Cli:
    """Runs `agentstream`, with the daemon's address in its environment."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        self.directory = directory
        self.environment = {
            **{name: value for name, value in os.environ.items() if "AGENTSTREAM" not in name},
            "AGENTSTREAM_ADDRESS": address,
            "AGENTSTREAM_AGENT": "mock",
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }

    async def __call__(self, *arguments: str, stdin: str = "") -> Done:
        process = await self.start(*arguments)
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*AGENTSTREAM, *arguments),
            cwd=self.directory,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    def terminal(self, *arguments: str, shell: bool = False) -> "pexpect.spawn[str]":
        """The command, or a line for the shell, on a terminal of its own."""
        command = ("sh", "-c", *arguments) if shell else (*AGENTSTREAM, *arguments)
        program, *rest = command
        return pexpect.spawn(
            program,
            rest,
            cwd=str(self.directory),
            env=self.environment,
            dimensions=(50, 120),
            encoding="utf-8",
            timeout=20,
        )


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path / "data", "--interrupt-grace-seconds=3") as made:
        yield made


@pytest.fixture
def cli(running: Daemon, tmp_path: Path) -> Cli:
    work = tmp_path / "work"
    work.mkdir()
    return Cli(running.target, work)
