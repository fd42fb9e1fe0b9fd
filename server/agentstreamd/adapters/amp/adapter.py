"""Amp, the coding agent of Sourcegraph, as an adapter."""

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.amp import client_side, ignored, launch, login, version
from agentstreamd.adapters.amp.connection import Limits
from agentstreamd.adapters.amp.desk import PermissionDesk
from agentstreamd.adapters.amp.driver import AmpDriver
from agentstreamd.adapters.amp.normalizer import AmpNormalizer
from agentstreamd.adapters.base import (
    Adapter,
    AgentUnavailable,
    ClientAction,
    Driver,
    DriverContext,
    HostContext,
    Normalizer,
)
from agentstreamd.process import ProcessError, ProcessSpec, plain_text

VERSION_SECONDS = 30.0
"""How long `amp --version` may take."""

_VERSION_BYTES = 4096
_PACKAGES = ("@sourcegraph/amp", "@ampcode/cli")

_PERMISSION_MODES = {
    agent_pb2.PERMISSION_MODE_DEFAULT: (
        "Reading files, searching and sub-agents are free (what sub-agents do is not); every "
        "command, file change, page of the web, MCP tool and other tool is asked for."
    ),
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: (
        "Changes of files in the working directory are not asked for, except under .amp and .git; "
        "everything else as in the default mode."
    ),
    agent_pb2.PERMISSION_MODE_PLAN: (
        "Reading, searching and sub-agents are free, the network is asked for, and everything else "
        "is refused; the model is told why."
    ),
    agent_pb2.PERMISSION_MODE_BYPASS: (
        "Nothing is asked for (--dangerously-allow-all), and rules that reject are not looked at. "
        "Left during a session, the agent is restarted with the next message."
    ),
}


class AmpAdapter(Adapter):
    """Amp over its stream-json protocol; every session has a process of its own."""

    name = "amp"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._host: HostContext | None = None
        self._desk: PermissionDesk | None = None
        self._version: tuple[tuple[str, int, int], str] | None = None
        self._asking = asyncio.Lock()

    async def start(self, host: HostContext) -> None:
        """See `Adapter.start`."""
        self._host = host
        self._desk = PermissionDesk(host.state_directory)
        # Private files of sessions that a killed daemon left behind; no agent runs now.
        for pattern in ("*.json", "*.permit", "*.sock"):
            for path in host.state_directory.glob(pattern):
                path.unlink(missing_ok=True)

    async def close(self) -> None:
        """See `Adapter.close`."""
        if self._desk is not None:
            await self._desk.close()

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
            _, agent.version = await self.installed()
        except (AgentUnavailable, ProcessError, OSError) as error:
            agent.state = agent_pb2.AGENT_STATE_UNUSABLE
            agent.unavailable_reason = str(error)
            return agent
        agent.state = agent_pb2.AGENT_STATE_AVAILABLE
        agent.capabilities.image_input = version.takes_images(agent.version)
        for name, description in version.modes(agent.version):
            agent.modes.add(name=name, description=description)
        return agent

    async def login(self) -> agent_pb2.AgentLogin:
        """See `Adapter.login`."""
        return login.read(self._started().environment)

    def check(self, config: session_pb2.SessionConfig) -> None:
        """See `Adapter.check`."""
        launch.check(config)

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """See `Adapter.normalizer`."""
        return AmpNormalizer(one_shot=config.one_shot)

    def driver(self, context: DriverContext) -> Driver:
        """See `Adapter.driver`."""
        if self._desk is None:
            raise RuntimeError("the adapter was not started")
        return AmpDriver(context, self.installed, self._desk, self._limits)

    def ignored(self, message: bytes) -> str:
        """See `Adapter.ignored`."""
        return ignored.ignored(message)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """See `Adapter.client_actions`."""
        return client_side.client_actions(messages)

    async def installed(self) -> tuple[str, str]:
        """Path and version of the executable.

        Raises AgentUnavailable, ProcessError and OSError.
        """
        executable = self._executable()
        status = os.stat(executable)
        key = (str(executable), status.st_mtime_ns, status.st_size)
        async with self._asking:  # one process, however many ask at once
            if self._version is None or self._version[0] != key:
                found = _package_version(executable) or await self._run_version(executable)
                self._version = key, found
            return str(executable), self._version[1]

    def _executable(self) -> Path:
        """The executable: the configured one, else `amp` on PATH. Raises AgentUnavailable."""
        host = self._started()
        wanted = host.executable or "amp"
        found = shutil.which(wanted, path=host.environment.get("PATH", os.defpath))
        if found is not None:
            return Path(found).absolute()
        if host.executable:
            raise AgentUnavailable(
                f"The configured executable {wanted} of Amp does not exist or can't be run."
            )
        raise AgentUnavailable(
            "Amp was not found: there is no `amp` on the daemon's PATH. Install it "
            "(npm install -g @sourcegraph/amp), or configure the path of its executable."
        )

    async def _run_version(self, executable: Path) -> str:
        """What `amp --version` says. Raises AgentUnavailable and ProcessError."""
        host = self._started()
        child = await host.processes.spawn(
            ProcessSpec(
                argv=(str(executable), "--version"),
                cwd="/",
                env=dict(host.environment),
                label="amp --version",
            )
        )
        said = b""
        try:
            child.close_stdin()
            async with asyncio.timeout(VERSION_SECONDS):
                while len(said) < _VERSION_BYTES and (chunk := await child.stdout.read()):
                    said += chunk
                status = await child.wait()
        except TimeoutError:
            raise AgentUnavailable(
                f"{executable} --version did not end within {VERSION_SECONDS:g} seconds."
            ) from None
        finally:
            await child.stop()
        found = version.read_version(plain_text(said))
        if status.code != 0 or not found:
            why = child.stderr.text().strip()[:500] or plain_text(said).strip()[:500]
            raise AgentUnavailable(f"{executable} --version failed with {status}: {why}")
        return found

    def _started(self) -> HostContext:
        if self._host is None:
            raise RuntimeError("the adapter was not started")
        return self._host


def _package_version(executable: Path) -> str:
    """The version an npm package says it has; empty elsewhere. Running the CLI takes a second."""
    for folder in list(executable.resolve().parents)[:4]:
        try:
            package = json.loads((folder / "package.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and package.get("name", "").startswith(_PACKAGES):
            return version.read_version(str(package.get("version", "")))
    return ""


def _description() -> agent_pb2.Agent:
    return agent_pb2.Agent(
        name="amp",
        display_name="Amp",
        capabilities=agent_pb2.AgentCapabilities(
            reasoning=True,
            permissions=True,
            accept_for_session=True,
            reject_message=True,
            interrupt=True,
            change_permission_mode=True,
            resume=True,
            mcp_servers=True,
            usage=True,
            image_output=True,
            reject_and_interrupt=True,
        ),
        permission_modes=[
            agent_pb2.PermissionModeInfo(mode=mode, description=description)
            for mode, description in _PERMISSION_MODES.items()
        ],
        options=[
            agent_pb2.AgentOption(name=name, description=option.description)
            for name, option in launch.OPTIONS.items()
        ],
    )
