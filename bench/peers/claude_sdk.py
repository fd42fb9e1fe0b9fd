"""claude-agent-sdk, reading the CLI that we read, from the same model."""

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cores import DAEMON, LOAD, on
from bench.figures import Void
from bench.load_client import Load
from bench.peers import installed, model
from bench.running import Daemon
from tests.support.hermetic import claude_environment

_REQUIREMENTS = Path(__file__).with_suffix(".txt")
_READER = Path(__file__).with_name("sdk_reader.py")
_CACHE = Path(__file__).resolve().parents[2] / ".cache"
_RATE = 200.0
_WARM_UP = "Are you there?"
_PROMPTS = (model.GO, model.BURST)
_PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Read:
    """What reading the deltas of two turns took, one at a steady pace and one as fast as it goes.

    Attributes:
        delays: Of each delta at the steady pace, from the model's writing it to the reader's having
            it, in ms.
        cpu_us: Processor time for each delta, of the SDK's process or of our daemon, in us.
        burst_cpu_us: The same where they come as fast as the CLI writes.
    """

    delays: list[float]
    cpu_us: float
    burst_cpu_us: float


def by_sdk(directory: Path, deltas: int) -> Read:
    """Turns of so many deltas, read by the SDK. Raises Void, NotInstalled."""
    interpreter, cli = python(), installed.program("claude")
    with (
        TemporaryDirectory(dir=directory) as scratch,
        model.running("anthropic", deltas, _RATE) as url,
    ):
        command = [*on(DAEMON), str(interpreter), str(_READER), str(_pinned(cli, Path(scratch)))]
        done = subprocess.run(
            [*command, _WARM_UP, *_PROMPTS],
            cwd=scratch,
            env=claude_environment(Path(scratch) / "home", url),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    if done.returncode:
        raise Void(f"the SDK's reader failed: {done.stderr[-2000:]}")
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    return _read([(turn["delays"], turn["cpu_seconds"]) for turn in turns], deltas)


def by_us(directory: Path, deltas: int) -> Read:
    """The same, read by the daemon and a client of it. Raises Void, NotInstalled."""
    cli = installed.program("claude")
    with (
        TemporaryDirectory(dir=directory) as scratch,
        model.running("anthropic", deltas, _RATE) as url,
    ):
        place = Path(scratch)
        daemon = Daemon(
            place,
            f"--agent-executables=claude={_pinned(cli, place)}",
            module="agentstreamd",
            environment=installed.environment(place / "home"),
        )
        try:
            env = {
                name: value
                for name, value in claude_environment(place / "home", url).items()
                if name not in installed.environment(place / "home")
            }
            session_id = daemon.session(env=env)
            daemon.turn(session_id, _WARM_UP)
            return _read([_turn(daemon, session_id, prompt) for prompt in _PROMPTS], deltas)
        finally:
            daemon.stop()


def _turn(daemon: Daemon, session_id: str, prompt: str) -> tuple[list[int], float]:
    before, cpu = daemon.latest(session_id), daemon.cpu_seconds()
    flags = ("-follow", "-turn", "-stamps", "-each", "-after", str(before))
    load = Load(daemon.address, [session_id], *flags)
    daemon.send(session_id, prompt)
    delays = [delay for _, delay in load.figures()["each"]]
    return delays, daemon.cpu_seconds() - cpu


def _read(turns: list[tuple[list[int], float]], deltas: int) -> Read:
    counts = [len(delays) for delays, _ in turns]
    if counts != [deltas, deltas * model.BURSTS]:
        raise Void(f"of {deltas} deltas, and {model.BURSTS} times as many, {counts} came")
    steady, burst = (
        seconds * 1e6 / count for (_, seconds), count in zip(turns, counts, strict=True)
    )
    return Read([delay / 1e6 for delay in turns[0][0]], steady, burst)


def _pinned(cli: Path, directory: Path) -> Path:
    """A program that is the CLI, on the core of the load."""
    path = directory / "claude"
    path.write_text(f'#!/bin/sh\nexec {" ".join(on(LOAD))} {cli} "$@"\n')
    path.chmod(0o700)
    return path


@cache
def python() -> Path:
    """The Python that has the SDK; made if need be. Raises NotInstalled."""
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = _CACHE / f"claude-sdk-{wanted}"
    interpreter = place / "bin" / "python"
    if (place / "complete").exists():
        return interpreter
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    command = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-binary", "claude-agent-sdk", "--requirement", str(_REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise installed.NotInstalled(f"claude-agent-sdk: {done.stderr.strip()}")
    (place / "complete").touch()
    return interpreter
