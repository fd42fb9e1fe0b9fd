"""Walking, signalling and reaping process trees with nothing but /proc and system calls."""

import contextlib
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# A killed process can take a moment to go; passes over the tree repeat at this interval.
KILL_PASS_SECONDS = 0.02
KILL_BOUND_SECONDS = 2.0

HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raise OSError when it fails."""
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """Give state letter, parent's pid and start time (clock ticks since boot); None when gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def children_of(pid: int) -> list[int]:
    """List the children of a process; may miss some that are born or die meanwhile."""
    found: list[int] = []
    if HAS_CHILDREN_FILES:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with (
                    contextlib.suppress(OSError),
                    open(f"/proc/{pid}/task/{thread}/children", "rb") as file,
                ):
                    found.extend(map(int, file.read().split()))
        return found
    for name in os.listdir("/proc"):  # a kernel without CONFIG_PROC_CHILDREN
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None and stat[1] == pid:
                found.append(int(name))
    return found


def descendants_of(pid: int, skip: frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """List (pid, parent's pid) of all descendants, parents first, without the subtrees in skip."""
    tree: list[tuple[int, int]] = [(child, pid) for child in children_of(pid) if child not in skip]
    seen = {child for child, _ in tree}
    for parent, _ in tree:  # grows while it is walked
        for child in children_of(parent):
            if child not in seen:
                seen.add(child)
                tree.append((child, parent))
    return tree


def signal_descendant(pid: int, parent: int, *signals: int) -> bool:
    """Signal a process only while it is a child of parent or of this process.

    The pidfd is opened before the check, so a pid that was given to a stranger in between is
    never hit.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = stat_of(pid)
        if stat is None or stat[0] in "ZX" or stat[1] not in (parent, os.getpid()):
            return False
        for number in signals:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def watch_children() -> int:
    """Arrange that the end of a child makes the returned descriptor readable."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def drain(descriptor: int) -> None:
    """Forget the wake-ups that were written so far."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 512):
            pass


def set_name(name: str) -> None:
    """Set the name that ps shows (15 bytes)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)
