"""Whether the write-ahead log still has what was committed to it.

SQLite takes a write-ahead log up to its last whole commit and says nothing of what follows: after
a kill that is right, as what is incomplete was never acknowledged. But a file that was damaged
later looks the same. Its index, which is shared memory in a file, tells them apart: it says how
many frames were committed. The formats are described in SQLite's documentation (walformat).
"""

import os
import struct
from pathlib import Path

_INDEX_HEADER = struct.Struct("=III B B H II 2I 8s 2I")  # in the byte order of the machine
_COPIES = 2  # of the header; they differ while one is being written
_COPIED = struct.Struct("=I")  # frames that a checkpoint brought into the database
_INDEX_BYTES = _COPIES * _INDEX_HEADER.size + _COPIED.size
_HEADER_BYTES = 32
_HEADER_SUMS_AT = 24
_FRAME_HEADER_BYTES = 24
_SUMMED_BYTES = 8  # of a frame's header; salts follow, then the sums
_SUMS_AT = 16
_SUMS = struct.Struct(">II")
_FRAMES = 64  # looked at; all of a long file would keep the start waiting


def is_cut(database: Path) -> bool:
    """Tells whether commits are missing at the end of the write-ahead log of `database`.

    Must be asked before a connection is made, which begins a new index. False where there is no
    index to tell. After a power cut the index may know of commits that never reached the disk.
    """
    index = _read(Path(f"{database}-shm"), 0, _INDEX_BYTES)
    header, copy = index[: _INDEX_HEADER.size], index[_INDEX_HEADER.size : -_COPIED.size]
    if len(index) < _INDEX_BYTES or header != copy:
        return False
    fields = _INDEX_HEADER.unpack(header)
    is_made, is_big, page, frames = fields[3], bool(fields[4]), int(fields[5]), int(fields[6])
    (copied,) = _COPIED.unpack_from(index, len(index) - _COPIED.size)
    if not is_made or copied >= frames:
        return False
    sums, salts = fields[8:10], fields[10]
    frame_bytes = _FRAME_HEADER_BYTES + (page & 0xFE00 | (page & 1) << 16)
    first = max(0, frames - _FRAMES)
    before_at = first and _HEADER_BYTES + (first - 1) * frame_bytes + _SUMS_AT
    log = Path(f"{database}-wal")
    before = _read(log, before_at or _HEADER_SUMS_AT, _SUMS.size)
    content = _read(log, _HEADER_BYTES + first * frame_bytes, (frames - first) * frame_bytes)
    if len(content) < (frames - first) * frame_bytes:
        return True
    reached = _SUMS.unpack(before)
    for at in range(0, len(content), frame_bytes):
        frame = content[at : at + frame_bytes]
        reached = _add(reached, frame[:_SUMMED_BYTES], is_big)
        reached = _add(reached, frame[_FRAME_HEADER_BYTES:], is_big)
        if frame[_SUMMED_BYTES:_FRAME_HEADER_BYTES] != salts + _SUMS.pack(*reached):
            return True
    return bool(reached != sums)


def _add(sums: tuple[int, int], data: bytes, is_big: bool) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{'>' if is_big else '<'}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
