"""Cutting a byte stream into lines: pure, synchronous, constant work per byte."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """A line longer than the limit, of which only the beginning was kept.

    ``length`` is the whole line's length in bytes, without its line feed.
    """

    head: bytes
    length: int


Line = bytes | OversizedLine


class LineFramer:
    r"""Splits chunks into lines at ``\n`` bytes and nowhere else.

    Lines come without their line feed and without one carriage return before it. A line of more
    than ``max_line_bytes`` (a carriage return counted) becomes an OversizedLine with its first
    ``oversized_head_bytes``; framing goes on after it. How the stream is cut into chunks never
    changes the lines.
    """

    def __init__(
        self,
        max_line_bytes: int = 64 * 2**20,
        *,
        oversized_head_bytes: int = 64 * 2**10,
        skip_empty: bool = False,
    ) -> None:
        self._max = max_line_bytes
        self._head = min(oversized_head_bytes, max_line_bytes)
        self._skip_empty = skip_empty
        # The line that has begun. bytearray grows by a factor, so appending is constant per byte.
        self._pending = bytearray()
        # Its length so far; more than len(_pending) once the line is known to be too long.
        self._length = 0

    def feed(self, chunk: bytes) -> list[Line]:
        """Take in a chunk and give the lines that it completes."""
        parts: list[bytes] = chunk.split(b"\n")
        tail = parts.pop()
        if not parts:
            self._extend(tail)
            return []
        lines: list[Line]
        if self._length or len(chunk) > self._max:
            self._extend(parts[0])
            lines = [self._take()]
            if len(chunk) > self._max:
                for part in parts[1:]:
                    self._extend(part)
                    lines.append(self._take())
            else:
                lines += parts[1:]
        else:
            lines = list(parts)
        if tail:
            self._extend(tail)
        # The first line's carriage return may stand in the chunk before, its line feed in this.
        if b"\r\n" in chunk or chunk.startswith(b"\n"):
            lines = [
                line[:-1] if isinstance(line, bytes) and line.endswith(b"\r") else line
                for line in lines
            ]
        if self._skip_empty and b"" in lines:
            lines = [line for line in lines if line != b""]
        return lines

    def finish(self) -> list[Line]:
        """Give the last line where the stream ended without a line feed, and start afresh."""
        return [self._take()] if self._length else []

    def _extend(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._max:
            self._pending += part
        else:
            if len(self._pending) < self._head:
                self._pending += part[: self._head - len(self._pending)]
            elif len(self._pending) > self._head:
                # A fresh buffer: cutting the old one would keep its memory.
                self._pending = self._pending[: self._head]

    def _take(self) -> Line:
        length, self._length = self._length, 0
        pending, self._pending = self._pending, bytearray()
        if length > self._max:
            return OversizedLine(bytes(pending), length)
        return bytes(pending)
