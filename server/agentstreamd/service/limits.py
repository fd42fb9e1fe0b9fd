"""How much callers may have at once; what is beyond is refused, never queued."""

from collections import Counter
from dataclasses import dataclass

from .errors import limit_exceeded

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The limits of calls; named as the settings.

    Attributes:
        max_calls: Calls that are no event streams, at once, of all clients.
        max_pending_bytes: Bytes of the requests of these calls, together.
        max_request_bytes: Bytes of one request; gRPC itself refuses more, unread.
        max_streams_per_client: Streams of all kinds that one client has open; 0 for no limit.
    """

    max_calls: int = 10_000
    max_pending_bytes: int = 512 * MIB
    max_request_bytes: int = 68 * MIB
    max_streams_per_client: int = 1_000


class Room:
    """Places for the short calls that run at once, and for what their requests hold."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self.calls = 0
        self.bytes = 0

    def enter(self, size: int) -> None:
        """Take a place for a request of `size` bytes. Raises LIMIT_EXCEEDED, and takes none."""
        if self.calls >= self._limits.max_calls:
            raise limit_exceeded("max_calls", self._limits.max_calls)
        # One alone always gets in: gRPC has seen to its size.
        if self.bytes and self.bytes + size > self._limits.max_pending_bytes:
            raise limit_exceeded("max_pending_bytes", self._limits.max_pending_bytes)
        self.calls += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """Give it back."""
        self.calls -= 1
        self.bytes -= size


class ClientStreams:
    """Counts the open streams of each client; knows of those alone that have some."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open: Counter[str] = Counter()

    def enter(self, client: str) -> None:
        """Count a stream. Raises LIMIT_EXCEEDED, and counts none."""
        if 0 < self._limit <= self.open[client]:
            raise limit_exceeded("max_streams_per_client", self._limit)
        self.open[client] += 1

    def leave(self, client: str) -> None:
        """The stream has ended."""
        self.open[client] -= 1
        if not self.open[client]:
            del self.open[client]
