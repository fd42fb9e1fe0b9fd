"""Small real process trees for the tests, and ways to await their end without sleeping."""

import os
import select
import sys
from pathlib import Path

from agentstreamd.process import ChildProcess, LineFramer, ProcessSpec, StopPolicy

PATH = "/usr/local/bin:/usr/bin:/bin"
FAST = StopPolicy(polite_grace_seconds=0.3, term_grace_seconds=0.3, sweep_grace_seconds=0.3)

# Starts, one after the other: a plain child, one in its own session, one that ignores TERM, a
# daemon that forked twice, and one in its own session with an empty environment; prints their ids.
TREE = """
import os, signal, sys, time
def wait(label):
    os.write(1, f"{label} {os.getpid()}\\n".encode())
    while True:
        signal.pause()
def fork(label, *, session=False, deaf=False, twice=False):
    if os.fork() == 0:
        if session or twice:
            os.setsid()
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if twice and os.fork():
            os._exit(0)
        wait(label)
fork("plain")
fork("session", session=True)
fork("deaf", deaf=True, session=True)
fork("daemon", twice=True)
fork("deafdaemon", twice=True, deaf=True)
if "strip" in sys.argv and os.fork() == 0:
    os.setsid()
    deaf = "trap '' TERM; echo stripped $$; while :; do sleep 9; done"
    os.execve("/bin/sh", ["sh", "-c", deaf], {})
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "exit" in sys.argv:
    sys.stdin.readline()
    sys.exit(7)
wait("main")
"""


def python(code: str, *args: str, **options: object) -> ProcessSpec:
    """A Python child that runs code."""
    return command(sys.executable, "-I", "-S", "-c", code, *args, **options)


def shell(code: str, **options: object) -> ProcessSpec:
    """A shell child that runs code."""
    return command("sh", "-c", code, **options)


def command(*argv: str, **options: object) -> ProcessSpec:
    """A child with a small environment and short stop times."""
    defaults = {"cwd": "/", "env": {"PATH": PATH}, "stop": FAST}
    return ProcessSpec(argv=argv, **(defaults | options))  # type: ignore[arg-type]


async def read_all(child: ChildProcess) -> bytes:
    """Standard output up to its end."""
    chunks = []
    while chunk := await child.stdout.read():
        chunks.append(chunk)
    return b"".join(chunks)


async def read_pids(child: ChildProcess, count: int) -> dict[str, int]:
    """The ids that a tree prints, by label."""
    framer, pids = LineFramer(), dict[str, int]()
    while len(pids) < count:
        chunk = await child.stdout.read()
        assert chunk, f"the tree ended early: {child.stderr.text()}"
        for line in framer.feed(chunk):
            assert isinstance(line, bytes)
            label, pid = line.split()
            pids[label.decode()] = int(pid)
    return pids


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def await_end(pid: int, seconds: float = 10.0) -> bool:
    """Block until the process ends; False when it has not within so many seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(handle)
