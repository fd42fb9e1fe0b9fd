"""The load client in Go, see bench/load."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cores import LOAD, on
from bench.figures import Void

PROGRAM = Path(__file__).resolve().parents[1] / ".cache" / "bin" / "bench-load"
_PATIENCE_SECONDS = 300


class Load:
    """Streams that are read in a process of its own; see its flags in bench/load/main.go."""

    def __init__(self, address: str, sessions: Sequence[str], *flags: str) -> None:
        """Open them; returns when all are open. Raises Void where they can't be."""
        command = [*on(LOAD), str(PROGRAM), "-address", address, *flags, "-"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self._process.stdin.write("\n".join(sessions))
        self._process.stdin.close()
        if self._out.readline().strip() != "ready":
            self._fail()

    def figures(self) -> dict[str, Any]:
        """Wait until all streams have ended, each complete and in order. Raises Void else."""
        line = self._out.readline()
        if not line or self._process.wait(_PATIENCE_SECONDS):
            self._fail()
        figures: dict[str, Any] = json.loads(line)
        return figures

    def stop(self) -> None:
        """Hang up all that is still open."""
        self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)

    def _fail(self) -> None:
        self._process.kill()
        assert self._process.stderr is not None
        raise Void(self._process.stderr.read().strip() or "the load client failed")
