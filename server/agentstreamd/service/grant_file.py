"""Files of lines with a name each (a token, a subject) and what it allows; read anew on change."""

import logging
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from .grants import Grant

Grants = Mapping[str, Grant]
_Stamp = tuple[int, int, int, int]
_log = logging.getLogger(__name__)

# Not the group's reading: that is how orchestrators hand secrets to a user who is not root.
_OTHERS_READ, _OTHERS_WRITE = stat.S_IRWXO, stat.S_IWGRP | stat.S_IWOTH


class GrantFileError(Exception):
    """The file can't be used. `str(error)` is a sentence for people."""


class GrantFile:
    """A file of grants, as it is now.

    To start with, it must be right as a whole. Later what stands in it counts, and nothing else: a
    line that can't be read gives nothing, so that neither a slip nor an emptied file leaves in
    force what was taken out. Only while there is no file to be read does what it held before stay:
    that is how it looks while it is being replaced.
    """

    def __init__(
        self, path: Path, what: str, entry: str, check_name: Callable[[str], str], *, secret: bool
    ) -> None:
        """Read the file. Raises GrantFileError.

        Args:
            path: Where it is.
            what: What it is called in messages: "token file".
            entry: What a line names: "token".
            check_name: Gives a line's name; raises ValueError, a phrase.
            secret: Nobody else may read it, and no message holds a word of it.
        """
        self._path = path
        self._title = f"{what} {path}"
        self._entry = entry
        self._check_name = check_name
        self._private = _OTHERS_READ | _OTHERS_WRITE if secret else _OTHERS_WRITE
        self._warned: str | None = None
        # Before the file is read: a change meanwhile must be seen at the next call.
        self._seen = _stamp(path)
        found, faults = self._parse(self._read())
        if faults:
            raise GrantFileError(faults[0])
        self._grants = found

    def grants(self) -> Grants:
        """What it allows now, by name."""
        stamp = _stamp(self._path)
        if stamp is not None and stamp == self._seen:
            return self._grants
        try:
            text = self._read()
        except GrantFileError as error:
            # Not remembered as seen: it is tried again at each call, until it can be read.
            if self._warned != str(error):
                self._warned = str(error)
                _log.error("%s What it held before stays in force.", error)
            return self._grants
        self._seen, self._warned = stamp, None
        self._grants, faults = self._parse(text)
        if faults:
            for fault in faults:
                _log.error("%s What can't be read allows nothing.", fault)
        else:
            _log.info("read the %s anew", self._title)
        return self._grants

    def _read(self) -> str:
        try:
            with self._path.open(encoding="ascii", errors="surrogateescape") as file:
                return file.read()
        except OSError as error:
            raise GrantFileError(f"The {self._title} can't be read: {error.strerror}.") from error

    def _parse(self, text: str) -> tuple[Grants, list[str]]:
        """What the lines allow, and a sentence for each that is wrong."""
        self._warn_of_mode()
        found: dict[str, Grant] = {}
        faults = []
        twice = set()
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            # Never a word of the line itself: it may be part of a secret.
            try:
                name, grant = self._check_name(words[0]), Grant.parse(words[1:])
            except ValueError as error:
                faults.append(f"Line {number} of the {self._title} {error}.")
                continue
            if name in found:
                twice.add(name)
            found[name] = grant
        if twice:
            # Which of the lines was meant can't be told.
            faults.append(f"The {self._title} holds a {self._entry} twice.")
        grants = {name: grant for name, grant in found.items() if name not in twice}
        if not grants and not faults:
            faults.append(f"The {self._title} holds no {self._entry}.")
        return grants, faults

    def _warn_of_mode(self) -> None:
        try:
            mode = self._path.stat().st_mode
        except OSError:
            return
        if mode & self._private:
            did = "read or change" if mode & _OTHERS_READ & self._private else "change"
            _log.warning(
                "the %s has mode %03o: other users can %s it",
                self._title,
                stat.S_IMODE(mode),
                did,
            )


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
