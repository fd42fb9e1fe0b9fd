"""How Amp is started: arguments, environment and private files of one CLI process. Pure.

Nothing secret is on the command line: MCP servers (whose environment and headers may be) are in a
file of mode 0600, like the settings. The environment is the allow-listed one of the daemon with the
session's own variables over it.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.amp import permit, settings
from agentstreamd.adapters.amp.login import secrets_file
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting

_THREAD = re.compile(r"T-[A-Za-z0-9-]{1,100}")
_MODE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VISIBILITIES = ("private", "public", "unlisted", "workspace", "group")
_PERMISSION_MODES = frozenset(agent_pb2.PermissionMode.values())
_ACTIONS = ("allow", "reject", "ask", "delegate")


@dataclass(frozen=True, slots=True)
class Option:
    """One of `SessionConfig.agent_options`.

    Attributes:
        description: What it does, for people.
        problem: Says what is wrong with a value; empty when nothing is.
    """

    description: str
    problem: Callable[[str], str]


def _one_of(*values: str) -> Callable[[str], str]:
    return lambda value: "" if value in values else f"must be one of {', '.join(values)}"


def _labels_problem(value: str) -> str:
    bad = [label for label in labels(value) if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,31}", label)]
    return f"{bad[0]!r} is not a label (letters, digits, - and _)" if bad else ""


def _rules_problem(value: str) -> str:
    try:
        rules = json.loads(value)
    except (ValueError, RecursionError):
        return "must be JSON"
    if not isinstance(rules, list):
        return "must be a JSON array of rules"
    good = all(
        isinstance(r, dict) and isinstance(r.get("tool"), str) and r.get("action") in _ACTIONS
        for r in rules
    )
    return "" if good else "each rule must be an object with a tool and an action"


OPTIONS: Mapping[str, Option] = {
    "labels": Option("Labels of the thread in Amp, comma-separated.", _labels_problem),
    "visibility": Option(
        f"Who can see the thread in Amp: {', '.join(_VISIBILITIES)}. Default: Amp's.",
        _one_of(*_VISIBILITIES),
    ),
    "thinking": Option(
        "Whether reasoning is shown: true (default) or false.", _one_of("true", "false")
    ),
    "permissions": Option(
        "Permission rules as in Amp's settings (a JSON array), looked at before the session's own; "
        "`ask` asks through the session. Default: none.",
        _rules_problem,
    ),
    "workspace_settings": Option(
        "What to do when the workspace's own .amp/settings.json decides about permissions, which "
        "wins over the session's: refuse (default) to start, or trust it.",
        _one_of("refuse", "trust"),
    ),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the CLI.

    Attributes:
        argv: The command line; `argv[0]` is the executable.
        env: The complete environment.
        files: Files to write before the start, with their modes, to remove after the end.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    files: Mapping[Path, tuple[int, bytes]] = field(repr=False)


def plan_launch(
    *,
    executable: str,
    config: session_pb2.SessionConfig,
    environment: Mapping[str, str],
    thread_id: str,
    permission_mode: agent_pb2.PermissionMode.ValueType,
    user_settings: Mapping[str, Any],
    file_prefix: Path,
    socket_path: Path,
    secret: str,
) -> Launch:
    """Plan a start for a session; a thread id continues that thread.

    `permission_mode` is the current one. `file_prefix` is the beginning of the paths of private
    files. The config has passed `check`.
    """
    options = config.agent_options
    paths = {
        name: file_prefix.with_name(f"{file_prefix.name}.{name}")
        for name in ("settings.json", "mcp.json", "permit.json", "permit")
    }
    rules = json.loads(options.get("permissions", "[]"))
    made = settings.session_settings(
        user_settings,
        mode=permission_mode,
        helper=paths["permit"],
        rules=rules,
    )
    private = {"socket": str(socket_path), "secret": secret}
    script = settings.helper_script(sys.executable, Path(permit.__file__), paths["permit.json"])
    files = {
        paths["settings.json"]: (0o600, _json(made)),
        paths["permit.json"]: (0o600, _json(private)),
        paths["permit"]: (0o700, script.encode()),
    }
    argv = [executable]
    if thread_id:
        argv += ["threads", "continue", thread_id]
    argv += ["--execute", "--stream-json", "--stream-json-input"]
    if options.get("thinking", "true") == "true":
        argv.append("--stream-json-thinking")
    argv += ["--no-ide", "--log-level", "error", "--settings-file", str(paths["settings.json"])]
    if permission_mode == agent_pb2.PERMISSION_MODE_BYPASS:
        argv.append("--dangerously-allow-all")
    if config.mode:
        argv += ["--mode", config.mode]
    if visibility := options.get("visibility"):
        argv += ["--visibility", visibility]
    for label in labels(options.get("labels", "")):
        argv += ["--label", label]
    if config.mcp_servers:
        servers = {server.name: _server(server) for server in config.mcp_servers}
        files[paths["mcp.json"]] = (0o600, _json(servers))
        argv += ["--mcp-config", str(paths["mcp.json"])]
    return Launch(tuple(argv), {**environment, **config.env}, files)


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether there is an API key, or a login of an earlier `amp login`."""
    if environment.get("AMP_API_KEY"):
        return True
    path = secrets_file(environment)
    return path is not None and path.exists()


def check(config: session_pb2.SessionConfig) -> None:
    """Check the settings of a session. Raises `InvalidSetting` or `CapabilityNotSupported`."""
    if config.model:
        raise CapabilityNotSupported("model", "Amp chooses models by its modes: set mode instead.")
    if config.effort:
        raise CapabilityNotSupported("effort", "Amp has no effort to set: set mode instead.")
    if config.system_prompt:
        # amp.systemPrompt, which its SDK writes, was seen to have no effect.
        raise CapabilityNotSupported("system_prompt", "Amp takes no system prompt.")
    if config.permission_mode not in _PERMISSION_MODES:
        raise InvalidSetting("permission_mode", "is not a known permission mode")
    if config.mode and not _MODE.fullmatch(config.mode):
        raise InvalidSetting("mode", "is not the name of a mode")
    resumed = config.resume_native_session_id
    if resumed and not _THREAD.fullmatch(resumed):
        raise InvalidSetting("resume_native_session_id", "must be the id of a thread, T-...")
    for name, value in config.agent_options.items():
        option = OPTIONS.get(name)
        where = f"agent_options[{name}]"
        if option is None:
            raise InvalidSetting(where, f"is not an option; there are: {', '.join(OPTIONS)}")
        if problem := option.problem(value):
            raise InvalidSetting(where, problem)


def labels(value: str) -> list[str]:
    """The labels of the option."""
    return [label.strip() for label in value.split(",") if label.strip()]


def _server(server: session_pb2.McpServer) -> dict[str, Any]:
    if server.WhichOneof("transport") == "http":
        return {"url": server.http.url, "headers": dict(server.http.headers)}
    stdio = server.stdio
    return {"command": stdio.command, "args": list(stdio.args), "env": dict(stdio.env)}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode()
