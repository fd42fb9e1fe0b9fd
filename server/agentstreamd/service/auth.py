"""Bearer tokens: who may call by what the call's metadata holds."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentstream.v1 import error_pb2

from .errors import CallError
from .grant_file import GrantFile, Grants
from .grants import Grant

HEADER = "authorization"
_SCHEME = "bearer "


class TokenAuth:
    """Checks the bearer tokens of calls; those of a file are read again when it changes."""

    def __init__(self, grants: Sequence[tuple[str, Grant]] | GrantFile) -> None:
        """Each token with what it allows."""
        self._file = grants if isinstance(grants, GrantFile) else None
        self._known: Grants | None = None
        self._tokens: list[tuple[bytes, str, Grant]] = []
        if not isinstance(grants, GrantFile):
            self._take(dict(grants))

    @classmethod
    def from_file(cls, path: Path) -> "TokenAuth":
        """Read the tokens: one in a line, then its scopes; none for all. Raises GrantFileError."""
        return cls(GrantFile(path, "token file", "token", _token, secret=True))

    def _take(self, grants: Grants) -> None:
        self._known = grants
        self._tokens = [(token.encode(), _id(token), grant) for token, grant in grants.items()]

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> tuple[str, Grant]:
        """An id of the call's token, the same as long as the token, and what it allows.

        Raises UNAUTHENTICATED.
        """
        if self._file is not None and (grants := self._file.grants()) is not self._known:
            self._take(grants)
        for key, value in metadata:
            if key == HEADER and isinstance(value, str) and value[:7].lower() == _SCHEME:
                given = value[7:].strip().encode()
                # Takes the same time for every wrong token, so that none can be guessed bit by bit.
                found = [one for one in self._tokens if hmac.compare_digest(given, one[0])]
                if found:
                    return found[0][1:]
                raise _refused("the bearer token is wrong")
        raise _refused("a bearer token is required in the metadata key authorization")


def _id(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def _token(word: str) -> str:
    if not word.isascii() or not word.isprintable():
        raise ValueError("begins with no token: it must be printable ASCII")
    return word


def _refused(text: str) -> CallError:
    return CallError(error_pb2.ERROR_REASON_UNAUTHENTICATED, text)
