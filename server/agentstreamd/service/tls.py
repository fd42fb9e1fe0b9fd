"""TLS for the server: certificates from files, which may change while it runs."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


class TlsError(Exception):
    """The files can't be used. `str(error)` is a sentence for people."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files are.

    Attributes:
        certificate: The server's certificate chain.
        key: Its private key, not encrypted.
        client_ca: Authorities of clients' certificates; with it every client needs one. None for
            none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Certificates:
    """What the files hold, read again when they change.

    Each connection that begins looks whether they did. Files that can't be used leave what was
    there before in force, and are told of in the log.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files. Raises TlsError."""
        self._files = files
        self._seen = self._stamps()
        self._current = _read(files)

    @property
    def asks_clients(self) -> bool:
        """Whether clients need a certificate."""
        return self._files.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for a port."""
        return grpc.dynamic_ssl_server_credentials(
            self._current, self._fetch, require_client_authentication=self.asks_clients
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        # Called by gRPC, on a thread of its own, for each handshake.
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._current = _read(self._files)
            except TlsError as error:
                _log.error("%s The certificate of before stays.", error)
            else:
                _log.info("read the certificate %s anew", self._files.certificate)
        return self._current

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in _paths(self._files))


def _paths(files: TlsFiles) -> list[Path]:
    found = [files.certificate, files.key]
    return [*found, files.client_ca] if files.client_ca is not None else found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # gRPC says nothing of what is wrong. Without the password the key's would be asked for.
        context.load_cert_chain(files.certificate, files.key, password="")
        client_ca = None
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            client_ca = files.client_ca.read_bytes()
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
    except ssl.SSLError as error:
        names = " and ".join(map(str, _paths(files)))
        raise TlsError(f"{names} are not PEM certificates and an unencrypted key.") from error
    except OSError as error:
        names = ", ".join(map(str, _paths(files)))
        raise TlsError(f"The TLS files {names} can't be read: {error.strerror}.") from error
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=client_ca)
