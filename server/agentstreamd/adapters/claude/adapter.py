"""Claude Code, Anthropic's coding agent, as an adapter."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

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
from agentstreamd.adapters.claude import client_side, ignored, launch, login
from agentstreamd.adapters.claude.connection import Limits
from agentstreamd.adapters.claude.driver import ClaudeDriver
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.process import ExitStatus, ProcessError, ProcessHost, ProcessSpec, plain_text

COMMAND_SECONDS = 20.0
"""How long `claude --version` and the like may take."""

_OUTPUT_BYTES = 16384

_PERMISSION_MODES = {
    agent_pb2.PERMISSION_MODE_DEFAULT: (
        "Reading is free; changing files, running commands that change something, and reaching the "
        "network are asked for, unless the user's or the project's settings of Claude Code allow "
        "them."
    ),
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: (
        "Changes of files in the working directory, and simple file commands there, are not asked "
        "for; everything else as in the default mode."
    ),
    agent_pb2.PERMISSION_MODE_PLAN: (
        "Claude looks and plans, and changes nothing; the plan is put before you as a permission "
        "of kind plan, and accepting it leaves this mode."
    ),
    agent_pb2.PERMISSION_MODE_BYPASS: (
        "Nothing is asked for but questions. For a daemon that runs as root this also sets "
        "IS_SANDBOX=1 for the agent, without which Claude Code refuses. Set during a session it "
        "takes effect with the next message, which restarts the agent."
    ),
}

# The aliases mean the newest model of their kind that the account may use; full names of models
# (claude-...) work too.
_MODELS = (
    ("opus", "Opus", "For everyday and complex tasks."),
    ("sonnet", "Sonnet", "Efficient, for routine tasks."),
    ("haiku", "Haiku", "Fastest, for quick answers."),
    ("opus[1m]", "Opus, long context", "Opus with a context of a million tokens."),
    ("sonnet[1m]", "Sonnet, long context", "Sonnet with a context of a million tokens."),
    ("opusplan", "Opus plans, Sonnet works", "Opus in permission mode plan, Sonnet otherwise."),
)


class ClaudeAdapter(Adapter):
    """Claude Code over its stream-json protocol; every session has a process of its own."""

    name = "claude"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._host: HostContext | None = None
        self._version: tuple[tuple[str, int, int], str] | None = None
        self._asking = asyncio.Lock()

    async def start(self, host: HostContext) -> None:
        """See `Adapter.start`."""
        self._host = host
        # Private files of sessions that a killed daemon left behind; no agent runs now.
        for path in host.state_directory.glob("*.json"):
            path.unlink(missing_ok=True)

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
            agent.version = await self._ask_version(Path(agent.executable_path))
        except (AgentUnavailable, ProcessError, OSError) as error:
            agent.state = agent_pb2.AGENT_STATE_UNUSABLE
            agent.unavailable_reason = str(error)
            return agent
        agent.state = agent_pb2.AGENT_STATE_AVAILABLE
        return agent

    async def login(self) -> agent_pb2.AgentLogin:
        """See `Adapter.login`."""
        executable = self._executable()
        try:
            # It exits with 1 where it is not logged in.
            _, said, _ = await _run(self._started(), executable, *login.COMMAND)
        except (ProcessError, OSError) as error:
            raise AgentUnavailable(str(error)) from error
        return login.read(said)

    def check(self, config: session_pb2.SessionConfig) -> None:
        """See `Adapter.check`."""
        launch.check(config)

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """See `Adapter.normalizer`."""
        return ClaudeNormalizer()

    def driver(self, context: DriverContext) -> Driver:
        """See `Adapter.driver`."""
        return ClaudeDriver(context, lambda: str(self._executable()), self._limits)

    def ignored(self, message: bytes) -> str:
        """See `Adapter.ignored`."""
        return ignored.ignored(message)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """See `Adapter.client_actions`."""
        return client_side.client_actions(messages)

    def _executable(self) -> Path:
        """The executable: the configured one, else `claude` on PATH. Raises AgentUnavailable."""
        host = self._started()
        wanted = host.executable or "claude"
        found = shutil.which(wanted, path=host.environment.get("PATH", os.defpath))
        if found is not None:
            return Path(found).absolute()
        if host.executable:
            raise AgentUnavailable(
                f"The configured executable {wanted} of Claude Code does not exist or can't be run."
            )
        raise AgentUnavailable(
            "Claude Code was not found: there is no `claude` on the daemon's PATH. Install it "
            "(npm install -g @anthropic-ai/claude-code), or configure the path of its executable."
        )

    async def _ask_version(self, executable: Path) -> str:
        status = os.stat(executable)
        key = (str(executable), status.st_mtime_ns, status.st_size)
        async with self._asking:  # one process, however many ask at once
            if self._version is None or self._version[0] != key:
                self._version = key, await _run_version(self._started(), executable)
            return self._version[1]

    def _started(self) -> HostContext:
        if self._host is None:
            raise RuntimeError("the adapter was not started")
        return self._host


def _description() -> agent_pb2.Agent:
    return agent_pb2.Agent(
        name="claude",
        display_name="Claude Code",
        capabilities=agent_pb2.AgentCapabilities(
            text_deltas=True,
            reasoning=True,
            permissions=True,
            accept_for_session=True,
            reject_message=True,
            updated_arguments=True,
            questions=True,
            forms=True,
            interrupt=True,
            image_input=True,
            file_input=True,
            commands=True,
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
            reject_and_interrupt=True,
        ),
        models=[
            agent_pb2.Model(name=name, display_name=display_name, description=description)
            for name, display_name, description in _MODELS
        ],
        permission_modes=[
            agent_pb2.PermissionModeInfo(mode=mode, description=description)
            for mode, description in _PERMISSION_MODES.items()
        ],
        options=[
            agent_pb2.AgentOption(name=name, description=option.description)
            for name, option in launch.OPTIONS.items()
        ],
    )


async def _run_version(host: HostContext, executable: Path) -> str:
    """What `claude --version` says. Raises AgentUnavailable and ProcessError."""
    status, said, stderr = await _run(host, executable, "--version")
    if status.code != 0 or not said.strip():
        raise AgentUnavailable(f"{executable} --version failed with {status}: {stderr[:500]}")
    # "2.1.197 (Claude Code)"
    return said.split()[0]


async def _run(host: HostContext, executable: Path, *arguments: str) -> tuple[ExitStatus, str, str]:
    """How a command of the CLI ended, and what it wrote. Raises AgentUnavailable, ProcessError."""
    processes: ProcessHost = host.processes
    command = f"{executable} {' '.join(arguments)}"
    child = await processes.spawn(
        ProcessSpec(
            argv=(str(executable), *arguments),
            cwd="/",
            env={**launch.DEFAULT_ENVIRONMENT, **host.environment},
            label=f"claude {arguments[0]}",
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
            f"{command} did not end within {COMMAND_SECONDS:g} seconds."
        ) from None
    finally:
        await child.stop()
    return status, plain_text(said), child.stderr.text().strip()
