"""The HTTP side of a running server: requests with timeouts, and its one stream of events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from agentstreamd.adapters.base import AgentFailed
from agentstreamd.adapters.opencode.calls import Call
from agentstreamd.adapters.opencode.errors import http_error
from agentstreamd.adapters.opencode.launch import USER


class Unreachable(Exception):
    """The server did not answer in time, or not at all."""


class Refused(AgentFailed):
    """The server refused a request.

    Attributes:
        status: The HTTP status of its answer.
    """

    def __init__(self, status: int, body: Any) -> None:
        error = http_error(status, body)
        super().__init__(error.message, error.code)
        self.status = status


class Api:
    """The API of one server. `request_seconds` bounds every request."""

    def __init__(self, url: str, password: str, *, request_seconds: float) -> None:
        self._settings: dict[str, Any] = {
            "base_url": url,
            "auth": httpx.BasicAuth(USER, password),
            "timeout": request_seconds,
            "trust_env": False,  # a proxy has no business with a server on loopback
        }
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            **self._settings,
        )
        self._seconds = request_seconds

    async def call(self, call: Call, directory: str, *, seconds: float | None = None) -> Any:
        """Make a request about `directory`; returns the JSON of the answer, None for none.

        Raises `Refused` and `Unreachable`.
        """
        try:
            # httpx bounds each step of a request; this bounds the whole.
            async with asyncio.timeout(seconds or self._seconds):
                response = await self._client.request(
                    call.method,
                    call.path,
                    params={"directory": directory} if directory else {},
                    json=call.body,
                    timeout=httpx.Timeout(self._seconds, read=seconds or self._seconds),
                    headers={} if call.body is not None else {"content-type": "application/json"},
                )
        except (httpx.HTTPError, TimeoutError) as error:
            how = "in time" if isinstance(error, TimeoutError | httpx.TimeoutException) else ""
            raise Unreachable(f"OpenCode did not answer {call.method} {call.path} {how}") from error
        body: Any = None
        with contextlib.suppress(ValueError):
            body = response.json() if response.content else None
        if response.is_error:
            raise Refused(response.status_code, body)
        return body

    async def get(self, path: str, directory: str) -> Any:
        """What the server has at `path`. Raises as `call` does."""
        return await self.call(Call("GET", path), directory)

    async def events(self, *, silence_seconds: float) -> AsyncIterator[bytes]:
        """The server's events from now on, one JSON text each, until the stream ends or breaks.

        Raises `Unreachable` when it breaks, also by saying nothing for `silence_seconds`: the
        server sends a heartbeat every ten.
        """
        timeout = httpx.Timeout(self._seconds, read=silence_seconds)
        # A connection of its own: one that was kept from before may be dead already.
        client = httpx.AsyncClient(**self._settings)
        try:
            async with (
                client,
                aconnect_sse(client, "GET", "/global/event", timeout=timeout) as source,
            ):
                source.response.raise_for_status()
                async for said in source.aiter_sse():
                    yield said.data.encode()
        except httpx.HTTPError as error:
            raise Unreachable(f"OpenCode's event stream broke: {error!r}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
