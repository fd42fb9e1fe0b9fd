"""Who may call: one bearer token for everything."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from agentstream.v1 import error_pb2

from .errors import CallError

HEADER = "authorization"
_SCHEME = "bearer "


class TokenError(Exception):
    """The token file can't be used. `str(error)` is a sentence for people."""


class TokenAuth:
    """Checks the bearer token of calls."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    @classmethod
    def from_file(cls, path: Path) -> "TokenAuth":
        """Read the token: the file's one line. Raises TokenError."""
        try:
            token = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise TokenError(f"The token file {path} can't be read: {reason}.") from error
        if not token or not token.isascii() or any(character.isspace() for character in token):
            raise TokenError(f"The token file {path} must hold one line with one token.")
        return cls(token)

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raise UNAUTHENTICATED unless the call's metadata has the token."""
        for key, value in metadata:
            if key == HEADER and isinstance(value, str) and value[:7].lower() == _SCHEME:
                # Takes the same time for every wrong token, so that it can't be guessed bit by bit.
                if hmac.compare_digest(value[7:].strip().encode(), self._token):
                    return
                raise _refused("the bearer token is wrong")
        raise _refused("a bearer token is required in the metadata key authorization")


def _refused(message: str) -> CallError:
    return CallError(error_pb2.ERROR_REASON_UNAUTHENTICATED, message)
