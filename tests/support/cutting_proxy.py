"""A proxy that passes TCP connections on and drops them when a test says so."""

import asyncio
from urllib.parse import urlsplit

from tests.support.model_server import DEADLINE


class CuttingProxy:
    """Use as an async context manager; `via(url)` gives the URL to reach `url` by.

    Connections that ask for the event stream can be dropped while all others go on.
    """

    def __init__(self) -> None:
        self._target = ("", 0)
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.StreamWriter] = set()
        self._all: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._opened = 0
        self._news = asyncio.Condition()

    async def via(self, url: str) -> str:
        """The URL of the proxy, which now leads to `url`."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut_events(self) -> None:
        """Drop the connections of event streams, and hold new ones until `let_events_pass`."""
        self._open.clear()
        for writer in self._streams:
            writer.transport.abort()

    def let_events_pass(self) -> None:
        """Let event streams be opened again."""
        self._open.set()

    async def streams_opened(self, count: int) -> None:
        """Wait until that many event streams were opened, all in all."""
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: self._opened >= count)

    async def __aenter__(self) -> "CuttingProxy":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        for writer in self._all:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._all.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /global/event"):
                await self._open.wait()
                self._streams.add(writer)
                async with self._news:
                    self._opened += 1
                    self._news.notify_all()
            there, back = await asyncio.open_connection(*self._target)
            self._all.add(back)
            back.write(head)
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        finally:
            writer.transport.abort()
