"""The mock agent's driver: carries messages to the program and its lines to the session."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from google.protobuf import json_format

from agentstream.v1 import agent_pb2, error_pb2, interaction_pb2
from agentstreamd.adapters.base import (
    AgentExit,
    AgentFailed,
    Answer,
    Driver,
    DriverContext,
    NotDelivered,
    Prompt,
)
from agentstreamd.adapters.mock.host import MockHost
from agentstreamd.adapters.mock.normalizer import MockNormalizer
from agentstreamd.model import Draft, unparsed
from agentstreamd.process import Line, OversizedLine, ProcessError

_Json = dict[str, Any]

_ACK = b'{"type":"ack"'
_encode = msgspec.json.Encoder().encode

MODES = {
    agent_pb2.PERMISSION_MODE_DEFAULT: "default",
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: "accept_edits",
    agent_pb2.PERMISSION_MODE_PLAN: "plan",
    agent_pb2.PERMISSION_MODE_BYPASS: "bypass",
}


class MockDriver(Driver):
    """Drives one session."""

    def __init__(
        self,
        context: DriverContext,
        open_host: Callable[[DriverContext], Awaitable[MockHost]],
        *,
        shared: bool,
        ack_timeout_seconds: float,
    ) -> None:
        """`open_host` gives a running program; when `shared`, one that other sessions are in."""
        self._context = context
        self._open_host = open_host
        self._shared = shared
        self._ack_timeout = ack_timeout_seconds
        self._normalizer = MockNormalizer()
        self._host: MockHost | None = None
        self._acks: dict[str, asyncio.Future[str]] = {}
        self._last_ack = 0
        self._settings: _Json = _settings(context)
        options = context.config.agent_options
        self._answers_to_lose = int(options.get("lose_answers", "0"))
        self._start_error = options.get("start_error", "")
        self._turns = int(context.state or b"0")

    async def send(self, prompt: Prompt) -> None:
        """See Driver."""
        if self._start_error:
            raise AgentFailed(self._start_error, error_pb2.ERROR_CODE_AGENT_START_FAILED)
        host = await self._running_host()
        self._turns += 1
        self._context.sink.save_state(str(self._turns).encode())
        line = self._message("prompt", **_prompt(prompt))
        self._normalizer.sent(line)
        try:
            await host.write(line)
        except ProcessError as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_AGENT_EXITED) from error

    async def steer(self, prompt: Prompt) -> None:
        """See Driver."""
        try:
            refusal = await self._acknowledged("steer", _prompt(prompt))
        except ProcessError as error:
            raise NotDelivered("The mock agent is gone.") from error
        except TimeoutError as error:
            message = "The mock agent did not take the message in time."
            raise AgentFailed(message, error_pb2.ERROR_CODE_AGENT_PROTOCOL) from error
        if refusal:
            raise NotDelivered(refusal)

    async def interrupt(self) -> None:
        """See Driver."""
        if self._host is not None:
            try:
                await self._host.write(self._message("interrupt"))
            except ProcessError as error:
                raise AgentFailed(str(error), error_pb2.ERROR_CODE_AGENT_EXITED) from error

    async def answer(self, request_id: str, answer: Answer) -> None:
        """See Driver."""
        if self._answers_to_lose > 0:
            self._answers_to_lose -= 1
            raise NotDelivered("The answer was lost on purpose (agent_options[lose_answers]).")
        if self._host is None:
            raise NotDelivered("The mock agent is not running.")
        line = self._message("answer", request_id=request_id, answer=_answer(answer))
        try:
            await self._host.write(line)
        except ProcessError as error:
            raise NotDelivered(str(error)) from error

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """See Driver."""
        changes: _Json = {}
        if model is not None:
            changes["model"] = model
        if permission_mode is not None:
            changes["permission_mode"] = MODES.get(permission_mode, "default")
        self._settings |= changes
        if self._host is None:
            return
        try:
            await self._acknowledged("update", changes)
        except (ProcessError, TimeoutError) as error:
            raise AgentFailed(
                "The mock agent did not take the change.", error_pb2.ERROR_CODE_AGENT_PROTOCOL
            ) from error

    async def close(self, *, forget: bool = False) -> None:
        """See Driver."""
        host = self._host
        if host is None:
            return
        if not self._shared:
            await host.close()
            return
        # Others are in the program, which goes on for them; the last one ends it.
        session = self._context.session_id
        if not host.ended:
            await host.write(self._message("stop"))
        host.detach(session)
        self.exited(AgentExit(expected=True))
        if host.is_empty:
            await host.close()

    async def received(self, lines: list[Line]) -> None:
        """Lines that the program wrote for this session."""
        drafts: list[Draft] = []
        feed = self._normalizer.feed
        for line in lines:
            if isinstance(line, OversizedLine):
                drafts.append(unparsed(line.head, "the line is too long", size_bytes=line.length))
                continue
            if line.startswith(_ACK):
                self._take_ack(line)
            drafts += feed(line)
        if drafts:
            await self._context.sink.publish(drafts)

    def exited(self, exit: AgentExit) -> None:
        """The program has ended, or the session has left it."""
        if self._host is None:
            return
        self._host = None
        for waiting in self._acks.values():
            if not waiting.done():
                waiting.set_exception(TimeoutError("the agent is gone"))
        self._acks.clear()
        self._normalizer = MockNormalizer()
        self._context.sink.exited(exit)

    async def _running_host(self) -> MockHost:
        if self._host is not None and not self._host.ended:
            return self._host
        try:
            host = await self._open_host(self._context)
            host.attach(self._context.session_id, self)
            self._host = host
            await host.write(
                self._message(
                    "start",
                    native_session_id=self._native_session_id(),
                    settings=self._settings,
                    turns=self._turns,
                )
            )
        except ProcessError as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_AGENT_START_FAILED) from error
        return host

    def _native_session_id(self) -> str:
        context = self._context
        resumed = context.native_session_id or context.config.resume_native_session_id
        return resumed or f"mock-{context.session_id}"

    def _message(self, kind: str, **fields: Any) -> bytes:
        return _encode({"type": kind, "session": self._context.session_id, **fields})

    async def _acknowledged(self, kind: str, fields: _Json) -> str:
        """Send a message and wait until the program took it; returns why it refuses to."""
        if self._host is None:
            return "The mock agent is not running."
        self._last_ack += 1
        ack_id = f"{kind}-{self._last_ack}"
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._acks[ack_id] = waiting
        await self._host.write(self._message(kind, **{**fields, "id": ack_id}))
        async with asyncio.timeout(self._ack_timeout):
            return await waiting

    def _take_ack(self, line: bytes) -> None:
        ack = json.loads(line)
        waiting = self._acks.pop(str(ack.get("id")), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(str(ack.get("error", "")))


def _settings(context: DriverContext) -> _Json:
    config = context.config
    return {
        "working_directory": config.working_directory,
        "model": config.model,
        "mode": config.mode,
        "permission_mode": MODES.get(config.permission_mode, "default"),
        "system_prompt": config.system_prompt,
        "effort": config.effort,
        "environment": sorted(config.env),
        "mcp_servers": sorted(server.name for server in config.mcp_servers),
    }


def _prompt(prompt: Prompt) -> _Json:
    parts = [
        json_format.MessageToDict(part, preserving_proto_field_name=True) for part in prompt.parts
    ]
    chosen = {"model": prompt.model, "effort": prompt.effort}
    return {
        "id": prompt.message_id,
        "parts": parts,
        "command": prompt.command,
        **{name: value for name, value in chosen.items() if value},
    }


def _answer(answer: Answer) -> _Json:
    match answer:
        case interaction_pb2.PermissionAnswer():
            kind = "permission"
        case interaction_pb2.QuestionAnswer():
            kind = "question"
        case _:
            kind = "form"
    return {kind: json_format.MessageToDict(answer, preserving_proto_field_name=True)}
