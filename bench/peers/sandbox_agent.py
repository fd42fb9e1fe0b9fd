"""sandbox-agent: a daemon in Rust that hands agents' messages on as server-sent events."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import native
from bench.cores import DAEMON, LOAD, on
from bench.load_client import Load
from bench.peers import acp_agent, installed

_MARK = "bench/end"
_START_SECONDS = 20
_CALL_SECONDS = 120


class SandboxAgent:
    """A daemon that runs, with agents that say prepared lines for each prompt."""

    def __init__(self, address: str, directory: Path) -> None:
        """`address` is where it listens, its agents work in `directory`."""
        self._agents = f"http://{address}/v1/acp"
        self._directory = directory
        self._numbers = 0

    def measure(self, followers: int) -> tuple[int, float]:
        """Prompt a new agent; how many lines its followers got, and in how many seconds."""
        # One that was prompted before would begin with what its daemon remembers of that.
        url = f"{self._agents}/for-{followers}"
        self._call(url, "initialize", protocolVersion=1, clientCapabilities={})
        self._call(url, "session/new", cwd=str(self._directory), mcpServers=[])
        load = Load("", [url], "-sse", _MARK, "-streams", str(followers))
        with ThreadPoolExecutor(1) as caller:
            begun_ns = time.monotonic_ns()
            prompt = [{"type": "text", "text": "go"}]
            method = "session/prompt"
            answer = caller.submit(self._call, url, method, sessionId="bench", prompt=prompt)
            figures = load.figures()
            answer.result()
        return figures["events"], (figures["ended_ns"] - begun_ns) / 1e9

    def _call(self, url: str, method: str, **params: object) -> None:
        self._numbers += 1
        body = {"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params}
        request = urllib.request.Request(
            f"{url}?agent=mock",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as response:
            response.read()


@contextlib.contextmanager
def running(lines: list[bytes]) -> Iterator[SandboxAgent]:
    """The daemon on its core, with an agent that says these native lines."""
    program = installed.program("sandbox-agent")
    with TemporaryDirectory() as directory, socket.socket() as free:
        home, said = Path(directory) / "home", Path(directory) / "said"
        said.write_bytes(b"".join(map(_notification, lines)) + _end())
        environment = installed.environment(home)
        subprocess.run(
            [program, "install-agent", "mock"], env=environment, check=True, capture_output=True
        )
        [launcher] = home.rglob("mock-acp")
        words = [*on(LOAD), sys.executable, acp_agent.__file__, str(said)]
        launcher.write_text(f"#!/bin/sh\nexec {' '.join(words)}\n")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [*on(DAEMON), str(program), "server", "--no-token", "--no-telemetry"]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            yield SandboxAgent(f"127.0.0.1:{port}", Path(directory))
        finally:
            process.terminate()
            process.wait()


def _notification(line: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"session/update","params":%s}\n' % line.rstrip()


def _end() -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": _MARK, "params": {}}).encode() + b"\n"


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def lines_of(count: int) -> list[bytes]:
    """The lines that both daemons get from their agents: deltas of about 430 bytes."""
    return b"".join(native.deltas(count)).splitlines(keepends=True)
