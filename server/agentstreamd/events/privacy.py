"""What the daemon stores is for its user alone: narrows what others could get at, or refuses it."""

import os
import stat
from pathlib import Path

from .errors import OpenToOthers

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(path: Path) -> None:
    """Takes the rights of group and others off a file or directory.

    Where there is nothing of this name, does nothing.

    Raises:
        OpenToOthers: it isn't ours, or it is a directory that is meant to be shared: narrowing
            one like that would lock its other users out.
        OSError: its mode can't be read or changed.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not found.st_mode & _OTHERS:
        return
    if found.st_uid != os.geteuid():
        raise OpenToOthers(str(path), "it belongs to another user")
    if found.st_mode & stat.S_ISVTX:
        raise OpenToOthers(str(path), "it is a shared directory")
    path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
