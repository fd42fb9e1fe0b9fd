"""Who may call what: bearer tokens with scopes, from a file."""

import hmac
import logging
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import message, message_factory

from agentstream.v1 import error_pb2, service_pb2

from .errors import CallError

HEADER = "authorization"
ALL = "admin"
_SCHEME = "bearer "
_SESSION = "session:"
_SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]
_Stamp = tuple[int, int, int]
_log = logging.getLogger(__name__)

SCOPES = {
    "read": ("ListAgents", "GetAgent", "ListSessions", "GetSession", "StreamEvents", "ReadBlob"),
    "respond": ("Respond",),
    "run": ("CreateSession", "SendMessage", "InterruptTurn", "UpdateSession", "EndSession"),
    ALL: ("DeleteSession",),
}
"""The calls that each scope allows; `admin` allows those of all others, too."""

_SCOPE_OF = {f"/{_SERVICE.full_name}/{m}": scope for scope, ms in SCOPES.items() for m in ms}
# Not the group's reading: that is how orchestrators hand secrets to a user who is not root.
_OF_OTHERS = stat.S_IRWXO | stat.S_IWGRP
# What a token for one session may call although it names none: it tells nothing of others.
_OF_NO_SESSION = frozenset({"ListAgents", "GetAgent"})


class TokenError(Exception):
    """The token file can't be used. `str(error)` is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows.

    Attributes:
        scopes: Keys of `SCOPES`.
        session_id: The one session it is for; empty for all.
    """

    scopes: frozenset[str] = frozenset({ALL})
    session_id: str = ""

    def check(self, path: str, request: Any) -> None:
        """Raise PERMISSION_DENIED unless a call with this request, serialized, is allowed.

        Calls of other services, such as reflection, need a token, but no scope.
        """
        scope = _SCOPE_OF.get(path)
        if scope is None:
            return
        if not self.scopes & {scope, ALL}:
            raise _missing(scope, f"the token has not the scope {scope!r}, which this call needs")
        method = path.rpartition("/")[2]
        if not self.session_id or method in _OF_NO_SESSION:
            return
        if _session_in(method, request) != self.session_id:
            raise _missing("session", "the token is for another session")


class TokenAuth:
    """Checks the bearer tokens of calls.

    Those of a file are read again when it changes, at the next call. A file that can't be used
    leaves the tokens of before in force, and is told of in the log.
    """

    def __init__(self, grants: Sequence[tuple[str, Grant]]) -> None:
        """Each token with what it allows."""
        self._path: Path | None = None
        self._seen: _Stamp | None = None
        self._take(grants)

    def _take(self, grants: Sequence[tuple[str, Grant]]) -> None:
        self._grants = [(token.encode(), grant) for token, grant in grants]

    @classmethod
    def from_file(cls, path: Path) -> "TokenAuth":
        """Read the tokens: one in a line, then its scopes; none for all. Raises TokenError."""
        # Before the file is read: a change meanwhile must be seen at the next call.
        seen = _stamp(path)
        auth = cls(cls._read(path))
        auth._path, auth._seen = path, seen
        return auth

    def _refresh(self) -> None:
        if self._path is None:
            return
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._take(self._read(self._path))
        except TokenError as error:
            _log.error("%s The tokens of before stay.", error)
        else:
            _log.info("read the token file %s anew", self._path)

    @staticmethod
    def _read(path: Path) -> list[tuple[str, Grant]]:
        try:
            lines = path.read_text("utf-8").splitlines()
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise TokenError(f"The token file {path} can't be read: {reason}.") from error
        if mode & _OF_OTHERS:
            _log.warning(
                "the token file %s has mode %03o: other users can read or change it",
                path,
                stat.S_IMODE(mode),
            )
        grants: list[tuple[str, Grant]] = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            # Never a word of the line itself: it may be part of a token.
            try:
                grants.append((_token(words[0]), _grant(words[1:])))
            except ValueError as error:
                raise TokenError(f"Line {number} of the token file {path} {error}.") from error
        if not grants:
            raise TokenError(f"The token file {path} holds no token.")
        if len({token for token, _ in grants}) < len(grants):
            raise TokenError(f"The token file {path} holds a token twice.")
        return grants

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> Grant:
        """What the call's token allows. Raises UNAUTHENTICATED."""
        self._refresh()
        for key, value in metadata:
            if key == HEADER and isinstance(value, str) and value[:7].lower() == _SCHEME:
                given = value[7:].strip().encode()
                # Takes the same time for every wrong token, so that none can be guessed bit by bit.
                found = [
                    grant for token, grant in self._grants if hmac.compare_digest(given, token)
                ]
                if found:
                    return found[0]
                raise _refused("the bearer token is wrong")
        raise _refused("a bearer token is required in the metadata key authorization")


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _token(word: str) -> str:
    if not word.isascii() or not word.isprintable():
        raise ValueError("begins with no token: it must be printable ASCII")
    return word


def _grant(words: Sequence[str]) -> Grant:
    sessions = [word.removeprefix(_SESSION) for word in words if word.startswith(_SESSION)]
    scopes = frozenset(word for word in words if not word.startswith(_SESSION))
    if not scopes <= SCOPES.keys():
        known = ", ".join((*SCOPES, f"{_SESSION}ID"))
        raise ValueError(f"has a scope that there is not; there are {known}")
    if len(sessions) > 1 or "" in sessions:
        raise ValueError(f"may have one {_SESSION}ID")
    return Grant(scopes or frozenset({ALL}), "".join(sessions))


def _session_in(method: str, request: Any) -> str:
    """The session that a request names; empty where it names none, or can't be read."""
    made: Any = message_factory.GetMessageClass(_SERVICE.methods_by_name[method].input_type)()
    try:
        made.ParseFromString(request)
    except (message.DecodeError, TypeError):
        return ""
    return str(getattr(made, "session_id", ""))


def _missing(scope: str, text: str) -> CallError:
    return CallError(error_pb2.ERROR_REASON_SCOPE_MISSING, text, {"scope": scope})


def _refused(text: str) -> CallError:
    return CallError(error_pb2.ERROR_REASON_UNAUTHENTICATED, text)
