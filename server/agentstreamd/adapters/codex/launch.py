"""How Codex is started and what its threads are started with: settings to parameters. Pure.

Secrets (environments and headers of MCP servers) go to the server in messages, never on a command
line, which any user of the machine can read.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting
from agentstreamd.adapters.codex.native import JsonObject
from agentstreamd.adapters.codex.permissions import (
    APPROVALS,
    PLAN_MODE,
    POLICIES,
    SANDBOXES,
    sandbox_policy,
)

DEFAULT_CONFIG: Mapping[str, object] = {
    # A session must not change under its user, nor call anything but the model.
    "check_for_update_on_startup": False,
    "analytics.enabled": False,
    "feedback.enabled": False,
    # A model that can't be reached must fail the turn: without this Codex tries for ever.
    "features.unbounded_connection_retries": False,
    # Questions outside plan mode; the model has no tool for them otherwise.
    "features.default_mode_request_user_input": True,
    "suppress_unstable_features_warning": True,
}
"""Settings of each server, as in Codex's config.toml; the daemon's own come after them."""

DEFAULT_ENVIRONMENT: Mapping[str, str] = {"RUST_LOG": "error"}

OPTIONS: Mapping[str, str] = {
    "approval_policy": "When Codex asks, instead of what the permission mode says: untrusted, "
    "on-request or never. Default: by the permission mode.",
    "sandbox": "What commands can do, instead of what the permission mode says: read-only, "
    "workspace-write or danger-full-access. Default: by the permission mode.",
    "config": "Further settings as in Codex's config.toml: one JSON object, whose keys may be "
    'dotted, for example {"sandbox_workspace_write.network_access": true}. Default: none.',
}
"""`SessionConfig.agent_options`: names and descriptions."""

_MODEL = re.compile(r"[^\s\x00-\x1f\x7f]{1,256}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One kind of server: sessions with the same share one process.

    Attributes:
        argv: The command line; `argv[0]` is the executable.
        env: The complete environment, sorted.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)


def server_spec(
    executable: str,
    environment: Mapping[str, str],
    session_env: Mapping[str, str],
    config: Mapping[str, object],
) -> ServerSpec:
    """The server for a session with `session_env`; `config` is the daemon's."""
    argv = [executable, "app-server"]
    for name, value in {**DEFAULT_CONFIG, **config}.items():
        argv += ["-c", f"{name}={toml(value)}"]
    env = {**DEFAULT_ENVIRONMENT, **environment, **session_env}
    return ServerSpec(tuple(argv), tuple(sorted(env.items())))


@dataclass(slots=True)
class ThreadSettings:
    """What a session's thread runs with now.

    Attributes:
        config: The session's settings, as it was created with.
        model: The model; empty for Codex's default.
        mode: The permission mode.
    """

    config: session_pb2.SessionConfig
    model: str
    mode: agent_pb2.PermissionMode.ValueType

    @property
    def approval(self) -> str:
        """The approval policy."""
        chosen: str = self.config.agent_options.get("approval_policy", "")
        return chosen or POLICIES[self.mode].approval

    @property
    def sandbox(self) -> str:
        """The sandbox mode."""
        return self.config.agent_options.get("sandbox", "") or POLICIES[self.mode].sandbox

    @property
    def plans(self) -> bool:
        """The collaboration mode is plan."""
        return POLICIES[self.mode].collaboration == PLAN_MODE

    def thread_params(self) -> JsonObject:
        """The parameters that `thread/start` and `thread/resume` share."""
        config = self.config
        params: JsonObject = {
            "cwd": config.working_directory,
            "approvalPolicy": self.approval,
            "sandbox": self.sandbox,
        }
        if self.model:
            params["model"] = self.model
        if config.system_prompt:
            params["developerInstructions"] = config.system_prompt
        given: dict[str, Any] = json.loads(config.agent_options.get("config", "") or "{}")
        if config.effort:
            given["model_reasoning_effort"] = config.effort
        for server in config.mcp_servers:
            given[f"mcp_servers.{server.name}"] = _server(server)
        if given:
            params["config"] = given
        return params

    def collaboration(self, model: str, effort: str | None) -> JsonObject:
        """The collaboration mode with a model, which must be named, and an effort."""
        settings = {
            "model": model,
            "reasoning_effort": effort,
            "developer_instructions": None,
        }
        return {"mode": PLAN_MODE if self.plans else "default", "settings": settings}

    def policy_params(self) -> JsonObject:
        """The parameters of `thread/settings/update` for the permission mode."""
        return {"approvalPolicy": self.approval, "sandboxPolicy": sandbox_policy(self.sandbox)}


def check(config: session_pb2.SessionConfig) -> None:
    """Check the settings of a session. Raises `InvalidSetting` or `CapabilityNotSupported`."""
    check_model(config.model)
    check_mode(config.permission_mode)
    if config.mode:
        raise CapabilityNotSupported("mode", "Codex has no modes.")
    check_effort(config.effort)
    if config.resume_native_session_id and not _is_uuid(config.resume_native_session_id):
        raise InvalidSetting("resume_native_session_id", "must be a UUID, as Codex's threads have")
    for name, value in config.agent_options.items():
        if name not in OPTIONS:
            raise InvalidSetting(
                f"agent_options[{name}]", f"is not an option; there are: {', '.join(OPTIONS)}"
            )
        if problem := _problem(name, value):
            raise InvalidSetting(f"agent_options[{name}]", problem)


def check_model(model: str) -> None:
    """Check the name of a model; an empty one is the default. Raises `InvalidSetting`."""
    if model and not _MODEL.fullmatch(model):
        raise InvalidSetting("model", "must not hold spaces or control characters")


def check_effort(effort: str) -> None:
    """Check a reasoning effort; an empty one is the default. Raises `InvalidSetting`."""
    if effort and not _MODEL.fullmatch(effort):
        raise InvalidSetting("effort", "must not hold spaces or control characters")


def check_mode(mode: agent_pb2.PermissionMode.ValueType) -> None:
    """Check a permission mode. Raises `InvalidSetting`."""
    if mode not in POLICIES:
        raise InvalidSetting("permission_mode", "is not a known permission mode")


def toml(value: object) -> str:
    """A value as TOML. Raises ValueError for what TOML does not have."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(toml(element) for element in value)}]"
        case Mapping():
            pairs = (f"{_key(str(name))} = {toml(member)}" for name, member in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            raise ValueError(f"{value!r} can't be a setting of Codex")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _problem(name: str, value: str) -> str:
    match name:
        case "approval_policy" if value not in APPROVALS:
            return f"must be one of {', '.join(APPROVALS)}"
        case "sandbox" if value not in SANDBOXES:
            return f"must be one of {', '.join(SANDBOXES)}"
        case "config":
            try:
                is_object = isinstance(msgspec.json.decode(value), dict)
            except (msgspec.MsgspecError, RecursionError):
                is_object = False
            return "" if is_object else "must be a JSON object"
        case _:
            return ""


def _server(server: session_pb2.McpServer) -> JsonObject:
    if server.WhichOneof("transport") == "http":
        made: JsonObject = {"url": server.http.url}
        if server.http.headers:
            made["http_headers"] = dict(server.http.headers)
        return made
    return {
        "command": server.stdio.command,
        "args": list(server.stdio.args),
        "env": dict(server.stdio.env),
    }


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
