"""A real `python -m agentstreamd` in a process of its own, on a port of its own.

    async with daemon(tmp_path / "data") as running:
        async with running.aio_channel() as channel:
            stub = service_pb2_grpc.AgentServiceStub(channel)

Its standard error is kept for assertions and shown when it does not start.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc import aio

READY = b"agentstreamd listening on "
START_SECONDS = 60
STOP_SECONDS = 60
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


class DaemonFailed(Exception):
    """The daemon ended before it was ready."""

    def __init__(self, code: int, stderr: str) -> None:
        super().__init__(f"the daemon ended with exit code {code}:\n{stderr}")
        self.code = code
        self.stderr = stderr


@dataclass
class Daemon:
    """A daemon that runs.

    Attributes:
        process: Its process.
        data_dir: Its data directory.
        addresses: Where it listens; the first is `target`.
        stdout: What it wrote to standard output so far, the ready line first.
    """

    process: asyncio.subprocess.Process
    data_dir: Path
    addresses: list[str]
    stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _readers: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def target(self) -> str:
        """What to connect to."""
        return self.addresses[0]

    @property
    def stderr(self) -> str:
        """What it wrote to standard error so far."""
        return self._stderr.decode(errors="replace")

    def aio_channel(self) -> aio.Channel:
        """A channel for asyncio; close it, or use it in an `async with`."""
        return aio.insecure_channel(self.target, options=[("grpc.use_local_subchannel_pool", 1)])

    def channel(self) -> grpc.Channel:
        """A channel for threads; close it, or use it in a `with`."""
        return grpc.insecure_channel(self.target, options=[("grpc.use_local_subchannel_pool", 1)])

    def signal(self, number: int) -> None:
        """Send a signal to it, if it runs."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end; its exit code (negative for a signal)."""
        async with asyncio.timeout(STOP_SECONDS):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def stop(self) -> int:
        """Ask it to stop (SIGTERM) and wait; its exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.signal(signal.SIGKILL)
        await self.wait()


async def start(
    data_dir: Path,
    *arguments: str,
    listen: Sequence[str] = ("127.0.0.1:0",),
    environment: Mapping[str, str] | None = None,
) -> Daemon:
    """Start a daemon and wait until it is ready. Raises DaemonFailed.

    It gets `environment` besides what Python needs, and nothing of the developer's settings.
    """
    flags = [f"--listen={address}" for address in listen]
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentstreamd", f"--data-dir={data_dir}", *flags, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**passed, **(environment or {})},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    daemon = Daemon(process, data_dir, [])
    daemon._readers.append(asyncio.create_task(_drain(process.stderr, daemon._stderr)))
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        daemon.stdout += line
        daemon._readers.append(asyncio.create_task(_drain(process.stdout, daemon.stdout)))
        if not line.startswith(READY):
            raise DaemonFailed(await daemon.wait(), daemon.stderr)
    except BaseException:
        await daemon.kill()
        raise
    daemon.addresses = line.removeprefix(READY).decode().split()
    return daemon


async def _drain(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(65536):
        into += chunk


@contextlib.asynccontextmanager
async def daemon(
    data_dir: Path,
    *arguments: str,
    listen: Sequence[str] = ("127.0.0.1:0",),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Daemon]:
    """A daemon for the length of a test, stopped by SIGTERM at its end unless it has ended."""
    running = await start(data_dir, *arguments, listen=listen, environment=environment)
    try:
        yield running
    finally:
        if running.process.returncode is None:
            await running.stop()
