"""The gRPC server: what it offers, where it listens, how it drains and stops."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from . import reflection
from .admission import Admission
from .auth import TokenAuth
from .edge import Edge
from .limits import CallLimits
from .listen import Address, ListenError, open_socket
from .methods import SERVICE_NAME, handlers
from .peers import ClientScopes
from .ports import Sessions, WatchCall
from .stream import EventStreams, StreamSettings
from .tls import Certificates

MAX_METADATA_BYTES = 16 * 1024
"""Of one call, names and values and 32 bytes for each, as HTTP/2 counts."""

# Connections: pings find peers that vanished, and clients may ping as often as proxies do.
_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # One limit: between a soft and a hard one gRPC refuses at random.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Calls that wait to be taken up. Beyond gRPC's own 1,000 some are dropped as CANCELLED, which
    # looks like the client's own doing: after a restart all readers come back at once.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the server offers and to whom.

    Attributes:
        listen: Addresses; at least one.
        tls: Certificates, for TLS on all TCP addresses; None for none.
        auth: Checks tokens; None lets everybody in.
        reflection: Offer server reflection.
        streams: How event streams behave.
        peers: What clients may do by their certificates; None for all that a token allows.
        limits: Of calls.
    """

    listen: Sequence[Address]
    tls: Certificates | None = None
    auth: TokenAuth | None = None
    reflection: bool = True
    streams: StreamSettings = field(default_factory=StreamSettings)
    peers: ClientScopes | None = None
    limits: CallLimits = field(default_factory=CallLimits)


class Server:
    """Serves sessions over gRPC. Made on the event loop it runs on."""

    def __init__(
        self, sessions: Sessions, settings: ServerSettings, watch: WatchCall | None = None
    ) -> None:
        self._settings = settings
        self.streams = EventStreams(sessions, settings.streams)
        self._health = health.aio.HealthServicer()
        self.admission = Admission(settings.limits, settings.auth, settings.peers)
        options = [
            *_OPTIONS,
            ("grpc.max_receive_message_length", settings.limits.max_request_bytes),
        ]
        self._server = aio.server(interceptors=[Edge(self.admission, watch)], options=options)
        self._server.add_generic_rpc_handlers((handlers(sessions, self.streams),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if settings.reflection:
            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable(names, self._server)
        self._addresses: list[Address] = []

    @property
    def addresses(self) -> Sequence[Address]:
        """Where it listens, with the ports that were picked."""
        return tuple(self._addresses)

    async def start(self) -> None:
        """Listen and serve. Raises ListenError, and ValueError for key and certificate."""
        for address in self._settings.listen:
            address.check_free()
            self._addresses.append(self._open(address))
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Say NOT_SERVING, end all event streams and refuse new ones; other calls go on."""
        await self._health.enter_graceful_shutdown()
        self.streams.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Stop listening; calls that still run may do so for `grace_seconds`. Idempotent."""
        await self._server.stop(grace_seconds)
        for address in self._addresses:
            if address.path is not None:
                with contextlib.suppress(OSError):
                    address.path.unlink()
        self._addresses.clear()

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    def _open(self, address: Address) -> Address:
        try:
            if address.path is not None:
                open_socket(address.path, lambda: self._server.add_insecure_port(str(address)))
                return address
            if self._settings.tls is not None:
                credentials = self._settings.tls.credentials()
                port = self._server.add_secure_port(str(address), credentials)
            else:
                port = self._server.add_insecure_port(str(address))
        except (RuntimeError, OSError) as error:
            raise ListenError(f"Can't listen on {address}: {error}.") from error
        return Address(host=address.host, port=port)
