"""Who is at the other end of a connection: the subject of a certificate, or an address."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .grant_file import GrantFile
from .grants import missing

_AUTHENTICATED = "x509_pem_cert"
# What gRPC calls them. A name of one kind can't pass for one of another: only a URI holds "://".
_URI, _DNS, _COMMON_NAME = "peer_uri", "peer_dns", "x509_common_name"
_ALTERNATIVE_NAME = "x509_subject_alternative_name"


def subjects(context: Any) -> tuple[str, ...]:
    """The names of the client's certificate, which its authority vouches for.

    URIs (SPIFFE ids) first, then DNS names; the common name only where it has no alternative name.
    Empty for a client without a certificate, or one without a name.
    """
    held: Mapping[str, Iterable[bytes]] = context.auth_context() or {}
    if _AUTHENTICATED not in held:
        return ()
    found = [*_texts(held.get(_URI, ()), "://"), *_texts(held.get(_DNS, ()), "", "://")]
    if not found and not held.get(_ALTERNATIVE_NAME):
        found = _texts(held.get(_COMMON_NAME, ()), "", "://")
    return tuple(found)


def _texts(values: Iterable[bytes], holds: str, lacks: str | None = None) -> list[str]:
    texts = [value.decode("utf-8", "replace") for value in values]
    return [one for one in texts if one and holds in one and (lacks is None or lacks not in one)]


def address(context: Any) -> str:
    """The address of the other end without its port, which is another for each connection."""
    peer = str(context.peer())
    return peer if peer.startswith("unix:") else peer.rpartition(":")[0]


class ClientScopes:
    """What clients may do by the subjects of their certificates, from a file."""

    def __init__(self, path: Path) -> None:
        """Read the file: a subject in a line, then its scopes. Raises GrantFileError."""
        self._file = GrantFile(path, "client scopes file", "subject", _subject, secret=False)

    def check(self, context: Any, path: str, request: Any) -> None:
        """Raise PERMISSION_DENIED unless the client of a TLS connection may make the call.

        Others have no certificate: a unix socket lets in its owner alone.
        """
        if address(context).startswith("unix:"):
            return
        grants = self._file.grants()
        found = [grants[name] for name in subjects(context) if name in grants]
        if not found:
            raise missing("certificate", "no scopes are listed for the client's certificate")
        found[0].check(path, request, "client's certificate")


def _subject(word: str) -> str:
    if not word.isascii() or not word.isprintable():
        raise ValueError("begins with no subject: it must be printable ASCII")
    return word
