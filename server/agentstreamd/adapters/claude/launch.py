"""How Claude Code is started: arguments, environment and private files of one CLI process. Pure.

Every value goes to the CLI as `--flag=value`, so none can be taken for a flag. What may be secret
(headers and environments of MCP servers, settings) is not on the command line, which any user of
the machine can read, but in files that the driver writes with mode 0600.

The environment is, later winning: the defaults below, the allow-listed environment of the daemon
(HOME, with Claude Code's own login and settings, is the daemon's), the session's own variables.
The defaults keep a session from changing under its user (no self-update), from calling anything but
the model (telemetry, error reports and other traffic of no use to the session are off) and from
being lost with its process, unless the daemon's environment or the session's sets the variables
itself (to an empty value, to have Claude Code's own default).
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import CapabilityNotSupported, InvalidSetting
from agentstreamd.adapters.claude.answers import PERMISSION_MODES
from agentstreamd.adapters.claude.state import Remembered

EFFORTS = ("low", "medium", "high", "xhigh", "max")

DEFAULT_ENVIRONMENT: Mapping[str, str] = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # Writes the transcript before the result. Else the CLI takes a tenth of a second after it, and
    # one that is killed meanwhile has lost the turn, or the session with its first turn.
    "CLAUDE_CODE_EAGER_FLUSH": "1",
}

# Set for whatever runs inside Claude Code. A daemon that was started there must not pass them on:
# the CLI would take itself for a nested one.
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT")

_MODEL = re.compile(r"[A-Za-z0-9][^\s\x00-\x1f\x7f]{0,255}")
_SETTING_SOURCES = frozenset({"user", "project", "local"})


@dataclass(frozen=True, slots=True)
class Option:
    """One of `SessionConfig.agent_options`.

    Attributes:
        description: What it does, for people.
        flag: The CLI's flag that takes the value; empty where the value goes another way.
        problem: Says what is wrong with a value; empty when nothing is.
    """

    description: str
    flag: str = ""
    problem: Callable[[str], str] = lambda value: ""


def _number_problem(value: str) -> str:
    return "" if re.fullmatch(r"[1-9][0-9]{0,8}", value) else "must be a whole number above 0"


def _money_problem(value: str) -> str:
    ok = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) and float(value) > 0
    return "" if ok else "must be a number of US dollars above 0"


def _sources_problem(value: str) -> str:
    ok = not value or _SETTING_SOURCES.issuperset(value.split(","))
    return "" if ok else "must be a comma-separated list of user, project, local"


def _settings_problem(value: str) -> str:
    try:
        settings = json.loads(value)
    except ValueError:
        return "must be a JSON object"
    permissions = settings.get("permissions", {}) if isinstance(settings, dict) else None
    if not isinstance(permissions, dict):
        return "must be a JSON object, and its permissions too"
    # What was granted for the session is added to these.
    lists = ("allow", "deny", "ask", "additionalDirectories")
    bad = [name for name in lists if not isinstance(permissions.get(name, []), list)]
    return f"permissions.{bad[0]} must be a list" if bad else ""


OPTIONS: Mapping[str, Option] = {
    "allowed_tools": Option(
        "Tools to use without asking, comma-separated permission rules, for example "
        "`Bash(git *),Edit`. Default: none.",
        "--allowedTools",
    ),
    "disallowed_tools": Option(
        "Tools that may not be used, comma-separated permission rules. Default: none.",
        "--disallowedTools",
    ),
    "max_turns": Option(
        "Calls of the model that one message may set off; the turn fails beyond. Default: no "
        "limit.",
        "--max-turns",
        _number_problem,
    ),
    "max_budget_usd": Option(
        "US dollars that one agent process may spend; the turn fails beyond. Default: no limit.",
        "--max-budget-usd",
        _money_problem,
    ),
    "setting_sources": Option(
        "Settings files that are read: a comma-separated list of `user`, `project`, `local`; "
        "empty for none. Default: all.",
        "--setting-sources",
        _sources_problem,
    ),
    "settings": Option(
        "Further settings, a JSON object as in Claude Code's settings.json. Default: none.",
        problem=_settings_problem,
    ),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the CLI.

    Attributes:
        argv: The command line; `argv[0]` is the executable.
        env: The complete environment.
        files: Files to write with mode 0600 before the start, to remove after the end.
        initialize: Fields of the `initialize` request to begin with.
        can_bypass: Permission mode bypass can be set while the process runs.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    files: Mapping[Path, bytes] = field(repr=False)
    initialize: Mapping[str, Any] = field(repr=False)
    can_bypass: bool


def plan_launch(
    *,
    executable: str,
    config: session_pb2.SessionConfig,
    environment: Mapping[str, str],
    native_session_id: str,
    resume: bool,
    model: str,
    permission_mode: agent_pb2.PermissionMode.ValueType,
    remembered: Remembered,
    file_prefix: Path,
    as_root: bool,
) -> Launch:
    """Plan a start for a session.

    `model` and `permission_mode` are the current ones, which may differ from the config's.
    `file_prefix` is the beginning of the paths of private files. With `resume` the native session
    is continued, else begun. The config has passed `check`.
    """
    bypass = permission_mode == agent_pb2.PERMISSION_MODE_BYPASS
    argv = [
        executable,
        "--print",
        "--verbose",
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--permission-prompt-tool=stdio",
        "--include-partial-messages",
        "--replay-user-messages",
        f"--permission-mode={PERMISSION_MODES[permission_mode]}",
        f"--{'resume' if resume else 'session-id'}={native_session_id}",
    ]
    if bypass:
        argv.append("--allow-dangerously-skip-permissions")
    if model:
        argv.append(f"--model={model}")
    if config.effort:
        argv.append(f"--effort={config.effort}")
    files: dict[Path, bytes] = {}
    if config.mcp_servers:
        path = file_prefix.with_name(file_prefix.name + ".mcp.json")
        files[path] = _json({"mcpServers": {s.name: _server(s) for s in config.mcp_servers}})
        argv += [f"--mcp-config={path}", "--strict-mcp-config"]
    if settings := _settings(config.agent_options.get("settings", ""), remembered):
        path = file_prefix.with_name(file_prefix.name + ".settings.json")
        files[path] = _json(settings)
        argv.append(f"--settings={path}")
    for name, value in sorted(config.agent_options.items()):
        if flag := OPTIONS[name].flag:
            argv.append(f"{flag}={value}")
    # Without this the text of sub-agents is dropped by the CLI.
    initialize: dict[str, Any] = {"forwardSubagentText": True}
    if config.system_prompt:
        # Not --append-system-prompt: an argument ends at 128 KiB and is public.
        initialize["appendSystemPrompt"] = config.system_prompt
    return Launch(
        argv=tuple(argv),
        env=_environment(environment, config.env, sandbox=bypass and as_root),
        files=files,
        initialize=initialize,
        can_bypass=bypass,
    )


def check(config: session_pb2.SessionConfig) -> None:
    """Check the settings of a session. Raises `InvalidSetting` or `CapabilityNotSupported`."""
    check_model(config.model)
    if config.permission_mode not in PERMISSION_MODES:
        raise InvalidSetting("permission_mode", "is not a known permission mode")
    if config.mode:
        raise CapabilityNotSupported("mode", "Claude Code has no modes.")
    if config.effort and config.effort not in EFFORTS:
        raise InvalidSetting("effort", f"must be one of {', '.join(EFFORTS)}")
    if config.resume_native_session_id and not _is_uuid(config.resume_native_session_id):
        raise InvalidSetting("resume_native_session_id", "must be a UUID, as Claude Code's are")
    for name, value in config.agent_options.items():
        where = f"agent_options[{name}]"
        option = OPTIONS.get(name)
        if option is None:
            raise InvalidSetting(where, f"is not an option; there are: {', '.join(OPTIONS)}")
        problem = "can't hold NUL characters" if "\0" in value else option.problem(value)
        if problem:
            raise InvalidSetting(where, problem)


def check_model(model: str) -> None:
    """Check the name of a model; an empty one is the default. Raises `InvalidSetting`."""
    if model and not _MODEL.fullmatch(model):
        raise InvalidSetting(
            "model", "must begin with a letter or digit and hold no spaces or control characters"
        )


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def _environment(
    daemon: Mapping[str, str], session: Mapping[str, str], *, sandbox: bool
) -> dict[str, str]:
    inherited = {name: value for name, value in daemon.items() if name not in _NOT_INHERITED}
    env = {**DEFAULT_ENVIRONMENT, **inherited, **session}
    if sandbox:
        # The CLI refuses to bypass permissions as root unless told that it is in a sandbox. Who
        # asks for this mode says just that.
        env.setdefault("IS_SANDBOX", "1")
    return env


def _server(server: session_pb2.McpServer) -> dict[str, Any]:
    if server.WhichOneof("transport") == "http":
        return {"type": "http", "url": server.http.url, "headers": dict(server.http.headers)}
    return {
        "type": "stdio",
        "command": server.stdio.command,
        "args": list(server.stdio.args),
        "env": dict(server.stdio.env),
    }


def _settings(option: str, remembered: Remembered) -> dict[str, Any]:
    """The session's settings, with what was granted for it put back."""
    settings: dict[str, Any] = json.loads(option) if option else {}
    granted = {
        "allow": remembered.allow,
        "deny": remembered.deny,
        "ask": remembered.ask,
        "additionalDirectories": remembered.directories,
    }
    permissions = settings.get("permissions", {})
    for name, values in granted.items():
        if values:
            permissions = {**permissions, name: [*permissions.get(name, ()), *values]}
    return {**settings, "permissions": permissions} if permissions else settings


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode()
