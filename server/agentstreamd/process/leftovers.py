"""Finding and ending processes by what they are, never by a bare process id.

A process is identified by its id, its start time and the marker in its environment
(``AGENTSTREAM_PROCESS=<instance id>/<process id>``), which its descendants inherit.
"""

import os
import select
import signal
import time
from dataclasses import dataclass

from .supervisor.tree import stat_of

MARKER_NAME = "AGENTSTREAM_PROCESS"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process: id, start time in clock ticks since boot, and the value of its marker."""

    pid: int
    start_time: int
    marker: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep ended, and what is still there although it was killed."""

    ended: tuple[ProcessIdentity, ...]
    survivors: tuple[ProcessIdentity, ...]


def identify(pid: int) -> ProcessIdentity | None:
    """Read who a process is; None when it is gone, a zombie, unmarked or not ours to see."""
    prefix = MARKER_NAME.encode() + b"="
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return None
    if prefix not in environ:
        return None
    stat = stat_of(pid)
    for entry in environ.split(b"\0"):
        if stat is not None and entry.startswith(prefix):
            return ProcessIdentity(pid, stat[2], entry[len(prefix) :].decode("utf-8", "replace"))
    return None


def find_marked(prefix: str) -> list[ProcessIdentity]:
    """List the processes whose marker begins with prefix, without this process."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = [identify(pid) for pid in pids if pid != os.getpid()]
    return [who for who in found if who is not None and who.marker.startswith(prefix)]


def _open(who: ProcessIdentity) -> int | None:
    """Open a pidfd of exactly this process; None when it is gone."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        return None
    # Checked after the handle was opened: from here on it can't become another process.
    if identify(who.pid) == who:
        return handle
    os.close(handle)
    return None


def _send(handle: int, *signals: int) -> bool:
    try:
        for number in signals:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    return True


def signal_process(who: ProcessIdentity, *signals: int) -> bool:
    """Signal exactly this process; False when it is gone, whoever has its id now."""
    handle = _open(who)
    if handle is None:
        return False
    try:
        return _send(handle, *signals)
    finally:
        os.close(handle)


class _Sweep:
    """The marked processes that were found, each held by its pidfd until it ended.

    Held, because a process that is being killed loses its environment before it ends: that no
    marked process is found does not mean yet that none is left.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.running: dict[ProcessIdentity, int] = {}
        self.ended: list[ProcessIdentity] = []

    def find(self) -> None:
        """Take in the marked processes that are not known yet."""
        for who in find_marked(self._prefix):
            if who not in self.running and (handle := _open(who)) is not None:
                self.running[who] = handle

    def signal(self, *signals: int) -> None:
        for handle in self.running.values():
            _send(handle, *signals)

    def await_end(self, seconds: float) -> None:
        """Block until all that are known ended, or for so many seconds."""
        deadline = time.monotonic() + seconds
        for who, handle in list(self.running.items()):
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                os.close(self.running.pop(who))
                self.ended.append(who)

    def close(self) -> None:
        for handle in self.running.values():
            os.close(handle)


def end_marked(
    prefix: str, *, term_grace_seconds: float = 1.0, kill_bound_seconds: float = 2.0
) -> SweepResult:
    """End all processes whose marker begins with prefix: TERM, the grace, KILL until none is left.

    Blocks for at most the two times together (a thread is the place to call it). A grace of 0
    kills at once.
    """
    sweep = _Sweep(prefix)
    try:
        sweep.find()
        if term_grace_seconds > 0:
            sweep.signal(signal.SIGTERM, signal.SIGCONT)
            sweep.await_end(term_grace_seconds)
        deadline = time.monotonic() + kill_bound_seconds
        while True:
            sweep.find()
            if not sweep.running or time.monotonic() >= deadline:
                return SweepResult(tuple(sweep.ended), tuple(sweep.running))
            sweep.signal(signal.SIGKILL)
            sweep.await_end(0.1)
    finally:
        sweep.close()


def sweep_leftovers(
    instance_id: str, *, term_grace_seconds: float = 1.0, kill_bound_seconds: float = 2.0
) -> SweepResult:
    """End what an earlier daemon, which had this instance id, left running.

    Blocking, see ``end_marked``. To be called before processes are started under the same id.
    """
    return end_marked(
        f"{instance_id}/",
        term_grace_seconds=term_grace_seconds,
        kill_bound_seconds=kill_bound_seconds,
    )
