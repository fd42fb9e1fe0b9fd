"""Codex, OpenAI's coding agent, as an adapter."""

import asyncio
import dataclasses
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import (
    Adapter,
    AgentFailed,
    AgentUnavailable,
    ClientAction,
    Driver,
    DriverContext,
    HostContext,
    Normalizer,
)
from agentstreamd.adapters.codex import client_side, ignored, launch, login
from agentstreamd.adapters.codex.driver import CodexDriver
from agentstreamd.adapters.codex.launch import ServerSpec
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.native import objects_in, text_in
from agentstreamd.adapters.codex.normalizer import CodexNormalizer
from agentstreamd.adapters.codex.permissions import POLICIES
from agentstreamd.adapters.codex.pool import Pool
from agentstreamd.process import ProcessError, ProcessSpec, plain_text

_log = logging.getLogger(__name__)

VERSION_SECONDS = 20.0
"""How long `codex --version` may take."""

ANSWER_SECONDS = 20.0
"""How long the server may take to list the models, or to say whether there is a login."""

_VERSION_BYTES = 4096

_Key = tuple[str, int, int]


class CodexAdapter(Adapter):
    """Codex through its app-server; sessions with the same environment share one process.

    Its options in the daemon's configuration file: `config`, a table of settings as in Codex's
    config.toml (keys may be dotted), which every server gets; `linger_seconds`, how long a server
    without sessions is kept.
    """

    name = "codex"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._host: HostContext | None = None
        self._pool: Pool | None = None
        self._known: tuple[_Key, str, list[agent_pb2.Model]] | None = None
        self._asking = asyncio.Lock()

    async def start(self, host: HostContext) -> None:
        """See `Adapter.start`."""
        self._host = host
        linger = host.options.get("linger_seconds")
        if isinstance(linger, int | float) and linger >= 0:
            self._limits = dataclasses.replace(self._limits, linger_seconds=float(linger))
        self._pool = Pool(host.processes, host.state_directory, self._limits)

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
        agent.models.extend(models)
        agent.state = agent_pb2.AGENT_STATE_AVAILABLE
        return agent

    async def login(self) -> agent_pb2.AgentLogin:
        """See `Adapter.login`. A server that runs already knows what was so when it started."""
        assert self._pool is not None, "the adapter was not started"
        try:
            spec = self._spec(self._started().environment, {})
            async with asyncio.timeout(ANSWER_SECONDS), self._pool.using(spec) as server:
                answer = await server.rpc.request(login.METHOD, login.PARAMS)
        except (ProcessError, TimeoutError, OSError, ValueError) as error:
            raise AgentUnavailable(str(error) or "Codex's server did not answer") from error
        return login.read(answer.result)

    def check(self, config: session_pb2.SessionConfig) -> None:
        """See `Adapter.check`."""
        launch.check(config)

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """See `Adapter.normalizer`. Of a transcript with several sessions it takes the one that
        `resume_native_session_id` names, else the first.
        """
        return CodexNormalizer(config.resume_native_session_id, hears_client=False)

    def driver(self, context: DriverContext) -> Driver:
        """See `Adapter.driver`."""
        assert self._pool is not None, "the adapter was not started"
        return CodexDriver(
            context,
            self._pool,
            lambda: self._spec(context.environment, dict(context.config.env)),
            self._limits,
        )

    def ignored(self, message: bytes) -> str:
        """See `Adapter.ignored`."""
        return ignored.ignored(message)

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        """See `Adapter.client_actions`."""
        return client_side.client_actions(messages)

    def refused(self, message: bytes) -> str:
        """See `Adapter.refused`."""
        return client_side.refused(message)

    def _spec(self, environment: Mapping[str, str], env: Mapping[str, str]) -> ServerSpec:
        """Which server. Raises AgentUnavailable, and ValueError for settings it can't have."""
        configured = self._started().options.get("config", {})
        if not isinstance(configured, Mapping):
            raise ValueError("the option config of Codex must be a table")
        return launch.server_spec(str(self._executable()), environment, env, configured)

    def _executable(self) -> Path:
        """The executable: the configured one, else `codex` on PATH. Raises AgentUnavailable."""
        host = self._started()
        wanted = host.executable or "codex"
        found = shutil.which(wanted, path=host.environment.get("PATH", os.defpath))
        if found is not None:
            return _native(Path(found).absolute())
        if host.executable:
            raise AgentUnavailable(
                f"The configured executable {wanted} of Codex does not exist or can't be run."
            )
        raise AgentUnavailable(
            "Codex was not found: there is no `codex` on the daemon's PATH. Install it "
            "(npm install -g @openai/codex), or configure the path of its executable."
        )

    async def _ask(self, executable: Path) -> tuple[str, list[agent_pb2.Model]]:
        status = os.stat(executable)
        key = (str(executable), status.st_mtime_ns, status.st_size)
        async with self._asking:  # one process, however many ask at once
            if self._known is None or self._known[0] != key:
                version = await _run_version(self._started(), executable)
                self._known = key, version, await self._ask_models()
            return self._known[1], self._known[2]

    async def _ask_models(self) -> list[agent_pb2.Model]:
        """The models that Codex lists; none where it fails to: sessions may work all the same."""
        assert self._pool is not None
        try:
            spec = self._spec(self._started().environment, {})
            async with asyncio.timeout(ANSWER_SECONDS), self._pool.using(spec) as server:
                answer = await server.rpc.request("model/list", {})
        except (AgentFailed, AgentUnavailable, ProcessError, TimeoutError, ValueError) as error:
            _log.warning("Codex does not list its models: %s", error)
            return []
        return [
            agent_pb2.Model(
                name=text_in(model, "model") or text_in(model, "id"),
                display_name=text_in(model, "displayName"),
                description=text_in(model, "description"),
            )
            for model in objects_in(answer.result, "data")
            if model.get("hidden") is not True
        ]

    def _started(self) -> HostContext:
        if self._host is None:
            raise RuntimeError("the adapter was not started")
        return self._host


def _native(found: Path) -> Path:
    """The native program behind the launcher that npm installs.

    The launcher is a Node program: it costs a second, and killed it leaves the native one running.
    """
    package = found.resolve().parent.parent
    if found.resolve().suffix not in (".js", ".mjs"):
        return found
    for root in (package / "vendor", *sorted(package.glob("node_modules/@openai/codex-*/vendor"))):
        for program in sorted(root.glob("*/bin/codex")):
            if os.access(program, os.X_OK):
                return program
    for root in sorted(package.parent.glob("codex-*/vendor")):
        for program in sorted(root.glob("*/bin/codex")):
            if os.access(program, os.X_OK):
                return program
    return found


def _description() -> agent_pb2.Agent:
    return agent_pb2.Agent(
        name="codex",
        display_name="Codex",
        capabilities=agent_pb2.AgentCapabilities(
            text_deltas=True,
            reasoning=True,
            tool_output_deltas=True,
            permissions=True,
            accept_for_session=True,
            questions=True,
            forms=True,
            interrupt=True,
            steer=True,
            image_input=True,
            commands=True,
            change_model=True,
            change_permission_mode=True,
            resume=True,
            system_prompt=True,
            mcp_servers=True,
            usage=True,
            sub_agents=True,
            image_output=True,
            effort=True,
            message_model=True,
            message_effort=True,
            reject_and_interrupt=True,
        ),
        permission_modes=[
            agent_pb2.PermissionModeInfo(mode=mode, description=policy.description)
            for mode, policy in POLICIES.items()
            if mode
        ],
        options=[
            agent_pb2.AgentOption(name=name, description=description)
            for name, description in launch.OPTIONS.items()
        ],
    )


async def _run_version(host: HostContext, executable: Path) -> str:
    """What `codex --version` says. Raises AgentUnavailable and ProcessError."""
    child = await host.processes.spawn(
        ProcessSpec(
            argv=(str(executable), "--version"),
            cwd="/",
            env={**launch.DEFAULT_ENVIRONMENT, **host.environment},
            label="codex --version",
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
    if status.code != 0 or not said.strip():
        raise AgentUnavailable(
            f"{executable} --version failed with {status}: {child.stderr.text().strip()[:500]}"
        )
    # "codex-cli 0.171.0"
    return plain_text(said).split()[-1]
