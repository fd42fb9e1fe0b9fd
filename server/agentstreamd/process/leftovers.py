"""Finding and ending processes by what they are, never by a bare process id.

A process is identified by its id, its start time and the marker in its environment
(``AGENTSTREAM_PROCESS=<instance id>/<process id>``), which its descendants inherit.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def _opened(who: ProcessIdentity) -> Iterator[int | None]:
    """Open a pidfd of exactly this process; None when it is gone."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        yield None
        return
    try:
        # Checked after the handle was opened: from here on it can't become another process.
        yield handle if identify(who.pid) == who else None
    finally:
        os.close(handle)


def signal_process(who: ProcessIdentity, *signals: int) -> bool:
    """Signal exactly this process; False when it is gone, whoever has its id now."""
    with _opened(who) as handle:
        if handle is None:
            return False
        try:
            for number in signals:
                signal.pidfd_send_signal(handle, number)
        except OSError:
            return False
        return True


def _await_end(processes: list[ProcessIdentity], deadline: float) -> None:
    """Block until all of them ended or time.monotonic() reaches the deadline."""
    for who in processes:
        with _opened(who) as handle:
            remaining = deadline - time.monotonic()
            if handle is not None and remaining > 0:
                poller = select.poll()
                poller.register(handle, select.POLLIN)
                poller.poll(remaining * 1000)


def end_marked(
    prefix: str, *, term_grace_seconds: float = 1.0, kill_bound_seconds: float = 2.0
) -> SweepResult:
    """End all processes whose marker begins with prefix: TERM, the grace, KILL until none is left.

    Blocks for at most the two times together (a thread is the place to call it). A grace of 0
    kills at once.
    """
    seen: dict[ProcessIdentity, None] = dict.fromkeys(find_marked(prefix))
    if seen and term_grace_seconds > 0:
        for who in seen:
            signal_process(who, signal.SIGTERM, signal.SIGCONT)
        _await_end(list(seen), time.monotonic() + term_grace_seconds)
    deadline = time.monotonic() + kill_bound_seconds
    while True:
        found = find_marked(prefix)
        seen.update(dict.fromkeys(found))
        if not found or time.monotonic() >= deadline:
            break
        for who in found:
            signal_process(who, signal.SIGKILL)
        _await_end(found, min(deadline, time.monotonic() + 0.1))
    return SweepResult(tuple(who for who in seen if who not in found), tuple(found))


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
