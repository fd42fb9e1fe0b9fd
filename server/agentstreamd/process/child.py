"""One running process, as the daemon sees it."""

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from .capture import HeadTail
from .errors import ProcessError, ProcessGone, SpawnFailed, spawn_failure
from .leftovers import MARKER_NAME, ProcessIdentity, end_marked
from .pipes import ChunkReader, SampleReader, StdinWriter
from .spec import ExitStatus, ProcessSpec
from .supervisor.tree import KILL_BOUND_SECONDS

_log = logging.getLogger(__name__)

# What a keeper gets beyond the times it was told before it is taken for dead.
_KEEPER_MARGIN_SECONDS = 2.0


class _ControlChannel(asyncio.Protocol):
    """The line-wise JSON channel to the keeper."""

    def __init__(self, on_report: Callable[[dict[str, Any]], None], on_lost: Callable[[], None]):
        self._on_report = on_report
        self._on_lost = on_lost
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._on_report(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def send(self, message: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class ChildProcess:
    """A process, its standard streams, and the end of its whole process tree.

    Made by ``ProcessHost.spawn``. ``stdin``, ``stdout`` (chunks) and ``stderr`` (a bounded sample)
    may be used until their ends, also after the process ended.
    """

    stdin: StdinWriter
    stdout: ChunkReader
    stderr: HeadTail

    def __init__(
        self, spec: ProcessSpec, marker: str, on_gone: Callable[["ChildProcess"], None]
    ) -> None:
        self.spec = spec
        self.marker = marker
        self._on_gone = on_gone
        self.label = spec.label or spec.argv[0]
        self.pid = 0
        self.start_time = 0
        self.keeper_pid = 0
        self.stderr = HeadTail(spec.stderr_head_bytes, spec.stderr_tail_bytes)
        self.channel = _ControlChannel(self._on_report, self._on_lost)
        self._stderr_reader: SampleReader | None = None
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._exited: asyncio.Future[ExitStatus] = loop.create_future()
        self._gone = asyncio.Event()
        self._gone_reported = False
        self._stopping: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def identity(self) -> ProcessIdentity:
        """Who the process is, beyond its id."""
        return ProcessIdentity(self.pid, self.start_time, self.marker)

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the process ended; None while it runs."""
        return self._exited.result() if self._exited.done() else None

    @property
    def is_gone(self) -> bool:
        """Whether the process and its whole tree have ended."""
        return self._gone.is_set()

    async def wait(self) -> ExitStatus:
        """Wait until the process itself ends; what it left running may still be being ended."""
        return await asyncio.shield(self._exited)

    async def wait_gone(self) -> ExitStatus:
        """Wait until the process and its whole tree have ended."""
        await self._gone.wait()
        return self._exited.result()

    async def end_within(self, seconds: float) -> ExitStatus:
        """Wait until nothing of it is left, of a process that is expected to end; else stop it.

        For one that has closed its output: it has nothing more to say, and must not live on.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_gone()
        except TimeoutError:
            _log.warning("%s closed its output and lives on; it is stopped", self)
            return await self.stop()

    def close_stdin(self) -> None:
        """Close standard input once all that was written is delivered. Idempotent."""
        self.stdin.close()

    def send_signal(self, number: int) -> None:
        """Signal the process itself, not its tree. Raises ProcessGone when it ended."""
        if self._exited.done():
            raise ProcessGone(f"{self.label} has ended ({self._exited.result()}).")
        self.channel.send({"op": "signal", "signal": int(number)})

    def kill(self) -> None:
        """Kill the whole tree without asking; ``wait_gone`` tells when it is gone."""
        self.channel.send({"op": "kill"})

    async def stop(self, polite: Callable[[], Awaitable[object]] | None = None) -> ExitStatus:
        """End the process and its whole tree; return when nothing of it is left.

        ``polite`` asks the process to end by itself (for instance by closing its standard input);
        when it fails, or the process lives on for ``polite_grace_seconds``, TERM and KILL follow as
        the stop policy says. Idempotent: further calls join the first. A cancelled caller leaves
        the stop going on.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(polite))
        await asyncio.shield(self._stopping)
        return self._exited.result()

    # --- for ProcessHost -----------------------------------------------------------------------

    async def attach(self, stdin: int, stdout: int, stderr: int) -> None:
        """Take over the daemon's ends of the pipes."""
        self.stdout = ChunkReader(stdout)
        self._stderr_reader = SampleReader(stderr, self.stderr)
        self.stdin = await StdinWriter.open(stdin, self.label)

    async def started(self) -> None:
        """Wait until the program runs. Raises SpawnFailed when it can't be run."""
        seconds = self.spec.start_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._started
        except TimeoutError:
            raise SpawnFailed(f"{self.label} did not start within {seconds:g} seconds.") from None

    @property
    def is_started(self) -> bool:
        """Whether the program runs or ran."""
        started = self._started
        return started.done() and not started.cancelled() and started.exception() is None

    def abandon(self, reason: ProcessError | None = None) -> None:
        """Give up a start: without its channel the keeper ends what it may have started.

        Whoever waits for the start gets the reason.
        """
        if reason is not None and not self._started.done():
            self._started.set_exception(reason)
        self._started.cancel()
        self.channel.close()
        self._release()
        if not self.is_started:
            self._on_gone(self)

    # --- from the keeper -----------------------------------------------------------------------

    def _on_report(self, report: dict[str, Any]) -> None:
        event = report["event"]
        if event == "started":
            self.pid, self.start_time = report["pid"], report["start_time"]
            self.keeper_pid = report["keeper_pid"]
            if not self._started.done():
                self._started.set_result(None)
        elif event == "failed" and not self._started.done():
            program, cwd = self.spec.argv[0], self.spec.cwd
            self._started.set_exception(
                spawn_failure(report["stage"], report["errno"], report["exists"], program, cwd)
            )
        elif event == "exited":
            self._set_exited(ExitStatus(report["code"], report["signal"]))
        elif event == "gone":
            self._gone_reported = True
            if report["survivors"]:
                _log.error("%s left processes that can't be killed: %s", self, report["survivors"])
            self.channel.close()

    def _on_lost(self) -> None:
        if not self._started.done():
            self._started.set_exception(
                SpawnFailed(f"The process supervisor died before {self.label} was started.")
            )
        elif self._gone_reported:
            self._finish()
        elif self.is_started:
            self._ending = asyncio.create_task(self._end_unkept())

    async def _end_unkept(self) -> None:
        """End what a killed keeper left; only what it can be recognized by is known of it."""
        _log.warning("the keeper of %s died", self)
        result = await asyncio.to_thread(end_marked, self.marker, term_grace_seconds=0)
        if result.survivors:
            _log.error("%s left processes that can't be killed: %s", self, result.survivors)
        self._finish()

    def _finish(self) -> None:
        self._set_exited(ExitStatus(signal=signal.SIGKILL, supervision_lost=True))
        self._release()
        self._gone.set()
        self._on_gone(self)

    def _set_exited(self, status: ExitStatus) -> None:
        if not self._exited.done():
            self._exited.set_result(status)
            # Its children may still hold the pipe open, but nobody who was meant will read.
            self.stdin.abort()

    def _release(self) -> None:
        if hasattr(self, "stdin"):
            self.stdin.abort()
        if hasattr(self, "stdout"):
            self.stdout.finish()
        if self._stderr_reader is not None:
            self._stderr_reader.finish()

    # --- stopping ------------------------------------------------------------------------------

    async def _stop(self, polite: Callable[[], Awaitable[object]] | None) -> None:
        policy = self.spec.stop
        try:
            if polite is not None and not self._exited.done():
                await self._ask(polite, policy.polite_grace_seconds)
            self.channel.send(
                {
                    "op": "stop",
                    "term_grace_seconds": policy.term_grace_seconds,
                    "sweep_grace_seconds": policy.sweep_grace_seconds,
                }
            )
            bound = policy.term_grace_seconds + policy.sweep_grace_seconds + KILL_BOUND_SECONDS
            try:
                async with asyncio.timeout(bound + _KEEPER_MARGIN_SECONDS):
                    await self._gone.wait()
            except TimeoutError:
                # A keeper that was stopped by a signal, say. Losing its channel ends it when it
                # goes on; until then the tree is ended from here.
                _log.error("the keeper of %s does not answer", self)
                self.channel.close()
                await self._gone.wait()
        except asyncio.CancelledError:
            self.kill()
            raise

    async def _ask(self, polite: Callable[[], Awaitable[object]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        asking = asyncio.ensure_future(polite())
        exiting = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait(
                {asking, exiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if asking.done() and not asking.cancelled() and asking.exception() is not None:
                _log.info("%s could not be asked to end: %r", self, asking.exception())
            elif not exiting.done():
                await asyncio.wait({exiting}, timeout=max(0.0, deadline - loop.time()))
        finally:
            asking.cancel()
            exiting.cancel()

    def __repr__(self) -> str:
        """Give label, pid and marker."""
        return f"<{self.label} pid={self.pid} {MARKER_NAME}={self.marker}>"
