"""OpenCode's own event stream, read beside ours of the same session."""

import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from bench.cores import LOAD, on
from bench.figures import Void
from bench.load_client import Load
from bench.peers import installed, model
from bench.running import Daemon
from tests.support.opencode_lab import MODEL, opencode_environment

_RATE = 50.0

# Tells the way to the server that it becomes: `--port 0` gets a number, the password is kept.
_WRAPPER = """#!/bin/sh
umask 077
if [ "$1" = serve ]; then printf %s "$OPENCODE_SERVER_PASSWORD" > {password}; fi
for word; do shift; [ "$word" = 0 ] && word={port}; set -- "$@" "$word"; done
exec {program} "$@"
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """The same deltas, read from OpenCode and from us; times in ms, from the model's writing.

    Attributes:
        theirs: Delay of each delta at a direct reader of OpenCode's stream.
        ours: The same at a reader of our stream.
        added: How much later ours had each delta.
        cpu_us: Processor time of our daemon for each delta, in us.
    """

    theirs: list[float]
    ours: list[float]
    added: list[float]
    cpu_us: float


def beside(directory: Path, deltas: int) -> Beside:
    """A turn of so many deltas. Raises Void where one is missing, NotInstalled."""
    program = installed.program("opencode")
    with (
        TemporaryDirectory(dir=directory) as scratch,
        model.running("openai", deltas, _RATE) as url,
    ):
        place = Path(scratch)
        port, password = _free_port(), place / "password"
        wrapper = place / "opencode"
        words = " ".join([*on(LOAD), str(program)])
        wrapper.write_text(_WRAPPER.format(password=password, port=port, program=words))
        wrapper.chmod(0o700)
        daemon = Daemon(
            place,
            f"--agent-executables=opencode={wrapper}",
            module="agentstreamd",
            environment=installed.environment(place / "home"),
        )
        try:
            env = opencode_environment(place / "opencode-home", url)
            session_id = daemon.session("opencode", env=env, model=MODEL)
            daemon.turn(session_id, "Are you there?")
            key = quote(password.read_text())
            events = f"http://opencode:{key}@127.0.0.1:{port}/event?directory={quote(str(place))}"
            return _measure(daemon, session_id, events, deltas)
        finally:
            daemon.stop()


def _measure(daemon: Daemon, session_id: str, events: str, deltas: int) -> Beside:
    before, cpu = daemon.latest(session_id), daemon.cpu_seconds()
    flags = ("-stamps", "-each")
    count = '"message.part.delta"'
    theirs = Load("", [events], "-sse", '"session.idle"', "-count", count, *flags)
    ours = Load(daemon.address, [session_id], "-follow", "-turn", "-after", str(before), *flags)
    daemon.send(session_id, model.GO)
    direct, through = dict(theirs.figures()["each"]), dict(ours.figures()["each"])
    if len(direct) != deltas or direct.keys() != through.keys():
        raise Void(f"of {deltas} deltas {len(direct)} came directly, {len(through)} through us")
    cpu_us = (daemon.cpu_seconds() - cpu) * 1e6 / deltas
    return Beside(
        [delay / 1e6 for delay in direct.values()],
        [delay / 1e6 for delay in through.values()],
        [(through[stamp] - delay) / 1e6 for stamp, delay in direct.items()],
        cpu_us,
    )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
