"""A running mock agent, inside the daemon or as a process, and the sessions in it."""

import asyncio
import signal as signals
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import msgspec

from agentstreamd.adapters.base import AgentExit
from agentstreamd.adapters.mock.program import Program
from agentstreamd.adapters.mock.session import Quit
from agentstreamd.process import ChildProcess, HeadTail, Line, LineFramer, OversizedLine

_WAITING_CHUNKS = 16
_CLOSED_OUTPUT_SECONDS = 2.0


class Channel(ABC):
    """The way to a running program and back."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to the program. Raises ProcessGone when it is gone."""

    @abstractmethod
    async def read(self) -> bytes:
        """The next bytes it writes; empty at the end."""

    @abstractmethod
    async def end(self) -> AgentExit:
        """Wait until it has ended."""

    @abstractmethod
    async def stop(self) -> None:
        """End it and everything it started."""


class LocalChannel(Channel):
    """The program runs inside the daemon."""

    def __init__(self) -> None:
        """Start it."""
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_CHUNKS)
        self._stderr = HeadTail()
        self._exit: AgentExit | None = None
        quit = Quit(self._on_end, self._on_stderr, is_process=False)
        self._program = Program(self._chunks.put, quit)
        self._closing: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """See Channel."""
        if self._exit is None:
            self._program.receive(data)

    async def read(self) -> bytes:
        """See Channel."""
        return await self._chunks.get()

    async def end(self) -> AgentExit:
        """See Channel."""
        if self._closing is not None:
            await self._closing
        return self._exit or AgentExit(expected=True)

    async def stop(self) -> None:
        """See Channel."""
        if self._exit is None:
            self._on_end(0, None)

    def _on_end(self, exit_code: int | None, signal: int | None) -> None:
        if self._exit is None:
            self._exit = _exit(exit_code, signal, self._stderr)
            self._closing = asyncio.create_task(self._close())

    def _on_stderr(self, text: str) -> None:
        self._stderr.add(text.encode())

    async def _close(self) -> None:
        closing = asyncio.create_task(self._program.close())
        # The reader goes on reading, so there is room for the end.
        await self._chunks.put(b"")
        await closing


class ProcessChannel(Channel):
    """The program is a process."""

    def __init__(self, child: ChildProcess) -> None:
        """Speak to `child`."""
        self._child = child

    async def write(self, data: bytes) -> None:
        """See Channel."""
        await self._child.stdin.write(data)

    async def read(self) -> bytes:
        """See Channel."""
        return await self._child.stdout.read()

    async def end(self) -> AgentExit:
        """See Channel."""
        status = await self._child.end_within(_CLOSED_OUTPUT_SECONDS)
        return _exit(status.code, status.signal, self._child.stderr)

    async def stop(self) -> None:
        """See Channel."""
        await self._child.stop(self._close_stdin)

    async def _close_stdin(self) -> None:
        self._child.close_stdin()


class Receiver(Protocol):
    """A session's driver, as the host sees it."""

    async def received(self, lines: list[Line]) -> None:
        """Lines of the session."""
        ...

    def exited(self, exit: AgentExit) -> None:
        """The program has ended, and all its lines were received."""
        ...


class MockHost:
    """A running program and the sessions in it."""

    def __init__(
        self, channel: Channel, *, max_line_bytes: int, on_end: Callable[[], None] | None = None
    ) -> None:
        """Read from `channel`. `on_end` is called when the program has ended."""
        self._channel = channel
        self._framer = LineFramer(max_line_bytes)
        self._receivers: dict[str, Receiver] = {}
        self._last = ""
        self._expected = False
        self._on_end = on_end
        self.ended = False
        self._reader = asyncio.create_task(self._read())

    @property
    def is_empty(self) -> bool:
        """Whether no session is in it."""
        return not self._receivers

    def attach(self, session: str, receiver: Receiver) -> None:
        """Lines of `session` are for `receiver`."""
        self._receivers[session] = receiver

    def detach(self, session: str) -> None:
        """The session has left."""
        self._receivers.pop(session, None)

    async def write(self, line: bytes) -> None:
        """Write a message to the program. Raises ProcessGone when it is gone."""
        await self._channel.write(line + b"\n")

    async def close(self) -> None:
        """End the program; returns when its sessions know."""
        self._expected = True
        await self._channel.stop()
        await self._reader

    async def _read(self) -> None:
        while data := await self._channel.read():
            await self._deliver(self._framer.feed(data))
        await self._deliver(self._framer.finish())
        exit = await self._channel.end()
        self.ended = True
        if self._on_end is not None:
            self._on_end()
        if self._expected:
            exit = AgentExit(expected=True, exit_code=exit.exit_code, signal=exit.signal)
        for receiver in list(self._receivers.values()):
            receiver.exited(exit)
        self._receivers.clear()

    async def _deliver(self, lines: list[Line]) -> None:
        if len(self._receivers) == 1:
            # Also what bears no session, or a wrong one: there is only one it can be of.
            for receiver in list(self._receivers.values()):
                await receiver.received(lines)
            return
        batch: list[Line] = []
        for line in lines:
            session = _session_of(line)
            if session not in self._receivers:
                # A line that nobody can read is of whom the lines before it were.
                session = self._last
            if session != self._last and batch:
                await self._hand_over(batch)
                batch = []
            self._last = session
            batch.append(line)
        if batch:
            await self._hand_over(batch)

    async def _hand_over(self, batch: list[Line]) -> None:
        receiver = self._receivers.get(self._last)
        if receiver is not None:
            await receiver.received(batch)


class _Routed(msgspec.Struct):
    session: str = ""


_decode_route = msgspec.json.Decoder(_Routed).decode


def _session_of(line: Line) -> str:
    if isinstance(line, OversizedLine):
        return ""
    try:
        return _decode_route(line).session
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _exit(exit_code: int | None, signal: int | None, stderr: HeadTail) -> AgentExit:
    if signal is None:
        message = f"The mock agent exited with code {exit_code}."
    else:
        message = f"The mock agent was ended by {_signal_name(signal)}."
    return AgentExit(
        expected=False,
        exit_code=exit_code if signal is None else None,
        signal=signal,
        stderr_head=stderr.head(),
        stderr_tail=stderr.tail(),
        message=message,
    )


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
