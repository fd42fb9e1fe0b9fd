"""What the event loop asks of the writer thread, and what it gets back."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .frames import Chunk


@dataclass(slots=True, kw_only=True)
class Job:
    """Something to do in one transaction, alone or with others.

    Attributes:
        session_id: the session it is about.
        future: resolved on the event loop, with `result` or `error`.
        size: bytes it takes of the queue.
        epoch: how many failed commits the event loop knew of when it was asked for.
        asked: when it was asked for, by the event loop's clock.
        result: set by the writer.
        error: set by the writer where the job failed; then nothing of it was stored.
    """

    session_id: str
    future: asyncio.Future[int]
    size: int = 0
    epoch: int = 0
    asked: float = 0.0
    result: int = 0
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class AppendJob(Job):
    """Appends `chunks` after `expected`, and changes the session's state and blobs."""

    expected: int
    chunks: list[Chunk]
    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: Sequence[str] = ()
    blobs: Sequence[tuple[str, bytes]] = ()


@dataclass(slots=True, kw_only=True)
class CreateJob(AppendJob):
    """Creates the session, then does what an append does."""

    uid: str


@dataclass(slots=True, kw_only=True)
class DeleteJob(Job):
    """Deletes the session."""


@dataclass(slots=True, kw_only=True)
class CompactJob(Job):
    """Drops chunks whose events are all before `before`; with `uid`, only of that session."""

    before: int
    uid: str = ""


@dataclass(slots=True)
class Appended:
    """Events of a session that are durable now; `chunks` may have grown by several jobs."""

    session_id: str
    uid: str
    key: int
    earliest: int
    chunks: list[Chunk]


@dataclass(slots=True)
class Deleted:
    """A session that is gone."""

    session_id: str


@dataclass(slots=True)
class Compacted:
    """A session whose oldest events are gone."""

    session_id: str
    earliest: int


Change = Appended | Deleted | Compacted


@dataclass(slots=True)
class Outcome:
    """What a commit did: its jobs, each with result or error, and the changes in order.

    `epoch` counts the commits that failed so far.
    """

    jobs: Sequence[Job]
    changes: Sequence[Change]
    epoch: int
