"""A TCP proxy that delays, halves and cuts what it carries, at random but repeatably."""

import asyncio
import contextlib
import enum
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_CHUNK_BYTES = 16 * 1024


class Cut(enum.Enum):
    """How a connection ends."""

    RESET = "reset"
    """By a reset, with what is under way lost."""
    CLOSE = "close"
    """In order, in the middle of whatever was being said."""
    HALF = "half"
    """In one direction first: the reader gets the end, the writer does not hear of it yet."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What the proxy does.

    Attributes:
        cut_after_bytes: A connection is cut after at most so many bytes towards the client.
        delay_seconds: Each chunk waits for up to this long.
        halves: The share of chunks, in [0, 1], that are sent in two pieces with a wait between.
    """

    cut_after_bytes: int
    delay_seconds: float = 0.0
    halves: float = 0.0


class FaultProxy:
    """Carries connections to `target`; see `fault_proxy`.

    Attributes:
        target: What to connect to instead of the daemon.
        upstream: Where new connections are carried to ("host:port").
        cuts: Connections cut so far, by how.
    """

    def __init__(self, upstream: str, faults: Faults, randomness: random.Random) -> None:
        self.target = ""
        self.upstream = upstream
        self.cuts = dict.fromkeys(Cut, 0)
        self._faults = faults
        self._random = randomness
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def total_cuts(self) -> int:
        """Connections cut so far."""
        return sum(self.cuts.values())

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """End all connections and stop listening."""
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            host, port = self.upstream.rsplit(":", 1)
            upstream_reader, upstream = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        allowance = self._random.randrange(1, self._faults.cut_after_bytes)
        upwards = asyncio.ensure_future(self._carry(reader, upstream, None))
        downwards = asyncio.ensure_future(self._carry(upstream_reader, writer, allowance))
        try:
            await asyncio.wait((upwards, downwards), return_when=asyncio.FIRST_COMPLETED)
            if downwards.done() and not downwards.exception() and downwards.result():
                await self._cut(writer, upwards)
        finally:
            for task in (upwards, downwards):
                task.cancel()
            await asyncio.gather(upwards, downwards, return_exceptions=True)
            for end in (writer, upstream):
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowance: int | None
    ) -> bool:
        """Copy until the end or, if there is one, until the allowance is spent: then true."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if self._faults.delay_seconds:
                    await asyncio.sleep(self._random.uniform(0, self._faults.delay_seconds))
                spent = allowance is not None and len(chunk) >= allowance
                if spent:
                    chunk = chunk[:allowance]
                if self._random.random() < self._faults.halves:
                    middle = self._random.randrange(len(chunk))
                    writer.write(chunk[:middle])
                    await asyncio.sleep(self._random.uniform(0, self._faults.delay_seconds))
                    chunk = chunk[middle:]
                writer.write(chunk)
                await writer.drain()
                if spent:
                    return True
                if allowance is not None:
                    allowance -= len(chunk)
        return False

    async def _cut(self, client: asyncio.StreamWriter, upwards: "asyncio.Future[bool]") -> None:
        how = self._random.choice(list(Cut))
        self.cuts[how] += 1
        if how is Cut.RESET:
            client.transport.abort()
            return
        client.write_eof()
        if how is Cut.HALF:
            # The daemon goes on as if somebody read, until the client hangs up.
            await asyncio.wait((upwards,))


@asynccontextmanager
async def fault_proxy(
    upstream: str, faults: Faults, randomness: random.Random
) -> AsyncIterator[FaultProxy]:
    """A proxy before `upstream` ("host:port"), as long as the context is open."""
    proxy = FaultProxy(upstream, faults, randomness)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
