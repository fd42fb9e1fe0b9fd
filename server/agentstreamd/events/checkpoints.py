"""Keeps the write-ahead log short, away from the path of appends."""

import logging
import sqlite3
import threading

from .config import EventLogConfig

_log = logging.getLogger(__name__)

_FRAME_HEADER_BYTES = 24


class Checkpointer:
    """Copies the write-ahead log into the database, in a thread with its own connection.

    A passive checkpoint disturbs nobody, but under constant writes it never gets to the end, and
    the file grows. So past the bound the writer itself finishes the rest, which is small by then,
    and starts the file anew.
    """

    def __init__(
        self, connection: sqlite3.Connection, writer: sqlite3.Connection, config: EventLogConfig
    ) -> None:
        """Takes a connection for the thread, the writer's own, and the bounds."""
        self._connection = connection
        self._writer = writer
        self._config = config
        self._page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
        self._lock = threading.Lock()  # SQLite refuses a second checkpoint instead of waiting
        self._due = threading.Event()
        self._stopping = False
        self._fresh = 0  # bytes written since the thread was last woken
        self._written = 0  # bytes written ever; only the writer counts it
        self._emptied = 0  # what of them is no longer in the write-ahead log, at least
        self._ripe = False
        self._thread = threading.Thread(target=self._run, name="events-checkpoint", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits for it."""
        self._stopping = True
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()

    def written(self, payload: int, rows: int = 1) -> None:
        """Called by the writer after a commit of `payload` bytes in `rows` rows."""
        # A commit writes whole pages, and part of the way down the tree.
        size = payload + 2 * self._page_bytes * rows
        self._fresh += size
        self._written += size
        if self._fresh >= self._config.checkpoint_bytes:
            self._fresh = 0
            self._due.set()
        if self._ripe or self._size() >= self._config.wal_bytes:
            self._ripe = False
            with self._lock:
                self._checkpoint(self._writer, "PASSIVE")
                if self._size() >= self._config.wal_bytes // 2:
                    self._checkpoint(self._writer, "RESTART")

    def _run(self) -> None:
        while self._due.wait() and not self._stopping:
            self._due.clear()
            with self._lock:
                self._checkpoint(self._connection, "PASSIVE")
                # Now little is left to copy: the best moment for the writer to finish.
                self._ripe = self._size() >= self._config.wal_bytes // 2

    def _size(self) -> int:
        return self._written - self._emptied

    def _checkpoint(self, connection: sqlite3.Connection, mode: str) -> None:
        before = self._written  # the writer goes on meanwhile
        try:
            busy, frames, _copied = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            # What is committed is safe in the write-ahead log. Tried again a while later.
            _log.warning("checkpoint of the event log failed: %s", error)
            size = self._config.wal_bytes - self._config.checkpoint_bytes
        else:
            # When all is copied (and nobody reads the rest) the next commit begins at the start.
            restarts = mode == "RESTART" and not busy
            size = 0 if restarts else frames * (self._page_bytes + _FRAME_HEADER_BYTES)
        self._emptied = before - size
