"""How OpenCode's server is started, and what of a session's settings goes into it. Pure.

Permissions, MCP servers and further settings are the configuration of a server, not of a session:
sub-agents ask by the server's rules alone. So sessions share a server when they agree in these and
in their environment (`Plan.key`).

The environment is, later winning: the defaults below, the allow-listed environment of the daemon
(HOME, with OpenCode's own login, settings and sessions, is the daemon's), the session's variables.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting

USER = "opencode"
"""User name of the server's basic authentication."""

DEFAULT_ENVIRONMENT: Mapping[str, str] = {
    # A session must not change under its user.
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    # Else the tool that asks questions depends on who OpenCode takes its client for.
    "OPENCODE_ENABLE_QUESTION_TOOL": "1",
    "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
}

# Set for whatever runs inside OpenCode, and what this adapter decides itself.
_NOT_INHERITED = ("OPENCODE", "AGENT", "OPENCODE_PID", "OPENCODE_SERVER_USERNAME")

_ASKED = ("bash", "edit", "webfetch", "websearch")
_RULES: Mapping[agent_pb2.PermissionMode.ValueType, Mapping[str, str]] = {
    agent_pb2.PERMISSION_MODE_DEFAULT: dict.fromkeys(_ASKED, "ask"),
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: {**dict.fromkeys(_ASKED, "ask"), "edit": "allow"},
    agent_pb2.PERMISSION_MODE_PLAN: {**dict.fromkeys(_ASKED, "ask"), "edit": "deny"},
    agent_pb2.PERMISSION_MODE_BYPASS: {
        "*": "allow",
        **dict.fromkeys((*_ASKED, "external_directory", "doom_loop"), "allow"),
    },
}
_PATTERNED = frozenset({"bash", "edit", "external_directory"})
PERMISSION_MODES = frozenset(_RULES)
PLAN_AGENT = "plan"
_NARROW = (agent_pb2.PERMISSION_MODE_PLAN, agent_pb2.PERMISSION_MODE_BYPASS)

_MODEL = re.compile(r"[^\s/]{1,128}/\S{1,256}")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f/]{1,128}")
_NATIVE_ID = re.compile(r"ses_?[A-Za-z0-9]{1,64}")


def _object_problem(value: str) -> str:
    try:
        ok = isinstance(json.loads(value), dict)
    except ValueError:
        ok = False
    return "" if ok else "must be a JSON object"


@dataclass(frozen=True, slots=True)
class Option:
    """One of `SessionConfig.agent_options`: what it does, and what is wrong with a value."""

    description: str
    problem: Callable[[str], str]


OPTIONS: Mapping[str, Option] = {
    "config": Option(
        "Further settings, a JSON object as in opencode.json. Default: none.", _object_problem
    ),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A server to start.

    Attributes:
        argv: The command line; `argv[0]` is the executable.
        env: The environment, without the password.
        key: Sessions of the same key share a server.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    key: str = ""


def plan_server(
    *,
    executable: str,
    config: session_pb2.SessionConfig,
    environment: Mapping[str, str],
    permission_mode: agent_pb2.PermissionMode.ValueType,
) -> Plan:
    """Plan the server for a session of these settings, which have passed `check`."""
    inherited = {name: value for name, value in environment.items() if name not in _NOT_INHERITED}
    env = {**DEFAULT_ENVIRONMENT, **inherited, **config.env}
    settings = _merged(
        _object(env.get("OPENCODE_CONFIG_CONTENT", "")),
        _object(config.agent_options.get("config", "")),
        {"permission": _rules(permission_mode, config)},
        {"mcp": {server.name: _mcp(server) for server in config.mcp_servers}},
    )
    env["OPENCODE_CONFIG_CONTENT"] = json.dumps(settings)
    listen = ("--hostname", "127.0.0.1", "--port", "0")
    argv = (executable, "serve", *listen, "--print-logs", "--log-level", "WARN")
    digest = hashlib.sha256(json.dumps([argv, sorted(env.items())]).encode())
    return Plan(argv, env, digest.hexdigest())


def agent_of(
    config: session_pb2.SessionConfig, permission_mode: agent_pb2.PermissionMode.ValueType
) -> str:
    """OpenCode's agent for a session; empty for its default."""
    if not config.mode and permission_mode == agent_pb2.PERMISSION_MODE_PLAN:
        return PLAN_AGENT
    return config.mode


def users_rules(
    agents: object, agent: str, mode: agent_pb2.PermissionMode.ValueType
) -> list[dict[str, str]]:
    """The user's own rules for single patterns, to be put after those of the permission mode.

    `agents` is what the server lists, each with its rules, ours among them; sub-agents take over
    what a session denies. What the user allows does not widen the modes plan and bypass.
    """
    known = (
        [entry for entry in agents if isinstance(entry, dict)] if isinstance(agents, list) else []
    )
    named = [entry for entry in known if entry.get("name") == (agent or "build")] or known[:1]
    actions = {"deny"} if mode in _NARROW else {"deny", "allow"}
    rules = named[0].get("permission", ()) if named else ()
    found = []
    for rule in rules:
        is_asked = isinstance(rule, dict) and rule.get("permission") in _ASKED
        if is_asked and rule.get("pattern") != "*" and rule.get("action") in actions:
            found.append({key: str(rule[key]) for key in ("permission", "pattern", "action")})
    return found


def check(config: session_pb2.SessionConfig) -> None:
    """Check the settings of a session. Raises `InvalidSetting` or `CapabilityNotSupported`."""
    check_model(config.model)
    mode = config.permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT
    if mode not in PERMISSION_MODES:
        raise InvalidSetting("permission_mode", "is not a known permission mode")
    if config.mode and not _NAME.fullmatch(config.mode):
        raise InvalidSetting("mode", "must be the name of one of OpenCode's agents")
    if config.effort and not _NAME.fullmatch(config.effort):
        raise InvalidSetting("effort", "must be the name of a variant of the model")
    native = config.resume_native_session_id
    if native and not _NATIVE_ID.fullmatch(native):
        raise InvalidSetting("resume_native_session_id", "must begin with ses, as OpenCode's do")
    for name, value in config.agent_options.items():
        where = f"agent_options[{name}]"
        option = OPTIONS.get(name)
        if option is None:
            raise InvalidSetting(where, f"is not an option; there are: {', '.join(OPTIONS)}")
        if problem := option.problem(value):
            raise InvalidSetting(where, problem)
    for name, value in config.env.items():
        if name == "OPENCODE_SERVER_PASSWORD":
            raise CapabilityNotSupported("env", f"{name} is made by the daemon")
        if name == "OPENCODE_CONFIG_CONTENT" and (problem := _object_problem(value)):
            raise InvalidSetting(f"env[{name}]", problem)


def check_model(model: str) -> None:
    """Check the name of a model; an empty one is the default. Raises `InvalidSetting`."""
    if model and not _MODEL.fullmatch(model):
        raise InvalidSetting("model", "must be provider/model, as `opencode models` lists them")


def _rules(
    mode: agent_pb2.PermissionMode.ValueType, config: session_pb2.SessionConfig
) -> dict[str, Any]:
    mode = mode or agent_pb2.PERMISSION_MODE_DEFAULT
    # As an object, where there may be patterns: it then comes after those of the user's own
    # settings, and the last rule that matches wins.
    rules: dict[str, Any] = {
        name: {"*": action} if name in _PATTERNED else action
        for name, action in _RULES[mode].items()
    }
    if mode != agent_pb2.PERMISSION_MODE_BYPASS:
        for server in config.mcp_servers:
            rules[f"{server.name}_*"] = {"*": "ask"}
    return rules


def _mcp(server: session_pb2.McpServer) -> dict[str, Any]:
    if server.WhichOneof("transport") == "http":
        return {
            "type": "remote",
            "url": server.http.url,
            "headers": dict(server.http.headers),
            "enabled": True,
        }
    return {
        "type": "local",
        "command": [server.stdio.command, *server.stdio.args],
        "environment": dict(server.stdio.env),
        "enabled": True,
    }


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The layers put into one, later ones winning, objects within objects too."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                value = _merged(known, value)
            merged.pop(key, None)
            merged[key] = value
    return merged
