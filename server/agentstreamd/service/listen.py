"""Where the server listens: addresses, and what must be true before one is opened."""

import contextlib
import ipaddress
import logging
import os
import re
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
_UNIX = "unix:"
_MAX_UNIX_PATH_BYTES = 107  # what the kernel's sockaddr_un holds, without its NUL
_TCP = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})")


class ListenError(Exception):
    """The server can't listen there. `str(error)` is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on.

    Attributes:
        host: Host name or IP address, without brackets; empty for a unix socket.
        port: TCP port, 0 for one that the system picks; 0 for a unix socket.
        path: Path of the unix socket; None for TCP.
    """

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `[v6]:port` or `unix:PATH`. Raises ValueError, a phrase."""
        if text.startswith(_UNIX):
            path = text.removeprefix(_UNIX).removeprefix("//")
            if not path:
                raise ValueError("must name a path after unix:")
            absolute = Path(path).absolute()
            if len(os.fsencode(absolute)) > _MAX_UNIX_PATH_BYTES:
                raise ValueError(f"must be a path of at most {_MAX_UNIX_PATH_BYTES} bytes")
            return cls(path=absolute)
        match = _TCP.fullmatch(text)
        if match is None or int(match["port"]) > 0xFFFF:
            raise ValueError("must be host:port, [v6-address]:port or unix:PATH")
        return cls(host=match["six"] or match["host"] or "0.0.0.0", port=int(match["port"]))

    def __str__(self) -> str:
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Nobody on another machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check_free(self) -> None:
        """Raise ListenError where the address can't be had; remove a unix socket that is stale.

        gRPC takes a unix socket away from whoever serves it, and says of a port no more than that
        it did not work, so this is found out before.
        """
        if self.path is not None:
            _clear(self.path)
            return
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, where in found:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(where)
        except (OSError, UnicodeError) as error:
            raise ListenError(f"Can't listen on {self}: {_reason(error)}.") from error


def open_socket(path: Path, bind: Callable[[], object]) -> None:
    """Have `bind` make a unix socket that nobody but its owner can connect to, at no moment.

    The kernel lets in who may write to the socket: with mode 0600 its owner, and root. Raises
    ListenError where it came out otherwise, and what `bind` raises.
    """
    # Of the whole process, but for so long only, and while nothing else makes files.
    before = os.umask(0o177)
    try:
        bind()
    finally:
        os.umask(before)
    try:
        made = path.lstat()
    except OSError as error:
        raise ListenError(f"Can't listen on unix:{path}: {_reason(error)}.") from error
    if not stat.S_ISSOCK(made.st_mode) or made.st_mode & 0o177 or made.st_uid != os.geteuid():
        raise ListenError(f"Can't listen on unix:{path}: other users could connect to it.")
    where = path.parent.stat()
    shared = where.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not where.st_mode & stat.S_ISVTX
    if shared or where.st_uid not in (0, os.geteuid()):
        _log.warning(
            "other users can write to %s: they can put a socket of theirs in the place of %s",
            path.parent,
            path.name,
        )


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ListenError(
                f"Can't listen on unix:{path}: {path.parent} is not a directory."
            ) from None
        return
    except OSError as error:
        raise ListenError(f"Can't listen on unix:{path}: {_reason(error)}.") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"Can't listen on unix:{path}: it exists and is not a socket.")
    if found.st_uid != os.geteuid():
        raise ListenError(f"Can't listen on unix:{path}: it exists and is another user's.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        except OSError as error:
            raise ListenError(f"Can't listen on unix:{path}: {_reason(error)}.") from error
        else:
            raise ListenError(f"Can't listen on unix:{path}: another process serves it.")


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).rstrip(".")
