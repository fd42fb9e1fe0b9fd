"""The programs of others: pinned and installed as the agents are, see tools/agents."""

import subprocess
import sys
from functools import cache
from pathlib import Path

_INSTALL = Path(__file__).resolve().parents[2] / "tools" / "agents" / "install.py"


class NotInstalled(Exception):
    """A program is not there and could not be installed."""


@cache
def program(name: str) -> Path:
    """The program of this name, installed if need be. Raises NotInstalled."""
    command = [sys.executable, str(_INSTALL), name, "--print-path"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(done.stderr.strip())
    return Path(done.stdout.strip())


def environment(home: Path) -> dict[str, str]:
    """All that such a program is given of ours: a home of its own, and where programs are."""
    home.mkdir(parents=True, exist_ok=True)
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
