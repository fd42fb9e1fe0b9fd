"""Where the permission programs of all sessions ask: a unix socket, and a secret for each session.

A program sends one line of JSON and gets one back. What it may ask is for the session of its
secret alone; one that hangs up withdraws its question.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from agentstreamd.adapters.amp.asks import Ask
from agentstreamd.adapters.amp.permit import MAX_ARGUMENTS_BYTES
from agentstreamd.adapters.amp.policy import Verdict

_log = logging.getLogger(__name__)

SOCKET_NAME = "permissions.sock"

_LINE_BYTES = 6 * MAX_ARGUMENTS_BYTES + 2**20  # JSON in JSON escapes what it holds


class Asking:
    """A question that waits for its verdict.

    Attributes:
        ask: The question.
        verdict: The answer, to be set by whoever decides.
        delivered: Whether the answer reached the program that asked.
    """

    def __init__(self, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        self.ask = ask
        self.verdict: asyncio.Future[Verdict] = loop.create_future()
        self.delivered: asyncio.Future[bool] = loop.create_future()


Handler = Callable[[Asking], Awaitable[None]]
"""Takes a question and sees to it that its verdict is set; cancelled when it is withdrawn."""


class _Question(msgspec.Struct):
    secret: str
    tool: str
    arguments: str
    tool_use_id: str = ""
    thread_id: str = ""
    cwd: str = ""


class PermissionDesk:
    """Serves the socket. `register` opens it when it is first needed."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / SOCKET_NAME
        self._handlers: dict[bytes, Handler] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._serving: set[asyncio.Task[None]] = set()

    async def register(self, handler: Handler) -> str:
        """Take questions for `handler`; returns the secret that they must show. Raises OSError."""
        async with self._opening:
            if self._server is None:
                self._server = await self._open()
        secret = secrets.token_urlsafe(32)
        self._handlers[_digest(secret)] = handler
        return secret

    def forget(self, secret: str) -> None:
        """Take no more questions that show this secret."""
        self._handlers.pop(_digest(secret), None)

    async def close(self) -> None:
        """Close the socket; questions that wait are rejected by the programs that asked them."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        self.path.unlink(missing_ok=True)

    async def _open(self) -> asyncio.Server:
        self.path.unlink(missing_ok=True)  # of a daemon that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            # A path of a socket ends at 108 bytes; this one is short wherever the directory is.
            short = f"/proc/self/fd/{directory}/{self.path.name}"
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(short)
            os.chmod(short, 0o600)
            listener.setblocking(False)
            return await asyncio.start_unix_server(self._serve, sock=listener, limit=_LINE_BYTES)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(directory)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, ValueError, msgspec.MsgspecError) as error:
            _log.warning("a permission could not be asked for: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # closing: the program rejects when the connection ends
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = msgspec.json.decode(await reader.readline(), type=_Question)
        handler = self._handlers.get(_digest(question.secret))
        if handler is None:
            await _reply(writer, Verdict(False, "This session takes no questions (any more)."))
            return
        asking = Asking(
            Ask(
                tool=question.tool,
                arguments_json=question.arguments,
                tool_use_id=question.tool_use_id,
                thread_id=question.thread_id,
                cwd=question.cwd,
            )
        )
        work = asyncio.ensure_future(handler(asking))
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.verdict.done():
                return
            await _reply(writer, asking.verdict.result())
            if not hung_up.done() and not asking.delivered.done():
                asking.delivered.set_result(True)
        finally:
            hung_up.cancel()
            work.cancel()
            await asyncio.wait({work})
            if not asking.delivered.done():
                asking.delivered.set_result(False)
            if not work.cancelled() and (error := work.exception()) is not None:
                _log.error("a permission could not be asked for", exc_info=error)


async def _reply(writer: asyncio.StreamWriter, verdict: Verdict) -> None:
    writer.write(msgspec.json.encode(verdict) + b"\n")
    await writer.drain()


def _digest(secret: str) -> bytes:
    """What a secret is looked up by: comparing digests tells nothing of how much of it is right."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
