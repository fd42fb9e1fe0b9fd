"""Whether the files of a log belong together and are all there, before SQLite looks at them.

It would begin anew without a word where they are not, or go on without the end.
"""

import logging
from pathlib import Path

from . import wal
from .errors import LogUnavailable, Reason

_PAGE_SIZE_AT = 16  # offset in the database
_FORMATS_AT = 18
_HEADER_BYTES = 20
_NEVER_IN_USE = b"\x01\x01"  # formats of a database that had no write-ahead log so far

_log = logging.getLogger(__name__)


def require_whole(database: Path, same_boot: bool) -> None:
    """Does nothing where all is well, or can't be told; writes nothing.

    `same_boot` says whether who had the log last ran since the machine was started. Must be asked
    before a connection is made.

    Raises:
        LogUnavailable: something is missing, or is of another log.
    """
    log = wal_of(database)
    if not size(database):
        raise LogUnavailable(Reason.CORRUPT, f"{database} is empty")
    with database.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    # SQLite would write the newer pages of one log into the copy of another.
    if size(log) and header[_FORMATS_AT:] == _NEVER_IN_USE:
        raise LogUnavailable(Reason.CORRUPT, f"{log} is not of the backup that was put beside it")
    page = int.from_bytes(header[_PAGE_SIZE_AT:_FORMATS_AT], "big")
    # A checkpoint onto a full disk may leave a part of a page, but keeps the write-ahead log.
    if size(database) % (page if page > 1 else 65536) and not size(log):  # 1 stands for 65536
        raise LogUnavailable(Reason.CORRUPT, f"{database} is cut short")
    if not wal.is_cut(database):
        return
    if same_boot:
        raise LogUnavailable(Reason.CORRUPT, f"commits are missing at the end of {log}")
    # A power cut does that to a log that isn't synchronous, and who starts anew knows of it.
    _log.warning("commits are missing at the end of the write-ahead log: the newest are lost")


def wal_of(database: Path) -> Path:
    """Gives the path of the write-ahead log of `database`."""
    return Path(f"{database}-wal")


def size(path: Path) -> int:
    """Gives the size of a file in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
