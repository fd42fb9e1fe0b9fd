"""What is measured."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from agentstream.v1 import event_pb2, service_pb2, service_pb2_grpc, session_pb2

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured; `short` only shows that it works."""

    flood_events: int = 200_000
    replay_turns: int = 5
    paced_events: int = 2_000
    idle_sessions: int = 2_000

    @classmethod
    def short(cls) -> "Scale":
        """A few seconds' worth."""
        return cls(flood_events=10_000, replay_turns=1, paced_events=100, idle_sessions=100)


@dataclass(slots=True)
class Daemon:
    """A daemon under measurement."""

    process: subprocess.Popen[str]
    address: str
    stub: service_pb2_grpc.AgentServiceStub
    directory: Path

    def cpu_seconds(self) -> float:
        """CPU time used so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def session(self, *, one_shot: bool) -> str:
        """A new session."""
        config = session_pb2.SessionConfig(
            agent="bench", working_directory="/tmp", one_shot=one_shot
        )
        made = self.stub.CreateSession(service_pb2.CreateSessionRequest(config=config))
        return made.session.session_id

    def send(self, session_id: str, text: str) -> None:
        """Start a turn."""
        part = service_pb2.InputPart(text=text)
        self.stub.SendMessage(service_pb2.SendMessageRequest(session_id=session_id, parts=[part]))

    def wait_for_turn(self, session_id: str, after: int) -> int:
        """Wait for the end of a turn; gives its sequence."""
        request = service_pb2.StreamEventsRequest(
            session_id=session_id,
            after_sequence=after,
            follow=True,
            kinds=[event_pb2.EVENT_KIND_TURN_ENDED],
        )
        call = self.stub.StreamEvents(request)
        for response in call:
            for event in response.batch.events:
                call.cancel()
                return event.sequence
        raise RuntimeError("the stream ended without the end of the turn")


@contextlib.contextmanager
def running_daemon() -> Iterator[Daemon]:
    """A daemon with an empty data directory."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "bench.daemon", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--data-dir", directory, "--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with grpc.insecure_channel(address) as channel:
                stub = service_pb2_grpc.AgentServiceStub(channel)
                yield Daemon(process, address, stub, Path(directory))
        finally:
            process.terminate()
            process.wait(60)


class Readers:
    """Reader processes on a session."""

    def __init__(self, daemon: Daemon, session_id: str, readers: int, *, follow: bool) -> None:
        """Start them; returns when all streams are open."""
        mode = "follow" if follow else "once"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.follower",
                daemon.address,
                session_id,
                str(readers),
                mode,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        if self._out.readline().strip() != "ready":
            raise RuntimeError("the readers did not start")

    def figures(self) -> dict[str, Any]:
        """Wait until their streams have ended, and are checked."""
        line = self._out.readline()
        if self._process.wait(60) or not line:
            raise RuntimeError("the readers failed: the figure is void")
        figures: dict[str, Any] = json.loads(line)
        return figures


def ingest(daemon: Daemon, scale: Scale, followers: int) -> dict[str, float]:
    """Native lines through framing, normalizer, stream, durable log and service to followers."""
    session_id = daemon.session(one_shot=True)
    readers = Readers(daemon, session_id, followers, follow=True)
    cpu = daemon.cpu_seconds()
    begun_ns = time.monotonic_ns()
    daemon.send(session_id, f"flood {scale.flood_events}")
    figures = readers.figures()
    seconds = (figures["ended_ns"] - begun_ns) / 1e9
    used = daemon.cpu_seconds() - cpu
    events = figures["events"]
    return {"events_per_second": events / seconds, "cpu_us_per_event": used / events * 1e6}


def replay(daemon: Daemon, scale: Scale) -> dict[str, float]:
    """A whole stored session to one client that does not decode."""
    session_id = daemon.session(one_shot=False)
    latest = 0
    for _ in range(scale.replay_turns):
        daemon.send(session_id, f"flood {scale.flood_events}")
        latest = daemon.wait_for_turn(session_id, latest)
    figures = Readers(daemon, session_id, 1, follow=False).figures()
    seconds = (figures["ended_ns"] - figures["begun_ns"]) / 1e9
    return {
        "events": figures["events"],
        "events_per_second": figures["events"] / seconds,
        "mebibytes_per_second": figures["bytes"] / seconds / 2**20,
    }


def latency(daemon: Daemon, scale: Scale) -> dict[str, float]:
    """From the line in the daemon's hands to the client: what the daemon and gRPC add."""
    session_id = daemon.session(one_shot=True)
    readers = Readers(daemon, session_id, 1, follow=True)
    daemon.send(session_id, f"paced {scale.paced_events} 5")
    ordered = sorted(readers.figures()["latencies_ns"])
    return {
        "p50_ms": ordered[len(ordered) // 2] / 1e6,
        "p99_ms": ordered[len(ordered) * 99 // 100] / 1e6,
    }


def idle_memory(daemon: Daemon, scale: Scale) -> dict[str, float]:
    """Resident memory that an idle session adds."""
    before = daemon.rss_bytes()
    for _ in range(scale.idle_sessions):
        daemon.session(one_shot=False)
    return {"kibibytes_per_session": (daemon.rss_bytes() - before) / scale.idle_sessions / 1024}
