"""Child processes: start, standard streams, line framing, and an end that leaves nothing over.

How it works
    ``ProcessHost`` starts one small supervisor program (``supervisor/``) and hands it the pipes of
    every process to start. The supervisor forks a *keeper* per process, which starts the program in
    a session of its own with exactly the given environment, and keeps a channel to the daemon. So
    the daemon itself, with its threads and its gRPC core, never forks, and starting a process does
    not block its event loop.

    Keepers are child sub-reapers of their trees (``PR_SET_CHILD_SUBREAPER``): whatever the process
    forks, also daemons that forked twice and tools that called setsid, stays below its keeper. When
    the process ends, or is stopped, the keeper sweeps what is left: TERM, a grace, KILL until the
    kernel says that there are no children any more.

    Every process carries ``AGENTSTREAM_PROCESS=<instance id>/<process id>`` in its environment,
    which its descendants inherit. Where no keeper is left, processes are found by this marker.
    Processes are signalled through pidfds whose start time, marker or parent was checked after the
    pidfd was opened; a process that merely got a recycled id is never hit.

Guarantees
    * After ``stop`` returned, or ``wait_gone``, nothing of the tree is left.
    * A process that ends by itself has its leftovers ended too, within its ``sweep_grace_seconds``.
    * The daemon is killed with SIGKILL: each tree gets TERM at once and KILL after 1.5 s.
    * A keeper is killed with SIGKILL: the process dies with it (``PR_SET_PDEATHSIG``), the rest is
      killed by the supervisor and, by marker, by the daemon; ``ExitStatus.supervision_lost`` is
      set.
    * The supervisor is killed: starts under way raise SpawnFailed, running processes go on, and the
      next start makes a new supervisor.
    * Standard output is read at the reader's pace (the process waits meanwhile) and can be read to
      its end after the process ended; a descendant that holds it open delays that end only until it
      is swept. Standard error is always read, into a bounded sample. Writes to a process that is
      gone raise ProcessGone.

Limits
    * Linux 5.4 or newer (pidfds), one host per event loop (asyncio or uvloop).
    * Keeper and daemon killed in one blow: descendants live until their marker is swept at the
      daemon's next start (``sweep_leftovers``). Killed together with the supervisor, likewise.
      Descendants that also replaced their environment escape then, and only then.
    * A set-user-id descendant can't be signalled by an unprivileged daemon; it is given up after
      2 s and logged.
    * cgroups are not used: sub-reapers give the same guarantee without needing a delegated,
      writable cgroup v2, which containers seldom have.
    * A keeper costs one process with about 1 MiB of memory of its own, and four descriptors in the
      daemon, whose soft limit of open files is raised (processes get the former limit).
    * Unprivileged daemons with hundreds of processes meet the kernel's pipe-user-pages-soft limit:
      further pipes then hold 8 KiB only, and work more slowly.
"""

from .capture import HeadTail, plain_text
from .child import ChildProcess
from .errors import ProcessError, ProcessGone, SpawnFailed
from .framing import Line, LineFramer, OversizedLine
from .leftovers import MARKER_NAME, ProcessIdentity, SweepResult, signal_process, sweep_leftovers
from .pipes import ChunkReader, StdinWriter
from .spawner import ProcessHost
from .spec import ExitStatus, ProcessSpec, StopPolicy

__all__ = [
    "MARKER_NAME",
    "ChildProcess",
    "ChunkReader",
    "ExitStatus",
    "HeadTail",
    "Line",
    "LineFramer",
    "OversizedLine",
    "ProcessError",
    "ProcessGone",
    "ProcessHost",
    "ProcessIdentity",
    "ProcessSpec",
    "SpawnFailed",
    "StdinWriter",
    "StopPolicy",
    "SweepResult",
    "plain_text",
    "signal_process",
    "sweep_leftovers",
]
