"""Settings of the sessions layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """Settings of the sessions layer; names say units.

    Attributes:
        state_directory: Where adapters keep files, a folder each.
        agent_environment: The allow-listed environment that agents get.
        allowed_roots: Where sessions' working directories and pictures by path must be; empty for
            anywhere.
        interrupt_grace_seconds: How long an interrupted turn may take to end before the agent is
            stopped.
        idle_agent_seconds: How long a session may be idle before its agent process is stopped; the
            next message starts it again. 0 for never.
        commit_backlog_bytes: How much of a session's events may wait for the log before its agent
            is made to wait.
        max_running_sessions: Sessions with a running turn, at most.
        max_queued_messages: Messages that may wait in one session's queue.
        max_queued_bytes: Bytes that these messages may have, encoded.
    """

    state_directory: Path
    agent_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_roots: tuple[Path, ...] = ()
    interrupt_grace_seconds: float = 10.0
    idle_agent_seconds: float = 900.0
    commit_backlog_bytes: int = 8 * 1024 * 1024
    max_running_sessions: int = 1000
    max_queued_messages: int = 100
    max_queued_bytes: int = 128 * 1024 * 1024
