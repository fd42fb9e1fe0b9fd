"""Server reflection, also of what is inside a service or message."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool
from grpc import aio
from grpc_reflection.v1alpha import reflection

SERVICE_NAME: str = reflection.SERVICE_NAME


def enable(names: Sequence[str], server: aio.Server) -> None:
    """Offer reflection of these services."""
    reflection.enable_server_reflection(names, server, pool=_Pool(descriptor_pool.Default()))


class _Pool:
    """The descriptor pool, which by itself finds no file by the name of a method or a field.

    `grpcurl describe` asks for methods.
    """

    def __init__(self, pool: descriptor_pool.DescriptorPool) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            parent, _, name = symbol.rpartition(".")
            if not self._has(parent, name):
                raise
            return self._pool.FindFileContainingSymbol(parent)

    def _has(self, parent: str, name: str) -> bool:
        for find, members in (
            (self._pool.FindServiceByName, ("methods_by_name",)),
            (self._pool.FindMessageTypeByName, ("fields_by_name", "oneofs_by_name")),
        ):
            try:
                found = find(parent)
            except KeyError:
                continue
            return any(name in getattr(found, member) for member in members)
        return False
