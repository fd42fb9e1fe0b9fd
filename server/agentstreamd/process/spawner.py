"""Starting processes through the supervisor program."""

import asyncio
import contextlib
import logging
import os
import re
import resource
import secrets
import socket
import subprocess
import sys

from .child import ChildProcess
from .errors import ProcessError, SpawnFailed, spawn_failure
from .leftovers import MARKER_NAME
from .pipes import CHUNK_BYTES, make_pipe
from .spec import ProcessSpec

_log = logging.getLogger(__name__)

_WANTED_OPEN_FILES = 65536
# Starts that are under way at once. It bounds descriptors in flight and what waits in the
# supervisor's socket, which therefore never fills up.
_CONCURRENT_STARTS = 32
_SUPERVISOR_END_SECONDS = 7.0
_CLOSED = "The process host is closed."

_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from supervisor.zygote import main; main()"


def supervisor_command(descriptor: int) -> list[str]:
    """Give the command line of the supervisor: an isolated Python that sees only its folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, folder, str(descriptor)]


class _Supervisor:
    """A running supervisor program and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.ended = asyncio.Event()
        # A pidfd: uvloop does not pass on the error event of a socket whose peer was killed.
        self._handle = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._on_end)

    @classmethod
    def start(cls) -> "_Supervisor":
        """Start the program: a millisecond, and by vfork, so that gRPC's fork handlers sleep on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        keep = ("PATH", "LD_LIBRARY_PATH")
        try:
            process = subprocess.Popen(
                supervisor_command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in keep if name in os.environ},
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            message = f"The process supervisor can't be started: {os.strerror(error.errno or 0)}."
            raise SpawnFailed(message, error.errno or 0) from error
        finally:
            theirs.close()
        return cls(process, ours)

    def send(self, descriptors: list[int]) -> None:
        socket.send_fds(self.channel, [b"spawn"], descriptors)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.channel.close()
        status = self.process.wait()  # has ended: reaps, does not block
        if status != 0:
            _log.error("the process supervisor died (status %d)", status)
        self.ended.set()


def _raise_open_files_limit() -> int:
    """Raise the soft limit of open files (four for each process); give the former one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


class ProcessHost:
    """Starts processes and ends them all.

    ``instance_id`` marks the processes of this daemon run: letters, digits, ``.``, ``_``, ``-``.
    Keep it where the next run finds it, for ``sweep_leftovers``. One host serves one event loop.

    Attributes:
        started: How many processes were started so far.
    """

    def __init__(self, instance_id: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", instance_id):
            raise ValueError("an instance id consists of letters, digits, '.', '_' and '-'")
        self.instance_id = instance_id
        self._children: set[ChildProcess] = set()
        self._supervisor: _Supervisor | None = None
        self._slots = asyncio.Semaphore(_CONCURRENT_STARTS)
        self._open_files = 0
        self._closed = False
        self.started = 0

    @property
    def children(self) -> frozenset[ChildProcess]:
        """The processes whose trees have not ended yet."""
        return frozenset(self._children)

    @property
    def supervisor_pid(self) -> int | None:
        """The process id of the supervisor program; None when it does not run."""
        supervisor = self._supervisor
        return None if supervisor is None or supervisor.ended.is_set() else supervisor.process.pid

    async def start(self) -> None:
        """Start the supervisor program, so that the first process starts fast. Raises SpawnFailed.

        Called or not, ``spawn`` starts it whenever it does not run.
        """
        self._start_supervisor()

    def _start_supervisor(self) -> None:
        if self._supervisor is None or self._supervisor.ended.is_set():
            self._open_files = self._open_files or _raise_open_files_limit()
            self._supervisor = _Supervisor.start()

    async def spawn(self, spec: ProcessSpec) -> ChildProcess:
        """Start a process; return when its program runs.

        Raises SpawnFailed (no such command, no such directory, out of resources, too slow).
        A cancelled call leaves no process behind.
        """
        async with self._slots:
            if self._closed:
                raise ProcessError(_CLOSED)
            marker = f"{self.instance_id}/{secrets.token_hex(8)}"
            child = ChildProcess(spec, marker, self._children.discard)
            self._children.add(child)
            try:
                await self._launch(child)
                await child.started()
            except BaseException:
                child.abandon()
                raise
            self.started += 1
            return child

    async def close(self) -> None:
        """Stop all processes (without their polite step) and the supervisor. Idempotent.

        Starts that are under way raise ProcessError.
        """
        self._closed = True
        running = []
        for child in self.children:
            if child.is_started:
                running.append(child.stop())
            else:
                child.abandon(ProcessError(_CLOSED))
        await asyncio.gather(*running, return_exceptions=True)
        supervisor = self._supervisor
        if supervisor is None or supervisor.ended.is_set():
            return
        with contextlib.suppress(OSError):
            supervisor.channel.shutdown(socket.SHUT_RDWR)
        try:
            async with asyncio.timeout(_SUPERVISOR_END_SECONDS):
                await supervisor.ended.wait()
        except TimeoutError:
            supervisor.process.kill()
            await supervisor.ended.wait()

    def _send(self, descriptors: list[int]) -> None:
        self._start_supervisor()
        assert self._supervisor is not None
        try:
            self._supervisor.send(descriptors)
        except ConnectionError:
            # It died, unnoticed so far, and has not seen this request.
            self._supervisor = _Supervisor.start()
            self._supervisor.send(descriptors)

    async def _launch(self, child: ChildProcess) -> None:
        """Hand the far ends of the channels to the supervisor and the order to the keeper."""
        spec = child.spec
        with contextlib.ExitStack() as near, contextlib.ExitStack() as far:
            try:
                control, far_control = socket.socketpair()
                near.callback(control.close)
                far.callback(far_control.close)
                far_stdin, stdin = make_pipe()
                near.callback(os.close, stdin)
                far.callback(os.close, far_stdin)
                stdout, far_stdout = make_pipe(CHUNK_BYTES)
                near.callback(os.close, stdout)
                far.callback(os.close, far_stdout)
                stderr, far_stderr = make_pipe()
                near.callback(os.close, stderr)
                far.callback(os.close, far_stderr)
                self._send([far_control.fileno(), far_stdin, far_stdout, far_stderr])
            except OSError as error:
                raise spawn_failure(
                    "pipe", error.errno or 0, False, spec.argv[0], spec.cwd
                ) from error
            near.pop_all()
        try:
            await child.attach(stdin, stdout, stderr)
            control.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: child.channel, sock=control)
        except BaseException:
            control.close()
            raise
        child.channel.send(
            {
                "argv": spec.argv,
                "cwd": spec.cwd,
                "env": {**spec.env, MARKER_NAME: child.marker},
                "umask": spec.umask,
                "open_files": self._open_files,
                "sweep_grace_seconds": spec.stop.sweep_grace_seconds,
            }
        )
