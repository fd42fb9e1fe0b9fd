"""Daemons under measurement, and what is done on them."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, Self

import grpc

from agentstream.v1 import service_pb2, service_pb2_grpc, session_pb2
from bench import native
from bench.cores import DAEMON, LOAD, on
from bench.load_client import Load

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 120


class Daemon:
    """A daemon on its own core, in a directory of its own.

    Attributes:
        address: Where it listens.
        directory: For files of the measure.
        stub: Its service.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        module: str = "bench.daemon",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; returns when it serves.

        `module` is what is run, `environment` all that it gets (ours where None).
        """
        self.directory = directory
        self._module = module
        self._environment = environment
        self._flags = flags
        self._pipes = 0
        self.start()

    def start(self) -> None:
        """Start it, again after `stop`."""
        directory = self.directory
        command = [*on(DAEMON), sys.executable, "-m", self._module]
        command += ["--listen", f"unix:{directory}/socket"]
        command += ["--data-dir", str(directory / "data"), "--log-level", "warning", *self._flags]
        # As where it is installed: its modules are not compiled at each start.
        environment = dict(os.environ if self._environment is None else self._environment)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self._channel = grpc.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub = service_pb2_grpc.AgentServiceStub(self._channel)

    def stop(self) -> None:
        """Stop it in order."""
        self._channel.close()
        self.process.terminate()
        self.process.wait(_STOP_SECONDS)

    def cpu_seconds(self) -> float:
        """Time on a processor so far, user and system."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / _TICKS

    def memory_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Files and sockets open now."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def move_children(self) -> None:
        """Have what starts agents' processes, and so these, run on the core of the load.

        Behind the load itself: its clients must not wait for them.
        """
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            for child in Path(f"/proc/{self.process.pid}/task/{task}/children").read_text().split():
                os.sched_setaffinity(int(child), {LOAD})
                os.setpriority(os.PRIO_PROCESS, int(child), 19)

    def session(
        self,
        agent: str = "claude",
        *,
        one_shot: bool = False,
        env: Mapping[str, str] | None = None,
        model: str = "",
    ) -> str:
        """A new session; a `one_shot` one ends with its first turn.

        `env` and `model` are its agent's.
        """
        config = session_pb2.SessionConfig(
            agent=agent,
            working_directory=str(self.directory),
            one_shot=one_shot,
            env=env,
            model=model,
        )
        made = self.stub.CreateSession(service_pb2.CreateSessionRequest(config=config))
        return made.session.session_id

    def send(self, session_id: str, text: str) -> None:
        """Start a turn."""
        part = service_pb2.InputPart(text=text)
        self.stub.SendMessage(service_pb2.SendMessageRequest(session_id=session_id, parts=[part]))

    def turn(self, session_id: str, text: str) -> None:
        """A whole turn; returns at its end. Raises Void."""
        load = Load(self.address, [session_id], "-follow", "-turn")
        self.send(session_id, text)
        load.figures()

    def pipe(self, session_id: str) -> IO[bytes]:
        """Start a turn whose native lines are what is written to this pipe."""
        self._pipes += 1
        path = self.directory / f"pipe-{self._pipes}"
        os.mkfifo(path)
        self.send(session_id, str(path))
        return path.open("wb", buffering=0)

    @contextlib.contextmanager
    def saying(self, session_id: str, lines: bytes) -> Iterator[int]:
        """A turn of these native lines, written as fast as they are read.

        Gives the monotonic time at which the writer is started, in nanoseconds.
        """
        file = self.directory / "lines"
        file.write_bytes(lines)
        with self.pipe(session_id) as pipe:
            begun_ns = time.monotonic_ns()
            writer = subprocess.Popen([*on(LOAD), "cat", str(file)], stdout=pipe)
        try:
            yield begun_ns
        finally:
            writer.wait(_STOP_SECONDS)

    def pacing(
        self, sessions: Sequence[str], rate: float, seconds: float = 0.0
    ) -> "subprocess.Popen[bytes]":
        """Start a turn in each session, at `rate` lines a second; see bench/pace.py."""
        pipes = [self.pipe(session_id) for session_id in sessions]
        descriptors = [pipe.fileno() for pipe in pipes]
        command = [*on(LOAD), sys.executable, "-m", "bench.pace", str(rate), str(seconds)]
        writer = subprocess.Popen(
            [*command, json.dumps(descriptors)], pass_fds=descriptors, stdin=subprocess.PIPE
        )
        for pipe in pipes:
            pipe.close()
        return writer

    def latest(self, session_id: str) -> int:
        """Sequence of a session's newest event."""
        request = service_pb2.GetSessionRequest(session_id=session_id)
        return self.stub.GetSession(request).session.latest_sequence


@dataclass
class World:
    """The daemons of one run; each is started when it is first asked for.

    Attributes:
        directory: For all their files.
    """

    directory: Path
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _daemons: dict[str, Daemon] = field(default_factory=dict)
    _large: dict[int, str] = field(default_factory=dict)

    def daemon(self, durability: str = "normal") -> Daemon:
        """The daemon that stores events with this durability, `normal` or `full`."""
        if durability not in self._daemons:
            self._daemons[durability] = self._stack.enter_context(
                self.fresh(f"--event-log-synchronous={durability}")
            )
        return self._daemons[durability]

    @contextlib.contextmanager
    def fresh(self, *flags: str) -> Iterator[Daemon]:
        """A daemon that nothing has happened on."""
        with TemporaryDirectory(dir=self.directory) as directory:
            daemon = Daemon(Path(directory), *flags)
            try:
                yield daemon
            finally:
                daemon.stop()

    def large(self, events: int, *, anew: bool = False) -> str:
        """An idle session of about so many events, on the daemon with normal durability.

        It is made once, unless wanted `anew`.
        """
        if anew or events not in self._large:
            daemon = self.daemon()
            session_id = daemon.session()
            load = Load(daemon.address, [session_id], "-follow", "-turn")
            with daemon.pipe(session_id) as pipe:
                for lines in native.deltas(events):
                    write(pipe, lines)
            load.figures()
            self._large[events] = session_id
        return self._large[events]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def write(pipe: IO[bytes], lines: bytes) -> None:
    """Write all of it."""
    rest = memoryview(lines)
    while rest:
        rest = rest[pipe.write(rest) :]
