"""The daemon's ends of a process's standard streams."""

import asyncio
import contextlib
import fcntl
import os
from typing import cast

from .capture import HeadTail
from .errors import ProcessGone

CHUNK_BYTES = 256 * 2**10
_STDERR_READ_BYTES = 64 * 2**10
_WRITE_BUFFER_BYTES = 256 * 2**10


def make_pipe(capacity: int | None = None) -> tuple[int, int]:
    """Make a pipe (reader, writer) and, where the system allows, give it a capacity in bytes."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if capacity is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, capacity)
    return reader, writer


class ChunkReader:
    """Reads standard output in chunks, straight from the pipe.

    Nothing is read ahead, so a slow reader slows the process down (a pipe holds at most 256 KiB).
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._waiter: asyncio.Future[None] | None = None
        self._rest: list[bytes] = []
        self._yield_first = False
        self._reading = False

    async def read(self) -> bytes:
        """Give the next 1 to 256 Ki bytes as they come; b"" at the end of the stream.

        For one reader at a time. Cancelling loses nothing.
        """
        if self._reading:
            raise RuntimeError("another task is reading this stream")
        self._reading = True
        try:
            if self._yield_first:
                # A process that writes without pause must not keep the event loop for itself.
                self._yield_first = False
                await asyncio.sleep(0)
            while self._descriptor is not None:
                try:
                    data = os.read(self._descriptor, CHUNK_BYTES)
                except BlockingIOError:
                    await self._readable(self._descriptor)
                    continue
                if not data:
                    self._close()
                self._yield_first = True
                return data
            return self._rest.pop(0) if self._rest else b""
        finally:
            self._reading = False

    def finish(self) -> None:
        """Take in what the pipe still holds and close it: no process of the tree is left to write.

        Bounded by the pipe's capacity even if a stranger holds the other end and goes on writing.
        """
        if self._descriptor is None:
            return
        left = 2 * CHUNK_BYTES
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (data := os.read(self._descriptor, CHUNK_BYTES)):
                self._rest.append(data)
                left -= len(data)
        self._close()

    async def _readable(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        loop.add_reader(descriptor, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if self._descriptor == descriptor:
                loop.remove_reader(descriptor)

    def _close(self) -> None:
        if self._descriptor is not None:
            if self._waiter is not None:
                asyncio.get_running_loop().remove_reader(self._descriptor)
                _wake(self._waiter)
            os.close(self._descriptor)
            self._descriptor = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SampleReader:
    """Reads standard error all the time, so that it never blocks the process, into a sample."""

    def __init__(self, descriptor: int, sample: HeadTail) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._sample = sample
        asyncio.get_running_loop().add_reader(descriptor, self._read_once)

    def finish(self) -> None:
        """Take in what the pipe still holds and close it."""
        left = 2 * CHUNK_BYTES
        while self._descriptor is not None and left > 0 and (size := self._read_once()):
            left -= size
        self._close()

    def _read_once(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            data = os.read(self._descriptor, _STDERR_READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close()
        self._sample.add(data)
        return len(data)

    def _close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


class StdinWriter(asyncio.BaseProtocol):
    """Writes standard input, at the pace at which the process reads it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._closing = False
        self._gone = False

    @classmethod
    async def open(cls, descriptor: int, label: str) -> "StdinWriter":
        """Take over the writing end of a pipe."""
        file = os.fdopen(descriptor, "wb", 0)
        try:
            loop = asyncio.get_running_loop()
            transport, writer = await loop.connect_write_pipe(lambda: cls(label), file)
        except BaseException:
            file.close()
            raise
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        return writer

    async def write(self, data: bytes) -> None:
        """Write all of data; return when at most 256 KiB of what was written wait to be read.

        Concurrent writes do not mix. A cancelled write may still be delivered. Raises ProcessGone
        when the process ended, or closed its input, or ``close`` was called.
        """
        self._check()
        assert self._transport is not None
        self._transport.write(data)
        # Only the event loop's next turn tells what became of the write: full, or nobody reads.
        await asyncio.sleep(0)
        await self._writable.wait()
        if self._gone and not self._closing:
            self._check()

    def close(self) -> None:
        """Close standard input once all that was written is delivered. Idempotent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Fail all writes now: nobody is left to read."""
        self._gone = True
        self._writable.set()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            # asyncio's pipe transport fails when it is aborted after it noticed the peer's end.
            if transport.get_write_buffer_size() or not transport.is_closing():
                transport.abort()

    def _check(self) -> None:
        if self._closing:
            raise ProcessGone(f"The standard input of {self._label} is closed.")
        if self._gone:
            raise ProcessGone(f"{self._label} no longer reads its standard input.")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # uvloop's transport is a write transport by its methods, not by its type.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._writable.set()

    def pause_writing(self) -> None:
        """Called by the event loop."""
        if not self._gone:
            self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._gone = True
        self._transport = None
        self._writable.set()
