"""The thread that writes: one commit for all that queued up while the last one ran."""

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable

from .checkpoints import Checkpointer
from .config import EventLogConfig
from .errors import EventLogError, LogUnavailable, unavailable
from .garbage import collect, has_garbage
from .jobs import AppendJob, CompactJob, Job, Outcome
from .transaction import Memory, Transaction

_log = logging.getLogger(__name__)

# Garbage is cleared away in steps: when there was nothing to commit for a while, and now and then
# while there always is.
_REST = 0.002  # seconds
_COMMITS_PER_STEP = 16


class Writer:
    """Takes jobs in any number, commits them in order, and tells of the outcome.

    Once a commit failed, all jobs asked for before that was told fail with it: a caller that
    has several appends in flight gets the one reason for all of them, never a gap.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        config: EventLogConfig,
        deliver: Callable[[Outcome], None],
        finish: Callable[[], None],
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        """Takes its connection; `deliver` and `finish` are called in the thread.

        `before_commit` is called before each commit, to slow it down or make it fail in tests.
        """
        self._connection = connection
        self._checkpointer = checkpointer
        self._config = config
        self._deliver = deliver
        self._finish = finish
        self._before_commit = before_commit
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._memory = Memory(connection)
        self._has_garbage = has_garbage(connection)
        self._commits = 0
        self._epoch = 0
        self._failure: LogUnavailable | None = None
        self._held: Job | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="events-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job; never blocks."""
        self._queue.put(job)

    def stop(self) -> None:
        """Lets the thread end after all that is queued."""
        self._queue.put(None)

    def join(self) -> None:
        """Waits for the thread to be gone; short after it called `finish`."""
        self._thread.join()

    def abandoned(self) -> list[Job]:
        """Gives the jobs that the thread left behind; for when it has ended."""
        jobs = [self._held] if self._held else []
        while not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                jobs.append(job)
        return jobs

    def _run(self) -> None:
        try:
            while jobs := self._next_group():
                self._commit(jobs)
                self._commits += 1
                if self._has_garbage and self._commits % _COMMITS_PER_STEP == 0:
                    self._collect()
        finally:
            self._finish()

    def _next_group(self) -> list[Job]:
        """Gives what is queued, at least one job; none when it is time to end."""
        first = self._held or self._wait()
        self._held = None
        if first is None:
            return []
        jobs, size = [first], first.size
        while size < self._config.commit_bytes and not isinstance(first, CompactJob):
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._stopping = True
                break
            if isinstance(job, CompactJob):  # looks at what is committed, so it goes alone
                self._held = job
                break
            jobs.append(job)
            size += job.size
        return jobs

    def _wait(self) -> Job | None:
        if self._stopping:
            return None
        while self._has_garbage:
            try:
                return self._queue.get(timeout=_REST)
            except queue.Empty:
                self._collect()
        return self._queue.get()

    def _commit(self, jobs: list[Job]) -> None:
        transaction = Transaction(self._connection, self._memory, self._config)
        accepted: list[Job] = []
        for job in jobs:
            if job.epoch < self._epoch and self._failure is not None:
                job.error = _again(self._failure)
                continue
            try:
                transaction.add(job)
            except EventLogError as error:
                job.error = error
            except Exception as error:
                job.error = unavailable(error) or error
            else:
                accepted.append(job)
        try:
            if self._before_commit is not None and accepted:
                self._before_commit()
            changes, size = transaction.commit()
        except Exception as error:
            failure = unavailable(error)
            if failure is None and len(accepted) > 1:
                # One of them can't be stored, and must not take the others along.
                self._deliver(Outcome([j for j in jobs if j.error is not None], (), self._epoch))
                for job in accepted:
                    self._commit([job])
                return
            if failure is not None:
                _log.error("commit of the event log failed: %s", failure)
                self._epoch += 1
                self._failure = failure
            for job in accepted:
                job.error = _again(failure) if failure is not None else error
            self._deliver(Outcome(jobs, (), self._epoch))
            return
        self._has_garbage = self._has_garbage or transaction.has_garbage
        self._deliver(Outcome(jobs, changes, self._epoch))
        for job in jobs:
            if isinstance(job, AppendJob):
                job.chunks = []  # the job's future may live longer
        self._checkpointer.written(size, len(changes) or 1)

    def _collect(self) -> None:
        try:
            self._has_garbage = collect(self._connection)
            self._checkpointer.written(0, 16)
        except sqlite3.Error as error:
            # Tried again after the next deletion, or when the log is opened next.
            _log.warning("could not clear deleted events away: %s", error)
            self._has_garbage = False


def _again(failure: LogUnavailable) -> LogUnavailable:
    """Gives the failure as an exception of its own: each awaiter adds its traceback to it."""
    return LogUnavailable(failure.reason, failure.detail)
