"""A bounded sample of a text stream: its beginning and its end."""

import codecs
import re

# CSI, OSC (ended by BEL or ST), other escape sequences, then the remaining control characters.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def plain_text(data: bytes) -> str:
    """Decode with replacement and remove terminal escapes and control characters but \\t and \\n.

    What is left can be printed on anyone's terminal.
    """
    return _CONTROL.sub("", data.decode("utf-8", "replace"))


class HeadTail:
    """Keeps the first ``head_bytes`` and the last ``tail_bytes`` of what is added."""

    def __init__(self, head_bytes: int = 16 * 2**10, tail_bytes: int = 48 * 2**10) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take in the next bytes."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) > self._tail_bytes:
            data = data[-self._tail_bytes :] if self._tail_bytes else b""
        self._tail += data
        # Cut only now and then: deleting at the front on every call would copy the tail each time.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes or None]

    @property
    def omitted_bytes(self) -> int:
        """The number of bytes between head and tail that were not kept."""
        return self.total_bytes - len(self._head) - min(len(self._tail), self._tail_bytes)

    def head(self) -> str:
        """Give the beginning as plain text; everything, where nothing was left out."""
        if self.omitted_bytes == 0:
            return plain_text(bytes(self._head + self._tail))
        # Not final: a character that was cut in two is left out.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return _CONTROL.sub("", decoder.decode(bytes(self._head)))

    def tail(self) -> str:
        """Give the end as plain text; empty where ``head`` is everything."""
        if self.omitted_bytes == 0:
            return ""
        tail = bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""
        start = 0
        while start < min(3, len(tail)) and 0x80 <= tail[start] < 0xC0:
            start += 1
        return plain_text(tail[start:])

    def text(self) -> str:
        """Give head and tail in one text, with a note of what was left out between them."""
        if self.omitted_bytes == 0:
            return self.head()
        return f"{self.head()}\n[... {self.omitted_bytes} bytes left out ...]\n{self.tail()}"
