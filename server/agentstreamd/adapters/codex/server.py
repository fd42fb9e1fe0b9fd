"""One `codex app-server` process: it works for many sessions, whose messages are told apart here.

Messages go by their thread. A thread that nobody knows is a sub-agent's, which the server is asked
for its parent; what it says waits meanwhile.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd import __version__
from agentstreamd.adapters.base import AgentExit, AgentFailed
from agentstreamd.adapters.codex import answers, native
from agentstreamd.adapters.codex.attachment import Attachment
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.native import Message, as_object, text_in
from agentstreamd.adapters.codex.rpc import OnLine, Rpc, TimedOut
from agentstreamd.adapters.last_words import LastWords
from agentstreamd.process import (
    ChildProcess,
    ExitStatus,
    Line,
    LineFramer,
    OversizedLine,
    ProcessGone,
)

_log = logging.getLogger(__name__)

_HELD_MESSAGES = 1024
_STRANGERS = 4096
_QUOTED = 500

_CLIENT = {"name": "agentstream", "title": "agentstream", "version": __version__}


class AppServer:
    """A running server. Make it, then `start` it once.

    Attributes:
        rpc: Requests to it.
        attachments: The sessions on it.
        words: What it leaves on standard error.
    """

    def __init__(self, child: ChildProcess, limits: Limits) -> None:
        self.rpc = Rpc(child, limits)
        self.attachments: set[Attachment] = set()
        self.words = LastWords(child.stderr)
        self._child = child
        self._limits = limits
        self._routes: dict[str, Attachment] = {}
        self._held: dict[str, list[Message]] = {}
        self._strangers: dict[str, None] = {}
        self._notices: dict[str, Message] = {}
        self._warnings: list[Message] = []
        self._stopping = False
        self._failure = ""
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """It runs and takes requests, as far as it is known."""
        return self.rpc.alive and not self._stopping and self._child.exit_status is None

    async def start(self) -> None:
        """Wait until the server is ready. Raises `AgentFailed`; the process is then gone."""
        self._reader = asyncio.create_task(self._read())
        params = {
            "clientInfo": _CLIENT,
            "capabilities": {"experimentalApi": True, "requestAttestation": False},
        }
        try:
            await self.rpc.request("initialize", params, seconds=self._limits.start_seconds)
            await self.rpc.notify("initialized")
        except (ProcessGone, AgentFailed) as error:
            status = await self._child.stop()
            said = self.words.last_line(_QUOTED) or str(error)
            raise AgentFailed(
                f"Codex's server did not start ({status}): {said}",
                error_pb2.ERROR_CODE_AGENT_START_FAILED,
            ) from None
        except BaseException:
            self._child.kill()
            raise

    async def begin(
        self, attachment: Attachment, method: str, params: dict[str, Any], on_line: OnLine
    ) -> Message:
        """Start or resume the thread of a session, and send what it says there from now on.

        Raises what `Rpc.request` raises.
        """

        def on_response(message: Message) -> None:
            if not message.failed and message.thread_id and attachment.open:
                self._attach(message.thread_id, attachment)
            attachment.put(message)

        if attachment not in self.attachments:
            self.attachments.add(attachment)
            for warning in self._warnings:
                attachment.put(warning)
        resumed = text_in(params, "threadId")
        if resumed:
            if resumed in self._routes:
                raise AgentFailed(
                    f"Another session works on the thread {resumed} of Codex.",
                    error_pb2.ERROR_CODE_AGENT_START_FAILED,
                )
            # A thread that is still loaded may speak before the answer comes.
            self._attach(resumed, attachment)
        return await self.rpc.request(method, params, on_line=on_line, on_response=on_response)

    def detach(self, attachment: Attachment, exit: AgentExit) -> None:
        """A session leaves: what is said of its threads is of no interest any more."""
        self.attachments.discard(attachment)
        for thread_id, routed in list(self._routes.items()):
            if routed is attachment:
                del self._routes[thread_id]
                self._forget(thread_id)
        attachment.end(exit)

    async def probe(self) -> None:
        """See whether the server answers at all; one that does not is ended."""
        try:
            await self.rpc.request("thread/loaded/list", {}, seconds=self._limits.probe_seconds)
        except TimedOut as error:
            self.fail(str(error))
        except (AgentFailed, ProcessGone):
            pass

    def fail(self, reason: str) -> None:
        """The server hangs: it is ended, and all its sessions go on with another."""
        if not self._stopping and not self._failure:
            _log.error("%s: %s", self._child, reason)
            self._failure = reason
            self.rpc.alive = False
            self._child.kill()

    async def stop(self) -> None:
        """End the process and all that it started. Bounded in time, idempotent."""
        self._stopping = True

        async def ask() -> None:
            self._child.close_stdin()

        await self._child.stop(ask)
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=self._limits.drain_seconds)

    # --- reading -------------------------------------------------------------------------------

    async def _read(self) -> None:
        framer = LineFramer(self._limits.line_bytes, skip_empty=True)
        try:
            while chunk := await self._child.stdout.read():
                for line in framer.feed(chunk):
                    await self._take(line)
            for line in framer.finish():
                await self._take(line)
        except Exception:
            _log.exception("%s: its output can't be read", self._child)
            self._child.kill()
        finally:
            self.rpc.fail()
            await self._child.end_within(self._limits.polite_seconds)
            exit = self._exit()
            for attachment in list(self.attachments):
                attachment.end(exit)
            self.attachments.clear()
            self._routes.clear()

    async def _take(self, line: Line) -> None:
        if isinstance(line, OversizedLine):
            error = f"the line is longer than {self._limits.line_bytes} bytes"
            for attachment in self.attachments:
                attachment.put_unreadable(line.head, error, line.length)
            return
        try:
            message = native.decode(line)
        except native.Unreadable as error:
            for attachment in self.attachments:
                attachment.put_unreadable(line, str(error), len(line))
            return
        if message.is_response and message.id:
            self.rpc.on_message(message)
        elif thread_id := message.thread_id:
            await self._route(thread_id, message)
        else:
            self._to_all(message)

    async def _route(self, thread_id: str, message: Message) -> None:
        attachment = self._routes.get(thread_id)
        if attachment is not None:
            attachment.put(message)
            await attachment.room()
        elif thread_id in self._strangers:
            self._refuse(message)
        elif (held := self._held.get(thread_id)) is not None:
            held.append(message)
            if len(held) > _HELD_MESSAGES:
                self._forget(thread_id)
        else:
            self._held[thread_id] = [message]
            self._background(self._find_parent(thread_id))

    def _to_all(self, message: Message) -> None:
        """A message that is about no thread."""
        if message.is_request:
            # One session says what became of it, and has it refused.
            for attachment in self.attachments:
                attachment.put(message)
                return
            self._refuse(message)
            return
        last = self._notices.get(message.method)
        if last is not None and last.params == message.params:
            return
        self._notices[message.method] = message
        if message.method == "configWarning":
            self._warnings.append(message)
        for attachment in self.attachments:
            attachment.put(message)

    # --- threads -------------------------------------------------------------------------------

    def _attach(self, thread_id: str, attachment: Attachment) -> None:
        self._strangers.pop(thread_id, None)
        if not self.rpc.alive:
            return
        self._routes[thread_id] = attachment
        for message in self._held.pop(thread_id, ()):
            attachment.put(message)

    async def _find_parent(self, thread_id: str) -> None:
        """Ask whose a thread is that speaks and was never heard of."""
        parent = ""
        with contextlib.suppress(AgentFailed, ProcessGone):
            answer = await self.rpc.request("thread/read", {"threadId": thread_id})
            parent = text_in(as_object(answer.result.get("thread")), "parentThreadId")
        attachment = self._routes.get(thread_id) or self._routes.get(parent)
        if attachment is None:
            self._forget(thread_id)
        else:
            self._attach(thread_id, attachment)

    def _forget(self, thread_id: str) -> None:
        """A thread is nobody's (any more)."""
        self._strangers[thread_id] = None
        if len(self._strangers) > _STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        for message in self._held.pop(thread_id, ()):
            self._refuse(message)

    def _refuse(self, message: Message) -> None:
        """Nobody is there to answer, and a request that is not answered hangs its turn for ever."""
        if message.is_request:
            self.refuse(message.id, f"agentstream does not support {message.method}")

    def refuse(self, native_id: str, why: str) -> None:
        """Answer a request of the server with an error, in the background."""
        self._background(self._write(answers.encode_refusal(native_id, why)))

    async def _write(self, line: bytes) -> None:
        with contextlib.suppress(ProcessGone):
            await self.rpc.write(line)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end -------------------------------------------------------------------------------

    def _exit(self) -> AgentExit:
        status = self._child.exit_status or ExitStatus(signal=signal.SIGKILL)
        expected = self._stopping and not self._failure
        said = self._failure or self.words.last_line(_QUOTED)
        if not expected:
            self.words.log(str(self._child))
        how = "was stopped" if expected else "ended unexpectedly"
        return AgentExit(
            expected=expected,
            exit_code=status.code,
            signal=status.signal,
            stderr_head=self.words.head(),
            stderr_tail=self.words.tail(),
            message=f"Codex's server {how} with {status}{f': {said}' if said else '.'}",
        )
