"""`agentstream doctor` on agents that are logged in, logged out, and do not say."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.daemon import daemon

VERSION = "2.1.197 (Claude Code)"


def stand_in(path: Path, status: str) -> Path:
    """A program that answers what the daemon asks Claude Code for."""
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{VERSION}" && exit\n'
        f'[ "$1 $2" = "auth status" ] && echo {shlex.quote(status)}\nexit 1\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("status", "code", "mark", "said"),
    [
        ('{"loggedIn": false}', 1, "✗", "but not logged in: run `claude auth login`"),
        (
            '{"loggedIn": true, "authMethod": "claude.ai", "email": "me@example.com"}',
            0,
            "✓",
            "logged in (an account of claude.ai)",
        ),
        (
            "error: unknown command",
            0,
            "✓",
            "whether it is logged in can't be told without --try (this version of Claude Code",
        ),
    ],
    ids=["out", "in", "unknown"],
)
async def test_doctor_says_whether_an_agent_is_logged_in(
    tmp_path: Path, status: str, code: int, mark: str, said: str
) -> None:
    executable = stand_in(tmp_path / "claude", status)
    flag = f"--agent-executables=claude={executable}"
    home = {"HOME": str(tmp_path)}
    async with daemon(tmp_path / "data", flag, environment=home) as running:
        done = await Cli(running.target, tmp_path)("doctor", "claude")
    [line] = [line for line in done.out.splitlines() if " claude: " in line]
    assert (done.code, line[0]) == (code, mark), line
    assert line.startswith(f"{mark} claude: installed (2.1.197 {executable})")
    assert said in line
    assert "me@example.com" not in done.out
