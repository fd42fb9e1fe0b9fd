"""OpenCode as an adapter: the servers of the daemon, and what OpenCode can do."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import (
    Adapter,
    AgentUnavailable,
    ClientAction,
    Driver,
    DriverContext,
    HostContext,
    Normalizer,
)
from agentstreamd.adapters.opencode import client_side, ignored, launch, login
from agentstreamd.adapters.opencode.driver import OpenCodeDriver
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.adapters.opencode.pool import Pool
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.process import ProcessError, ProcessSpec, plain_text

COMMAND_SECONDS = 20.0
"""How long `opencode --version` and `opencode models` may take."""

_Settings = TypeVar("_Settings", Limits, Guards)

_OUTPUT_BYTES = 1024 * 1024
_MODELS_SHOWN = 500

_PERMISSION_MODES = {
    agent_pb2.PERMISSION_MODE_DEFAULT: (
        "Commands, changes of files, the web and the session's MCP servers are asked for, for "
        "sub-agents too; reading inside the working directory is free."
    ),
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: (
        "Changes of files in the working directory are not asked for; the rest as in the default "
        "mode."
    ),
    agent_pb2.PERMISSION_MODE_PLAN: (
        "Changes of files are refused, commands and the web are asked for; OpenCode's agent `plan` "
        "is used unless another is named."
    ),
    agent_pb2.PERMISSION_MODE_BYPASS: "Nothing is asked for but questions.",
}
_MODES = (
    ("build", "OpenCode's default agent, which does the work."),
    ("plan", "Looks and plans; changes of files are refused."),
)


class OpenCodeAdapter(Adapter):
    """OpenCode over its own server; sessions share one where their environments agree."""

    name = "opencode"

    def __init__(
        self,
        limits: Limits | None = None,
        guards: Guards | None = None,
        via: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._guards = guards or Guards()
        self._via = via
        self._host: HostContext | None = None
        self._pool: Pool | None = None
        self._known: tuple[tuple[str, int, int], str, list[str]] | None = None
        self._asking = asyncio.Lock()

    async def start(self, host: HostContext) -> None:
        """See `Adapter.start`. Raises ValueError for an option that is none."""
        self._host = host
        known = {field.name for kind in (Limits, Guards) for field in fields(kind)}
        for name, value in host.options.items():
            where = f"agents.opencode.options.{name}"
            if name not in known:
                raise ValueError(f"{where} is not an option; there are: {', '.join(sorted(known))}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"{where} must be a number of at least 0, not {value!r}")
        self._limits = _replaced(self._limits, host.options)
        self._guards = _replaced(self._guards, host.options)
        self._pool = Pool(host.processes, host.state_directory, self._limits, self._via)

    async def close(self) -> None:
        """See `Adapter.close`."""
        if self._pool is not None:
            await self._pool.close()

    async def describe(self) -> agent_pb2.Agent:
        """See `Adapter.describe`."""
        agent = _description()
        try:
            agent.executable_path = str(self._executable())
        except AgentUnavailable as error:
            agent.state = agent_pb2.AGENT_STATE_NOT_INSTALLED
            agent.unavailable_reason = str(error)
            return agent
        try:
            agent.version, models = await self._ask(Path(agent.executable_path))
        except (AgentUnavailable, ProcessError, OSError) as error:
            agent.state = agent_pb2.AGENT_STATE_UNUSABLE
            agent.unavailable_reason = str(error)
            return agent
        agent.models.extend(agent_pb2.Model(name=name) for name in models)
        agent.state = agent_pb2.AGENT_STATE_AVAILABLE
        return agent

    async def login(self) -> agent_pb2.AgentLogin:
        """See `Adapter.login`."""
        try:
            return login.read(await self._ask_models(self._executable()))
        except (ProcessError, OSError) as error:
            raise AgentUnavailable(str(error)) from error

    def check(self, config: session_pb2.SessionConfig) -> None:
        """See `Adapter.check`."""
        launch.check(config)

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """See `Adapter.normalizer`."""
        return OpenCodeNormalizer(mcp_servers=[server.name for server in config.mcp_servers])

    def driver(self, context: DriverContext) -> Driver:
        """See `Adapter.driver`."""
        if self._pool is None:
            raise RuntimeError("the adapter was not started")
        return OpenCodeDriver(
            context, lambda: str(self._executable()), self._pool, self._limits, self._guards
        )

    def ignored(self, message: bytes) -> str:
        """See `Adapter.ignored`."""
        return ignored.ignored(message)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """See `Adapter.client_actions`."""
        return client_side.client_actions(messages)

    def _executable(self) -> Path:
        """The executable: the configured one, else `opencode` on PATH. Raises AgentUnavailable."""
        host = self._started()
        wanted = host.executable or "opencode"
        found = shutil.which(wanted, path=host.environment.get("PATH", os.defpath))
        if found is not None:
            return Path(found).absolute()
        if host.executable:
            raise AgentUnavailable(
                f"The configured executable {wanted} of OpenCode does not exist or can't be run."
            )
        raise AgentUnavailable(
            "OpenCode was not found: there is no `opencode` on the daemon's PATH. Install it "
            "(npm install -g opencode-ai), or configure the path of its executable."
        )

    async def _ask(self, executable: Path) -> tuple[str, list[str]]:
        """The version, and the models that the daemon's own login and settings offer."""
        status = os.stat(executable)
        key = (str(executable), status.st_mtime_ns, status.st_size)
        async with self._asking:  # one process, however many ask at once
            if self._known is None or self._known[0] != key:
                version = (await self._run(executable, "--version")).split()
                if not version:
                    raise AgentUnavailable(f"{executable} --version said nothing.")
                try:
                    models = await self._ask_models(executable)
                except AgentUnavailable:
                    models = []
                self._known = key, version[0], models[:_MODELS_SHOWN]
            return self._known[1], self._known[2]

    async def _ask_models(self, executable: Path) -> list[str]:
        """The models, as `provider/model`. Raises AgentUnavailable and ProcessError."""
        said = (await self._run(executable, "models")).split("\n")
        return [line.strip() for line in said if "/" in line and " " not in line.strip()]

    async def _run(self, executable: Path, argument: str) -> str:
        """What a command of the CLI prints. Raises AgentUnavailable and ProcessError."""
        host = self._started()
        child = await host.processes.spawn(
            ProcessSpec(
                argv=(str(executable), argument),
                cwd=str(host.state_directory),
                env={**launch.DEFAULT_ENVIRONMENT, **host.environment},
                label=f"opencode {argument}",
            )
        )
        said = b""
        try:
            child.close_stdin()
            async with asyncio.timeout(COMMAND_SECONDS):
                while len(said) < _OUTPUT_BYTES and (chunk := await child.stdout.read()):
                    said += chunk
                status = await child.wait()
        except TimeoutError:
            raise AgentUnavailable(
                f"{executable} {argument} did not end within {COMMAND_SECONDS:g} seconds."
            ) from None
        finally:
            await child.stop()
        if status.code != 0:
            why = child.stderr.text().strip()[:500]
            raise AgentUnavailable(f"{executable} {argument} failed with {status}: {why}")
        return plain_text(said)

    def _started(self) -> HostContext:
        if self._host is None:
            raise RuntimeError("the adapter was not started")
        return self._host


def _replaced(settings: _Settings, options: Mapping[str, object]) -> _Settings:
    """The settings, with those options that are theirs."""
    names = {field.name for field in fields(settings)}
    theirs: dict[str, Any] = {k: v for k, v in options.items() if k in names}
    return replace(settings, **theirs)


def _description() -> agent_pb2.Agent:
    return agent_pb2.Agent(
        name="opencode",
        display_name="OpenCode",
        capabilities=agent_pb2.AgentCapabilities(
            text_deltas=True,
            reasoning=True,
            tool_output_deltas=True,
            permissions=True,
            accept_for_session=True,
            reject_message=True,
            questions=True,
            interrupt=True,
            steer=True,
            image_input=True,
            file_input=True,
            change_model=True,
            change_permission_mode=True,
            resume=True,
            system_prompt=True,
            mcp_servers=True,
            usage=True,
            cost=True,
            sub_agents=True,
            image_output=True,
            effort=True,
            commands=True,
            reject_and_interrupt=True,
        ),
        modes=[agent_pb2.AgentMode(name=name, description=text) for name, text in _MODES],
        permission_modes=[
            agent_pb2.PermissionModeInfo(mode=mode, description=description)
            for mode, description in _PERMISSION_MODES.items()
        ],
        options=[
            agent_pb2.AgentOption(name=name, description=option.description)
            for name, option in launch.OPTIONS.items()
        ],
    )
