"""Replay: stored events to one client, beside the same bytes from a bare gRPC server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from agentstream.v1 import service_pb2
from bench.cores import DAEMON, on
from bench.figures import Figure, Measure, Scale, Void
from bench.load_client import Load
from bench.running import Daemon, World

_EVENTS = 1_000_000
_MIB = 2**20


def run(world: World, scale: Scale) -> Iterator[Figure]:
    """A whole session, as fast as the client takes it."""
    session_id, daemon = world.large(scale.of(_EVENTS, 5000)), world.daemon()
    ours = Load(daemon.address, [session_id]).figures()
    rate = ours["events"] / _seconds(ours)
    yield Figure("to one client", rate, "events/s", "higher", 500_000)
    yield Figure("to one client: bytes", ours["bytes"] / _seconds(ours) / _MIB, "MiB/s", "higher")
    bare = _bare(daemon, session_id)
    if bare["events"] != ours["events"]:
        raise Void("the bare server did not send the same")
    share = rate / (bare["events"] / _seconds(bare))
    yield Figure("of a bare gRPC server", share * 100, "%", "higher", 60)


def _seconds(figures: dict[str, float]) -> float:
    return (figures["ended_ns"] - figures["begun_ns"]) / 1e9


def _bare(daemon: Daemon, session_id: str) -> dict[str, float]:
    """The same messages from a server that does nothing else."""
    with TemporaryDirectory(dir=daemon.directory) as directory:
        file, address = Path(directory) / "messages", f"unix:{directory}/socket"
        with file.open("wb") as out:
            request = service_pb2.StreamEventsRequest(session_id=session_id)
            for response in daemon.stub.StreamEvents(request):
                message = response.SerializeToString()
                out.write(len(message).to_bytes(4, "big") + message)
        command = [*on(DAEMON), sys.executable, "-m", "bench.bare", address, str(file)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            server.stdout.readline()
            return Load(address, [session_id]).figures()
        finally:
            server.terminate()
            server.wait()


def stalled(world: World, scale: Scale) -> Iterator[Figure]:
    """A reader that has stopped reading costs the daemon little, whatever passes by it."""
    session_id, daemon = world.large(scale.of(_EVENTS, 5000)), world.daemon()
    Load(daemon.address, [session_id]).figures()
    before = daemon.memory_bytes()
    request = service_pb2.StreamEventsRequest(session_id=session_id)
    call = daemon.stub.StreamEvents(request)
    next(call)
    Load(daemon.address, [session_id]).figures()
    added = daemon.memory_bytes() - before
    call.cancel()
    yield Figure("a stalled second reader", added / _MIB, "MiB", "lower", 32)


MEASURES = (
    Measure("replay", "a million stored events to one client", run),
    Measure("stalled reader", "memory that it adds while another reads all", stalled, False),
)
