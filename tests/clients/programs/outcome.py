"""What the Python programs share: how a client is used, and how its failures are told."""

import re
from collections.abc import AsyncIterator
from typing import Any, Protocol

Json = dict[str, Any]


class Failed(Exception):
    """A call failed; `error` is how the outcome says it."""

    def __init__(self, error: Json) -> None:
        super().__init__(error)
        self.error = error


class Client(Protocol):
    """What a Python client has to be able to do; messages are ProtoJSON."""

    async def unary(self, method: str, request: Json, seconds: float | None) -> Json:
        """Call a unary method. Raises Failed."""

    def stream(self, request: Json, raw: bool, seconds: float | None) -> AsyncIterator[Json | None]:
        """Yield None when the stream is open and then its events. Raises Failed."""

    def blob(self, request: Json) -> AsyncIterator[bytes]:
        """Yield the pieces of a blob. Raises Failed."""

    def cancel(self) -> None:
        """Cancel the stream that runs."""


def snake_case(name: str) -> str:
    """`GetAgent` as `get_agent`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
