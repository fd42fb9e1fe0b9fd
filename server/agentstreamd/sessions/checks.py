"""Checking the settings of a session that every agent shares."""

import os
import re

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.sessions.roots import Roots

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADER = re.compile(r"[\0\r\n]")
_MCP_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

OUTSIDE = "is in none of the daemon's allowed_roots"
MAX_LABELS = 64
MAX_LABEL_BYTES = 256
MAX_TITLE_CHARACTERS = 512
MAX_TIMEOUT_SECONDS = 366 * 24 * 3600

Violations = list[tuple[str, str]]


def check_config(config: session_pb2.SessionConfig, roots: Roots) -> Violations:
    """What is wrong with the settings of a new session: field paths and descriptions."""
    found: Violations = []
    if not config.agent:
        found.append(("config.agent", "is required"))
    found.extend(_check_directory(config.working_directory, roots))
    if config.permission_mode not in agent_pb2.PermissionMode.values():
        found.append(("config.permission_mode", "is not a known value"))
    if config.request_policy not in session_pb2.RequestPolicy.values():
        found.append(("config.request_policy", "is not a known value"))
    timeout = config.request_timeout
    if config.HasField("request_timeout"):
        in_range = (
            0 <= timeout.nanos < 1_000_000_000 and 0 <= timeout.seconds <= MAX_TIMEOUT_SECONDS
        )
        if not in_range or not (timeout.seconds or timeout.nanos):
            found.append(("config.request_timeout", "must be positive and at most 366 days"))
    for name in ("model", "mode", "effort", "resume_native_session_id"):
        found.extend(check_word(f"config.{name}", getattr(config, name)))
    for name, value in config.agent_options.items():
        if "\0" in name or "\0" in value:
            found.append((f"config.agent_options[{name!r}]", "must not hold a NUL character"))
    found.extend(check_env("config.env", dict(config.env)))
    found.extend(check_labels(dict(config.labels)))
    found.extend(check_title(config.title))
    found.extend(_check_servers(config))
    if "\0" in config.system_prompt:
        found.append(("config.system_prompt", "must not hold a NUL character"))
    return found


def check_word(field: str, value: str) -> Violations:
    """What is wrong with a value that may become an argument of the agent's command line."""
    if value.startswith("-") or "\0" in value:
        return [(field, "must not begin with '-' or hold a NUL character")]
    return []


def _check_directory(path: str, roots: Roots) -> Violations:
    field = "config.working_directory"
    if not path:
        return [(field, "is required")]
    if not os.path.isabs(path) or "\0" in path:
        return [(field, "must be an absolute path")]
    # First: nobody is to learn what there is elsewhere.
    if not roots.hold(path):
        return [(field, OUTSIDE)]
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
                if "\0" in server.stdio.command:
                    found.append((f"{path}.stdio.command", "must not hold a NUL character"))
                found.extend(
                    (f"{path}.stdio.args[{number}]", "must not hold a NUL character")
                    for number, argument in enumerate(server.stdio.args)
                    if "\0" in argument
                )
                found.extend(check_env(f"{path}.stdio.env", dict(server.stdio.env)))
            case "http":
                if not server.http.url.startswith(("http://", "https://")):
                    found.append((f"{path}.http.url", "must be an http or https URL"))
                found.extend(
                    (f"{path}.http.headers[{name!r}]", "is not a header of HTTP")
                    for name, value in server.http.headers.items()
                    if not _HEADER_NAME.fullmatch(name) or _NOT_IN_HEADER.search(value)
                )
            case _:
                found.append((f"{path}.transport", "is required"))
    return found
