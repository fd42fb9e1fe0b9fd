"""What a process that sessions may share leaves on standard error, and whom it is told."""

import logging
from typing import Protocol

_log = logging.getLogger(__name__)
_LOGGED_CHARACTERS = 4000


class Stderr(Protocol):
    """A sample of standard error."""

    def head(self) -> str:
        """The beginning."""

    def tail(self) -> str:
        """The end, where that is not in the beginning already."""

    def text(self) -> str:
        """Both, in one."""


class LastWords:
    """Standard error of one process. Whose words are whose can't be told.

    So a session gets them only where no other has used the process: else it might get what the
    agent said of another's work. Then they go to the daemon's log.
    """

    def __init__(self, stderr: Stderr) -> None:
        self._stderr = stderr
        self._session = ""
        self.shared = False

    def used_by(self, session: str) -> None:
        """A session, by an id that no other ever has, uses the process."""
        self.shared = self.shared or self._session not in ("", session)
        self._session = session

    def head(self) -> str:
        """The beginning; empty where it might be another session's."""
        return "" if self.shared else self._stderr.head()

    def tail(self) -> str:
        """The end, likewise."""
        return "" if self.shared else self._stderr.tail()

    def last_line(self, characters: int) -> str:
        """The last line that holds something, cut to a length; likewise."""
        lines = [] if self.shared else self._stderr.text().splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:characters] if said else ""

    def log(self, process: str) -> None:
        """Put them into the daemon's log where no session gets them."""
        said = self._stderr.text().strip() if self.shared else ""
        if said:
            extra = {"stderr": said[-_LOGGED_CHARACTERS:]}
            _log.warning("%s, which several sessions shared, has ended", process, extra=extra)
