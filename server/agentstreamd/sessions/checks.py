"""Checking the settings of a session that every agent shares."""

import os
import re

from agentstream.v1 import agent_pb2, session_pb2

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MCP_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

MAX_LABELS = 64
MAX_LABEL_BYTES = 256
MAX_TITLE_CHARACTERS = 512

Violations = list[tuple[str, str]]


def check_config(config: session_pb2.SessionConfig) -> Violations:
    """What is wrong with the settings of a new session: field paths and descriptions."""
    found: Violations = []
    if not config.agent:
        found.append(("config.agent", "is required"))
    found.extend(_check_directory(config.working_directory))
    if config.permission_mode not in agent_pb2.PermissionMode.values():
        found.append(("config.permission_mode", "is not a known value"))
    if config.request_policy not in session_pb2.RequestPolicy.values():
        found.append(("config.request_policy", "is not a known value"))
    if config.HasField("request_timeout") and config.request_timeout.ToNanoseconds() <= 0:
        found.append(("config.request_timeout", "must be positive"))
    for name in ("model", "mode", "effort", "resume_native_session_id"):
        if "\0" in getattr(config, name) or getattr(config, name).startswith("-"):
            found.append((f"config.{name}", "must not begin with '-' or hold a NUL character"))
    found.extend(check_env("config.env", dict(config.env)))
    found.extend(check_labels(dict(config.labels)))
    found.extend(check_title(config.title))
    found.extend(_check_servers(config))
    if "\0" in config.system_prompt:
        found.append(("config.system_prompt", "must not hold a NUL character"))
    return found


def _check_directory(path: str) -> Violations:
    field = "config.working_directory"
    if not path:
        return [(field, "is required")]
    if not os.path.isabs(path) or "\0" in path:
        return [(field, "must be an absolute path")]
    if not os.path.isdir(path):
        return [(field, "is not an existing directory")]
    return []


def check_env(field: str, env: dict[str, str]) -> Violations:
    """What is wrong with environment variables."""
    found = []
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            found.append((f"{field}[{name!r}]", "is not a name of an environment variable"))
        if "\0" in value:
            found.append((f"{field}[{name!r}]", "must not hold a NUL character"))
    return found


def check_labels(labels: dict[str, str]) -> Violations:
    """What is wrong with labels."""
    if len(labels) > MAX_LABELS:
        return [("config.labels", f"more than {MAX_LABELS} labels")]
    return [
        (f"config.labels[{key!r}]", f"key or value is empty or longer than {MAX_LABEL_BYTES} bytes")
        for key, value in labels.items()
        if not key or max(len(key.encode()), len(value.encode())) > MAX_LABEL_BYTES
    ]


def check_title(title: str) -> Violations:
    """What is wrong with a title."""
    if len(title) > MAX_TITLE_CHARACTERS:
        return [("config.title", f"is longer than {MAX_TITLE_CHARACTERS} characters")]
    return []


def _check_servers(config: session_pb2.SessionConfig) -> Violations:
    found: Violations = []
    names: set[str] = set()
    for index, server in enumerate(config.mcp_servers):
        path = f"config.mcp_servers[{index}]"
        if not _MCP_NAME.fullmatch(server.name):
            found.append((f"{path}.name", "must be 1 to 64 letters, digits, '_' or '-'"))
        if server.name in names:
            found.append((f"{path}.name", "is used twice"))
        names.add(server.name)
        match server.WhichOneof("transport"):
            case "stdio":
                if not server.stdio.command:
                    found.append((f"{path}.stdio.command", "is required"))
                found.extend(check_env(f"{path}.stdio.env", dict(server.stdio.env)))
            case "http":
                if not server.http.url.startswith(("http://", "https://")):
                    found.append((f"{path}.http.url", "must be an http or https URL"))
            case _:
                found.append((f"{path}.transport", "is required"))
    return found
