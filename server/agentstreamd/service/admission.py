"""Who gets in: each call is let in, and counted, before its handler sees it."""

from collections.abc import Callable
from typing import Any

from .auth import TokenAuth
from .limits import CallLimits, ClientStreams, Room
from .methods import SERVICE_NAME
from .peers import ClientScopes, address, subjects

# Probes of orchestrators can't send tokens; the answer tells nothing but whether the server serves.
_OPEN = "/grpc.health.v1.Health/"
_EVENTS = f"/{SERVICE_NAME}/StreamEvents"

Metadata = tuple[tuple[str, str | bytes], ...]
Release = Callable[[], None]


class Admission:
    """Checks who calls, and keeps all within the limits."""

    def __init__(
        self, limits: CallLimits, tokens: TokenAuth | None = None, peers: ClientScopes | None = None
    ) -> None:
        """None of `tokens` and `peers` lets everybody in; with both, both must allow a call."""
        self._tokens = tokens
        self._peers = peers
        self.room = Room(limits)
        self.streams = ClientStreams(limits.max_streams_per_client)

    def admit(
        self, path: str, request: Any, metadata: Metadata, context: Any, *, streaming: bool
    ) -> Release:
        """Let a call in; what is returned is to be called when it has ended, however that was.

        Raises UNAUTHENTICATED, SCOPE_MISSING and LIMIT_EXCEEDED.
        """
        probe = path.startswith(_OPEN)
        client = ""
        if not probe:
            client = self._authorize(path, request, metadata, context)
        # Probes must get through, and event streams have a limit of their own.
        size = len(request) if isinstance(request, bytes) else 0
        counted = not probe and path != _EVENTS
        if counted:
            self.room.enter(size)
        try:
            if streaming:
                client = client or _named(context)
                self.streams.enter(client)
        except BaseException:
            if counted:
                self.room.leave(size)
            raise

        def release() -> None:
            if counted:
                self.room.leave(size)
            if streaming:
                self.streams.leave(client)

        return release

    def _authorize(self, path: str, request: Any, metadata: Metadata, context: Any) -> str:
        """Check the call; who makes it, where a token tells."""
        client = ""
        if self._tokens is not None:
            token, grant = self._tokens.check(metadata)
            grant.check(path, request)
            client = f"token {token}"
        if self._peers is not None:
            self._peers.check(context, path, request)
        return client


def _named(context: Any) -> str:
    """Who is at the other end, where no token tells: many clients may share one connection."""
    return next(iter(subjects(context)), "") or address(context)
