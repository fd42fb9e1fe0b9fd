"""Adding up usage."""

from typing import Any

from agentstream.v1 import session_pb2

_FIELDS = tuple(field.name for field in session_pb2.Usage.DESCRIPTOR.fields)


def add_usage(total: session_pb2.Usage, more: session_pb2.Usage) -> None:
    """Add `more` to `total`; what is not known in `more` leaves `total` as it is."""
    source: Any = more  # by name: the generated types know each name only by itself
    for name in _FIELDS:
        if source.HasField(name):
            setattr(total, name, getattr(total, name) + getattr(source, name))
