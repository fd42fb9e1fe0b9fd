"""The mock agent's adapter: what it is, its options, its host."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf import json_format

from agentstream.v1 import agent_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import (
    Adapter,
    Answer,
    ClientAction,
    Driver,
    DriverContext,
    HostContext,
    InvalidSetting,
    Normalizer,
    Prompt,
)
from agentstreamd.adapters.login import logged_in
from agentstreamd.adapters.mock.driver import MockDriver
from agentstreamd.adapters.mock.host import Channel, LocalChannel, MockHost, ProcessChannel
from agentstreamd.adapters.mock.normalizer import MockNormalizer, ignored
from agentstreamd.adapters.mock.session import DEFAULT_MODEL, VERSION
from agentstreamd.process import ProcessSpec

_SWITCHES = ("process", "shared_host")

_OPTIONS = {
    "process": "`true`: run the agent as a real process. Default `false`: inside the daemon.",
    "shared_host": (
        "`true`: all sessions with this option share one agent, which takes all their turns with "
        "it when it crashes. Default `false`."
    ),
    "lose_answers": "So many answers fail to be delivered before one is. Default 0.",
    "start_error": "The agent can't be started, and this text says why. Default empty.",
}

_PERMISSION_MODES = {
    agent_pb2.PERMISSION_MODE_DEFAULT: "Every `ask` of a script asks.",
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: "`ask permission file_change` is accepted unasked.",
    agent_pb2.PERMISSION_MODE_PLAN: "The same as default: a script does what it says.",
    agent_pb2.PERMISSION_MODE_BYPASS: "Every `ask permission` is accepted unasked.",
}

_ANSWERS: dict[str, type[Answer]] = {
    "permission": interaction_pb2.PermissionAnswer,
    "question": interaction_pb2.QuestionAnswer,
    "form": interaction_pb2.FormAnswer,
}

_MAX_LINE_BYTES = 64 * 1024 * 1024
_ACK_TIMEOUT_SECONDS = 10.0


class MockAdapter(Adapter):
    """The mock agent.

    Its table of the configuration file takes `max_line_bytes` (a longer line is
    `agent_unparsed`) and `ack_timeout_seconds` (how long it may take to acknowledge a message).
    """

    name = "mock"

    def __init__(self) -> None:
        """Nothing runs."""
        self._max_line_bytes = _MAX_LINE_BYTES
        self._ack_timeout_seconds = _ACK_TIMEOUT_SECONDS
        self._shared: dict[bool, MockHost] = {}
        self._opening = asyncio.Lock()

    async def start(self, host: HostContext) -> None:
        """See Adapter."""
        self._max_line_bytes = int(_number(host.options, "max_line_bytes", _MAX_LINE_BYTES))
        self._ack_timeout_seconds = _number(
            host.options, "ack_timeout_seconds", _ACK_TIMEOUT_SECONDS
        )

    async def close(self) -> None:
        """See Adapter."""
        for host in list(self._shared.values()):
            await host.close()

    async def describe(self) -> agent_pb2.Agent:
        """See Adapter."""
        agent = agent_pb2.Agent(
            name=self.name,
            display_name="Mock agent",
            state=agent_pb2.AGENT_STATE_AVAILABLE,
            version=VERSION,
        )
        for field in agent_pb2.AgentCapabilities.DESCRIPTOR.fields:
            setattr(agent.capabilities, field.name, True)
        agent.models.add(name=DEFAULT_MODEL, display_name="Mock 1", description="Does as told.")
        agent.models.add(name="mock-2", display_name="Mock 2", description="Does the same.")
        agent.modes.add(name="scripted", description="Plays the script in the message.")
        for mode, description in _PERMISSION_MODES.items():
            agent.permission_modes.add(mode=mode, description=description)
        for name, description in _OPTIONS.items():
            agent.options.add(name=name, description=description)
        return agent

    async def login(self) -> agent_pb2.AgentLogin:
        """See Adapter."""
        return logged_in("it needs none")

    def check(self, config: session_pb2.SessionConfig) -> None:
        """See Adapter."""
        for name, value in config.agent_options.items():
            path = f"agent_options[{name}]"
            if name not in _OPTIONS:
                known = ", ".join(_OPTIONS)
                raise InvalidSetting(
                    path, f"The mock agent has no option {name!r}; it has {known}."
                )
            if name in _SWITCHES and value not in ("true", "false"):
                raise InvalidSetting(path, f"{name} is true or false, not {value!r}.")
            if name == "lose_answers" and not value.isdecimal():
                raise InvalidSetting(path, f"lose_answers is a number, not {value!r}.")
        if config.mode not in ("", "scripted"):
            raise InvalidSetting("mode", f"The mock agent has no mode {config.mode!r}.")

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """See Adapter."""
        return MockNormalizer()

    def driver(self, context: DriverContext) -> Driver:
        """See Adapter."""
        shared = context.config.agent_options.get("shared_host") == "true"
        return MockDriver(
            context,
            self._shared_host if shared else self._own_host,
            shared=shared,
            ack_timeout_seconds=self._ack_timeout_seconds,
        )

    def ignored(self, message: bytes) -> str:
        """See Adapter."""
        return ignored(message)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """See Adapter."""
        actions = (_client_action(message) for message in messages)
        return [action for action in actions if action is not None]

    async def _own_host(self, context: DriverContext) -> MockHost:
        channel = await _open_channel(context)
        return MockHost(channel, max_line_bytes=self._max_line_bytes)

    async def _shared_host(self, context: DriverContext) -> MockHost:
        is_process = context.config.agent_options.get("process") == "true"
        # Two sessions that start at once must not start two hosts.
        async with self._opening:
            host = self._shared.get(is_process)
            if host is None or host.ended:
                channel = await _open_channel(context)
                host = self._shared[is_process] = MockHost(
                    channel, max_line_bytes=self._max_line_bytes
                )
            return host


async def _open_channel(context: DriverContext) -> Channel:
    if context.config.agent_options.get("process") != "true":
        return LocalChannel()
    spec = ProcessSpec(
        # -P: the working directory is the user's; nothing is to be imported from it.
        argv=(sys.executable, "-P", "-m", "agentstreamd.adapters.mock.program"),
        cwd=context.config.working_directory,
        env={**context.environment, **context.config.env},
        label="mock agent",
    )
    return ProcessChannel(await context.processes.spawn(spec))


def _client_action(message: bytes) -> ClientAction | None:
    try:
        native = msgspec.json.decode(message)
        match native.get("type"):
            case "prompt":
                parts = tuple(
                    json_format.ParseDict(part, service_pb2.InputPart())
                    for part in native.get("parts", ())
                )
                prompt = Prompt(
                    turn_id="",
                    message_id=str(native.get("id", "")),
                    parts=parts,
                    command=bool(native.get("command")),
                )
                return ClientAction(message, prompt=prompt)
            case "answer":
                ((kind, fields),) = native.get("answer", {}).items()
                answer = json_format.ParseDict(fields, _ANSWERS[kind]())
                return ClientAction(
                    message, request_id=str(native.get("request_id", "")), answer=answer
                )
    except (AttributeError, LookupError, TypeError, ValueError, json_format.ParseError):
        # Not a message of ours; the transcript's other side may hold anything.
        return None
    return None


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"agents.mock.options.{name} must be a number above 0, not {value!r}")
    return value
