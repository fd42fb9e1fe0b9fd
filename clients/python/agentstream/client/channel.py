"""How a channel is made: address, TLS, token, limits."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
MAX_RECEIVE_BYTES: Final = 64 * 1024 * 1024
"""Largest message that is received: gRPC's default of 4 MiB is less than an event with its raw
messages may need.
"""

Options = Sequence[tuple[str, Any]]


def channel_options(address: str, more: Options = ()) -> list[tuple[str, Any]]:
    """Options of a channel to `address`; `more` has the last word."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
        # A peer that vanished without a word (sleep, a lost route) must not look like a quiet
        # session. The daemon allows pings at this pace.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # gRPC's own pace of up to two minutes would keep a restarted daemon waiting for its
        # clients.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 3000),
    ]
    if is_local(address):
        options.append(("grpc.enable_http_proxy", 0))
    return [*options, *more]


def channel_credentials(
    tls_ca: str | Path | None, tls_cert: str | Path | None, tls_key: str | Path | None
) -> grpc.ChannelCredentials | None:
    """Credentials for TLS, or None where no TLS is asked for.

    Raises ValueError for a certificate without key (or key without certificate), OSError for a
    file that can't be read.
    """
    if (tls_cert is None) != (tls_key is None):
        raise ValueError("a client certificate needs its key, and a key its certificate")
    if tls_ca is None and tls_cert is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=None if tls_ca is None else Path(tls_ca).read_bytes(),
        private_key=None if tls_key is None else Path(tls_key).read_bytes(),
        certificate_chain=None if tls_cert is None else Path(tls_cert).read_bytes(),
    )


def is_local(address: str) -> bool:
    """Whether `address` is of this machine: a Unix socket or a loopback address."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that carries `token`."""
    return (("authorization", f"Bearer {token}"),)
