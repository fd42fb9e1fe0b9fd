"""Whether the write-ahead log still has what was committed to it.

SQLite takes a write-ahead log up to its last whole commit and says nothing of what follows: after
a kill that is right, as what is incomplete was never acknowledged. But a file that was cut short
later looks the same. Its index, which is shared memory in a file, tells them apart: it says how
many frames were committed. The format is described in SQLite's documentation (walformat).
"""

import os
import struct
from pathlib import Path

_HEADER = struct.Struct("=III B B H II 2I 8s 2I")  # in the byte order of the machine
_HEADER_BYTES = 48
_COPIES = 2  # of the header; they differ while one is being written
_COPIED = struct.Struct("=I")  # frames that a checkpoint brought into the database
_WAL_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24


def is_cut(database: Path) -> bool:
    """Tells whether commits are missing at the end of the write-ahead log of `database`.

    Must be asked before a connection is made, which begins a new index. False where there is no
    index to tell. After a power cut the index may know of commits that never reached the disk.
    """
    index = _read(Path(f"{database}-shm"), 0, _COPIES * _HEADER_BYTES + _COPIED.size)
    if len(index) < _COPIES * _HEADER_BYTES + _COPIED.size:
        return False
    header = index[:_HEADER_BYTES]
    if header != index[_HEADER_BYTES : _COPIES * _HEADER_BYTES]:
        return False
    fields = _HEADER.unpack(header)
    is_made, page, frames, salts = bool(fields[3]), int(fields[5]), int(fields[6]), fields[10]
    copied: int
    (copied,) = _COPIED.unpack_from(index, _COPIES * _HEADER_BYTES)
    sums: tuple[int, int] = fields[8:10]
    if not is_made or copied >= frames:
        return False
    page_bytes = page & 0xFE00 | (page & 1) << 16
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    last_at = _WAL_HEADER_BYTES + (frames - 1) * frame_bytes
    last = _read(Path(f"{database}-wal"), last_at, frame_bytes)
    expected: bytes = salts + struct.pack(">II", *sums)
    return len(last) < frame_bytes or last[8:_FRAME_HEADER_BYTES] != expected


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
