"""Settings of the daemon: one table, four sources, one precedence.

Flags win over AGENTSTREAM_* variables, these over the file of `--config` (TOML), that over the
defaults. Each setting has the same name everywhere: `data_dir` in the file, `--data-dir` as a flag,
`AGENTSTREAM_DATA_DIR` as a variable. The tables `[agents.NAME]` have `executable` (also as
`agent_executables`) and `options`, which only the file can set.
"""

import argparse
import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from agentstreamd import __version__
from agentstreamd.service.listen import Address
from agentstreamd.settings import SETTINGS

PREFIX = "AGENTSTREAM_"
_TABLE = {setting.name: setting for setting in SETTINGS}


class ConfigError(Exception):
    """A setting is wrong. `str(error)` is one sentence that names it and where it comes from."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """One agent's settings.

    Attributes:
        executable: Path of its executable; empty to look on PATH.
        options: Options of its adapter. May hold secrets: not shown.
    """

    executable: str = ""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The effective settings; names as in the table, which says what each means.

    Attributes:
        agents: Settings of single agents, by name.
        sources: Where each value comes from, by name.
    """

    listen: tuple[str, ...]
    data_dir: Path
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"]
    event_log_synchronous: Literal["normal", "full"]
    reflection: bool
    tls_certificate_file: Path | None
    tls_key_file: Path | None
    tls_client_ca_file: Path | None
    insecure_behind_mesh: bool
    token_file: Path | None
    client_scopes_file: Path | None
    metrics_listen: str | None
    drain_timeout_seconds: float
    drain_notice_seconds: float
    progress_interval_seconds: float
    allowed_roots: tuple[Path, ...]
    agent_environment: tuple[str, ...]
    agent_executables: Mapping[str, str]
    agent_idle_stop_seconds: float
    interrupt_grace_seconds: float
    max_running_sessions: int
    max_queued_messages: int
    max_queued_bytes: int
    max_streams: int
    max_streams_per_client: int
    max_calls: int
    max_pending_bytes: int
    max_request_bytes: int
    retention_ended_sessions_seconds: float
    retention_event_age_seconds: float
    retention_session_bytes: int
    agents: Mapping[str, AgentConfig] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> str:
        """The effective settings as TOML, each with its source; never a secret."""
        lines = []
        for setting in SETTINGS:
            text = f"{setting.name} = {_toml(getattr(self, setting.name))}"
            lines.append(f"{text:<60}  # {self.sources[setting.name]}")
        for name, agent in sorted(self.agents.items()):
            if agent.options:
                lines += ["", f"[agents.{name}.options]"]
                lines += [f'{key} = "(hidden)"' for key in sorted(agent.options)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line asks for.

    Attributes:
        config: The effective settings.
        print_config: Show them, and do nothing else.
    """

    config: Config
    print_config: bool


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Read all sources. Raises ConfigError; `--help` and `--version` raise SystemExit."""
    flags = _parser().parse_args(arguments)
    path = flags.config or environment.get(PREFIX + "CONFIG") or None
    file, agents = _read_file(path) if path else ({}, {})
    _check_names(environment)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        found = [
            (getattr(flags, setting.name), setting.flag, "flag"),
            (environment.get(setting.variable), setting.variable, "environment"),
            (file.get(setting.name), f"{setting.name} in {path}", f"file {path}"),
        ]
        value, source = setting.default_for(environment), "default"
        for raw, where, kind in reversed(found):
            if raw is None:
                continue
            try:
                parsed = setting.parse(raw)
            except ValueError as error:
                raise ConfigError(f"{where} is {_shown(raw)}: it {error}.") from error
            value = {**value, **parsed} if isinstance(parsed, Mapping) else parsed
            source = kind
        values[setting.name] = value
        sources[setting.name] = source
    executables = values["agent_executables"]
    for name, agent in agents.items():
        executables.setdefault(name, agent.executable)
    values["agents"] = {
        name: AgentConfig(
            executable=executables.get(name, ""),
            options=agents[name].options if name in agents else {},
        )
        for name in sorted({*executables, *agents})
    }
    config = Config(**values, sources=sources)
    _check_together(config)
    return CommandLine(config, flags.print_config)


def _check_together(config: Config) -> None:
    if (config.tls_certificate_file is None) != (config.tls_key_file is None):
        missing = "tls_key_file" if config.tls_key_file is None else "tls_certificate_file"
        raise ConfigError(f"TLS needs both a certificate and a key: {missing} is not set.")
    listen = config.metrics_listen
    if listen and not (Address.parse(listen).local or config.insecure_behind_mesh):
        raise ConfigError(
            f"metrics_listen is {listen}: metrics are served without a token, so only on loopback, "
            "or behind a mesh (insecure_behind_mesh)."
        )
    if config.drain_notice_seconds > config.drain_timeout_seconds / 2:
        raise ConfigError("drain_notice_seconds is more than half of drain_timeout_seconds.")
    if config.tls_client_ca_file is not None and config.tls_certificate_file is None:
        raise ConfigError("tls_client_ca_file needs TLS: tls_certificate_file is not set.")
    if config.client_scopes_file is not None and config.tls_client_ca_file is None:
        raise ConfigError(
            "client_scopes_file needs clients' certificates: tls_client_ca_file is not set."
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message[:1].upper()}{message[1:].rstrip('.')} (see --help).")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="agentstreamd",
        description="Drives coding agents and serves their work as one event stream over gRPC.",
        epilog="`agentstreamd backup DIR [flags]` copies the data directory's event log into DIR, "
        "also while a daemon works on it. "
        "Flags win over AGENTSTREAM_* variables (--data-dir: AGENTSTREAM_DATA_DIR), these "
        "over the file (data_dir). Exit codes: 0 stopped as asked; 1 a fault of the daemon; 2 "
        "wrong settings; 3 the data directory can't be used; 4 an address can't be listened on; "
        "128 + N stopped at once by a second signal N.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        "--print-config", action="store_true", help="show the effective settings and exit"
    )
    parser.add_argument("--version", action="version", version=f"agentstreamd {__version__}")
    for setting in SETTINGS:
        setting.add_to(parser)
    return parser


def _read_file(path: str) -> tuple[dict[str, Any], dict[str, AgentConfig]]:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"The file {path} can't be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file {path} is not TOML: {error}.") from error
    agents = content.pop("agents", {})
    for name in content:
        if name not in _TABLE:
            raise ConfigError(f"{name} in {path} is not a setting.{_suggestion(name, _TABLE)}")
    if not isinstance(agents, dict):
        raise ConfigError(f"agents in {path} must be a table of tables.")
    return content, {name: _agent(name, table, path) for name, table in agents.items()}


def _agent(name: str, table: object, path: str) -> AgentConfig:
    where = f"agents.{name} in {path}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table.")
    known = [one.name for one in fields(AgentConfig)]
    for key in table:
        if key not in known:
            raise ConfigError(
                f"agents.{name}.{key} in {path} is not a setting.{_suggestion(key, known)}"
            )
    agent = AgentConfig(**table)
    if not isinstance(agent.executable, str) or not isinstance(agent.options, dict):
        raise ConfigError(f"{where} must have executable as a string and options as a table.")
    return agent


def _check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that is most likely a misspelt setting.

    Others are let pass: orchestrators and clients have AGENTSTREAM_* variables of their own.
    """
    known = [*(setting.variable for setting in SETTINGS), PREFIX + "CONFIG"]
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.93)
            if close:
                raise ConfigError(
                    f"{name} in the environment is not a setting. Did you mean {close[0]}?"
                )


def _suggestion(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _shown(raw: object) -> str:
    return _toml(raw[0] if isinstance(raw, list) and len(raw) == 1 else raw)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    text = "" if value is None else str(value)
    return '"' + "".join(_escaped(text)) + '"'


def _escaped(text: str) -> Iterator[str]:
    for character in text:
        if character in '"\\':
            yield "\\" + character
        elif character.isprintable():
            yield character
        else:
            yield f"\\u{ord(character):04X}"


def environment_of(process: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """The variables of the daemon that agents get: names, or beginnings that end with `*`.

    The daemon's own variables never are.
    """
    exact = {name for name in allowed if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in allowed if name.endswith("*"))
    return {
        name: value
        for name, value in process.items()
        if (name in exact or name.startswith(beginnings)) and not name.startswith(PREFIX)
    }


__all__ = ["AgentConfig", "CommandLine", "Config", "ConfigError", "environment_of", "load"]
