"""JSON-RPC to one server: requests with their answers, bounded in number and in time."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.adapters.codex import answers
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.native import Message, text_in, whole_in
from agentstreamd.process import ChildProcess, ProcessGone

_log = logging.getLogger(__name__)

OVERLOADED = -32001

OnLine = Callable[[bytes], None]
OnResponse = Callable[[Message], None]


class Refused(AgentFailed):
    """The server refused a request.

    Attributes:
        number: The error's code.
    """

    def __init__(self, method: str, number: int, message: str) -> None:
        super().__init__(message or f"Codex refused {method}.", _code_of(number, message))
        self.number = number


class TimedOut(AgentFailed):
    """The server did not answer in time."""


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[Message]
    on_response: OnResponse | None


class Rpc:
    """The requests to one server.

    Attributes:
        alive: The server takes requests, as far as it is known.
    """

    def __init__(self, child: ChildProcess, limits: Limits) -> None:
        self.alive = True
        self._child = child
        self._limits = limits
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._slots = asyncio.Semaphore(limits.in_flight)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        seconds: float | None = None,
        on_line: OnLine | None = None,
        on_response: OnResponse | None = None,
    ) -> Message:
        """Make a request; return its answer.

        `on_line` is shown each line before it is written, `on_response` each answer in the order in
        which the server wrote it, before any later message of the server.

        Raises `Refused`, `TimedOut`, `AgentFailed` (what cannot be encoded) and ProcessGone.
        """
        limit = self._limits.request_seconds if seconds is None else seconds
        delay = self._limits.overload_seconds
        for attempt in itertools.count(1):
            answer = await self._once(method, params, limit, on_line, on_response)
            if not answer.failed:
                return answer
            number = whole_in(answer.error, "code") or 0
            if number != OVERLOADED or attempt >= self._limits.overload_attempts:
                raise Refused(method, number, text_in(answer.error, "message"))
            _log.info("Codex is overloaded; %s is tried again in %g s", method, delay)
            await asyncio.sleep(delay)
            delay *= 2
        raise AssertionError("unreachable")

    async def notify(self, method: str) -> None:
        """Tell the server something. Raises ProcessGone."""
        await self.write(answers.encode_notification(method))

    async def write(self, line: bytes) -> None:
        """Write one line, given without terminator. Raises ProcessGone."""
        if not self.alive:
            raise ProcessGone("Codex's server has ended.")
        await self._child.stdin.write(line + b"\n")

    def on_message(self, message: Message) -> None:
        """An answer came."""
        number = int(message.id) if message.id.isdecimal() else -1
        pending = self._pending.pop(number, None)
        if pending is None:
            return  # too late
        if pending.on_response is not None:
            pending.on_response(message)
        if not pending.answer.done():
            pending.answer.set_result(message)

    def fail(self) -> None:
        """The server is gone: nothing will be answered any more."""
        self.alive = False
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(ProcessGone("Codex's server has ended."))

    async def _once(
        self,
        method: str,
        params: Mapping[str, Any],
        seconds: float,
        on_line: OnLine | None,
        on_response: OnResponse | None,
    ) -> Message:
        number = next(self._numbers)
        try:
            line = answers.encode_request(number, method, params)
        except ValueError as error:
            raise AgentFailed(
                f"The message {error}", error_pb2.ERROR_CODE_INVALID_REQUEST
            ) from error
        try:
            async with asyncio.timeout(seconds), self._slot():
                answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._pending[number] = _Pending(answer, on_response)
                if on_line is not None:
                    on_line(line)
                await self.write(line)
                return await answer
        except TimeoutError:
            raise TimedOut(
                f"Codex did not answer {method} within {seconds:g} seconds.",
                error_pb2.ERROR_CODE_AGENT_PROTOCOL,
            ) from None
        finally:
            self._pending.pop(number, None)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        async with self._slots:
            yield


def _code_of(number: int, message: str) -> error_pb2.ErrorCode.ValueType:
    if number == OVERLOADED:
        return error_pb2.ERROR_CODE_OVERLOADED
    if "no rollout found" in message or "thread not found" in message:
        return error_pb2.ERROR_CODE_SESSION_NOT_FOUND
    if number == -32602:
        return error_pb2.ERROR_CODE_INVALID_REQUEST
    return error_pb2.ERROR_CODE_AGENT_INTERNAL
