"""What to start, how it is ended, and how it ended."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """The time that each step of a stop takes at most, in seconds.

    First the polite step (if any), then TERM to the process, then KILL to its whole tree. What the
    process leaves running when it ends gets TERM, ``sweep_grace_seconds``, then KILL.
    """

    polite_grace_seconds: float = 5.0
    term_grace_seconds: float = 2.0
    sweep_grace_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse times below zero."""
        if min(self.polite_grace_seconds, self.term_grace_seconds, self.sweep_grace_seconds) < 0:
            raise ValueError("the times of a stop policy can't be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process to start.

    ``argv[0]`` is looked up in the PATH of ``env`` unless it holds a slash; no shell is involved.
    ``env`` is the complete environment: nothing is inherited, and only AGENTSTREAM_PROCESS is
    added. ``cwd`` is absolute. ``label`` names the process in logs. Strings may hold
    surrogate-escaped bytes. Raises ValueError for what no process can be started with.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    label: str = ""
    umask: int = 0o022
    start_timeout_seconds: float = 30.0
    stderr_head_bytes: int = 16 * 2**10
    stderr_tail_bytes: int = 48 * 2**10
    stop: StopPolicy = field(default_factory=StopPolicy)

    def __post_init__(self) -> None:
        """Refuse what no process can be started with."""
        if not self.argv or not self.argv[0]:
            raise ValueError("argv must name a program")
        if not self.cwd.startswith("/"):
            raise ValueError("cwd must be an absolute path")
        if any("\0" in text for text in (*self.argv, self.cwd, *self.env, *self.env.values())):
            raise ValueError("argv, cwd and env can't hold NUL characters")
        if any(not name or "=" in name for name in self.env):
            raise ValueError("names in env can't be empty or hold '='")
        object.__setattr__(self, "env", dict(self.env))


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: exactly one of exit code and signal number is set.

    ``supervision_lost``: its keeper was killed, which kills the process; the status is assumed.
    """

    code: int | None = None
    signal: int | None = None
    supervision_lost: bool = False

    def __str__(self) -> str:
        """Say it in words, as in "exit code 1" or "signal SIGKILL"."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = str(self.signal)
        return f"signal {name}"
