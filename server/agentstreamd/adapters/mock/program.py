"""The mock agent's program: sessions behind one stream of lines in and one out.

Run as a process it reads messages from standard input and writes to standard output, one JSON
object a line: `python -m agentstreamd.adapters.mock.program`.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import NoReturn

import msgspec

from agentstreamd.adapters.mock.session import MockSession, Quit

_MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class Program:
    """The program, wherever it runs."""

    def __init__(self, write: Callable[[bytes], Coroutine[None, None, None]], quit: Quit) -> None:
        """Write output with `write`, end with `quit`."""
        self._write = write
        self._quit = quit
        self._sessions: dict[str, tuple[MockSession, asyncio.Task[None]]] = {}

    def receive(self, line: bytes) -> None:
        """Take a line of input. What is no message for a session that there is, is left out."""
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._quit.stderr("input that is not JSON is ignored\n")
            return
        key = str(message.get("session", ""))
        kind = message.get("type")
        if kind == "start" and key not in self._sessions:
            session = MockSession(message, self._write, self._quit)
            self._sessions[key] = (session, asyncio.create_task(self._run(session)))
        elif kind == "stop":
            if entry := self._sessions.pop(key, None):
                entry[1].cancel()
        elif entry := self._sessions.get(key):
            entry[0].receive(message)

    async def _run(self, session: MockSession) -> None:
        try:
            await session.run()
        except Exception as error:
            # A fault of the mock itself: an agent that crashes, not one that hangs for ever.
            self._quit.stderr(f"the mock agent failed: {error!r}\n")
            self._quit.end(70, None)

    async def close(self) -> None:
        """End all sessions without a word."""
        tasks = [task for _, task in self._sessions.values()]
        self._sessions.clear()
        for task in tasks:
            task.cancel()
        current = asyncio.current_task()
        await asyncio.gather(*(one for one in tasks if one is not current), return_exceptions=True)


def _end(exit_code: int | None, signal: int | None) -> NoReturn:
    if signal is not None:
        os.kill(os.getpid(), signal)
    os._exit(exit_code or 0)


async def _write_stdout(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _write_stderr(text: str) -> None:
    os.write(2, text.encode())


async def main() -> None:
    """Serve standard input until it ends."""
    program = Program(_write_stdout, Quit(_end, _write_stderr, is_process=True))
    reader = asyncio.StreamReader(limit=_MAX_MESSAGE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        program.receive(line)
    await program.close()


if __name__ == "__main__":
    asyncio.run(main())
