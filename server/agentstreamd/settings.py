"""The table of the daemon's settings: name, meaning, default, and how a value is read."""

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentstreamd.logs import FORMATS, LEVELS
from agentstreamd.service.limits import MIB, CallLimits
from agentstreamd.service.listen import Address

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_LIMITS = CallLimits()
_CENTURY_SECONDS = 100 * 365 * 24 * 3600

AGENT_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TERM", "TMPDIR", "XDG_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "SSH_AUTH_SOCK"),
    *("ANTHROPIC_*", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_DISABLE_*"),
    *("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"),
    *("OPENAI_*", "CODEX_*", "OPENCODE_*", "AMP_*"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: Its name in the file; flag and variable are made from it.
        parse: Reads text (flag, variable) or a TOML value; raises ValueError, a phrase.
        default: The value where no source has one; a function takes the environment.
        meaning: What it does, for people, units included.
        metavar: The value in the help.
        repeated: The flag may be given several times.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    meaning: str
    metavar: str = ""
    repeated: bool = False

    @property
    def flag(self) -> str:
        """The flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "AGENTSTREAM_" + self.name.upper()

    def default_for(self, environment: Mapping[str, str]) -> Any:
        """The default."""
        return self.default(environment) if callable(self.default) else self.default

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the flag, as text: it is read together with the other sources."""
        default = self.default({}) if callable(self.default) else self.default
        shown = ", ".join(default) if isinstance(default, tuple | dict) else default
        text = self.meaning if shown in (None, "") else f"{self.meaning} (default: {shown})"
        text = text.replace("%", "%%")
        if self.parse is boolean:
            action: Any = argparse.BooleanOptionalAction
            parser.add_argument(self.flag, action=action, default=None, help=text)
        else:
            parser.add_argument(
                self.flag,
                action="append" if self.repeated else "store",
                default=None,
                metavar=self.metavar or None,
                help=text,
            )


def boolean(value: object) -> bool:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if isinstance(value, str) and text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError("must be true or false")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _seconds(lowest: float, highest: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        number = _number(value)
        if not lowest <= number <= highest:
            raise ValueError(f"must be {lowest:g} to {highest:g} seconds")
        return number

    return parse


def _bytes(lowest: int, highest: int = 2**53) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _number(value)
        if number != int(number) or not lowest <= number <= highest:
            upper = f" to {highest}" if highest < 2**53 else " or more"
            raise ValueError(f"must be a whole number of bytes, {lowest}{upper}")
        return int(number)

    return parse


def _count(lowest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _number(value)
        if number < lowest or number != int(number):
            raise ValueError(f"must be a whole number of at least {lowest}")
        return int(number)

    return parse


def _choice(choices: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return parse


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return Path(value).expanduser().absolute()


def _metrics_address(value: object) -> str:
    if not isinstance(value, str) or Address.parse(value).path is not None:
        raise ValueError("must be host:port or [v6-address]:port")
    return value


def _strings(value: object) -> tuple[str, ...]:
    """A list of strings, or one; each is taken apart at commas."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a list of strings")
    parts = [part.strip() for text in texts for part in text.split(",")]
    found = tuple(part for part in parts if part)
    if not found:
        raise ValueError("must not be empty")
    return found


def _addresses(value: object) -> tuple[str, ...]:
    found = _strings(value)
    for one in found:
        Address.parse(one)
    return found


def _names(value: object) -> tuple[str, ...]:
    found = _strings(value)
    for one in found:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", one):
            raise ValueError("must be names of variables, which may end with * for a beginning")
    return found


def _directories(value: object) -> tuple[Path, ...]:
    directories = tuple(Path(text).expanduser() for text in _strings(value))
    if not all(directory.is_absolute() for directory in directories):
        raise ValueError("must be absolute paths")
    return directories


def _executables(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        split = [one.partition("=") for one in _strings(value)]
        pairs = [(name, path) for name, _, path in split]
    for name, path in pairs:
        if not name or not isinstance(path, str) or not path:
            raise ValueError("must be pairs of an agent's name and a path: NAME=PATH")
    return dict(pairs)


def _default_data_dir(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state, "agentstream")
    return Path(environment.get("HOME") or "~", ".local", "state", "agentstream").expanduser()


def _no_executables(environment: Mapping[str, str]) -> dict[str, str]:
    return {}


SETTINGS = (
    Setting(
        "listen",
        _addresses,
        ("127.0.0.1:50051",),
        "where to listen: host:port (port 0 picks one), [v6]:port or unix:PATH; off loopback only "
        "with TLS and a token",
        "ADDRESS",
        repeated=True,
    ),
    Setting(
        "data_dir",
        _path,
        _default_data_dir,
        "directory of the event log, made with mode 0700",
        "DIR",
    ),
    Setting("log_level", _choice(LEVELS), "info", "least level that is logged", "LEVEL"),
    Setting("log_format", _choice(FORMATS), "text", "format of the log: text or json", "FORMAT"),
    Setting(
        "event_log_synchronous",
        _choice(("normal", "full")),
        "normal",
        "normal: events survive a kill of the daemon; full: also a power cut, by a fsync a commit",
        "MODE",
    ),
    Setting("reflection", boolean, True, "offer gRPC server reflection"),
    Setting("tls_certificate_file", _path, None, "PEM certificate chain, for TLS on TCP", "FILE"),
    Setting("tls_key_file", _path, None, "PEM private key of the certificate", "FILE"),
    Setting(
        "tls_client_ca_file",
        _path,
        None,
        "PEM certificates of authorities; clients must have a certificate of one of them (mTLS)",
        "FILE",
    ),
    Setting(
        "insecure_behind_mesh",
        boolean,
        False,
        "listen off loopback without TLS or a token: only where a mesh encrypts and lets in",
    ),
    Setting(
        "token_file",
        _path,
        None,
        "file with the bearer tokens, one of which all calls but health checks must carry",
        "FILE",
    ),
    Setting(
        "client_scopes_file",
        _path,
        None,
        "file with the subjects of clients' certificates and what each may do; needs "
        "tls_client_ca_file",
        "FILE",
    ),
    Setting(
        "metrics_listen",
        _metrics_address,
        None,
        "host:port on which Prometheus scrapes metrics, of loopback unless insecure_behind_mesh; "
        "port 0 picks one",
        "HOST:PORT",
    ),
    Setting(
        "drain_timeout_seconds",
        _seconds(5, 3600),
        20.0,
        "time from SIGTERM to the exit at most, in seconds",
        "SECONDS",
    ),
    Setting(
        "drain_notice_seconds",
        _seconds(0, 60),
        0.0,
        "while it drains it answers for this long at least, so that balancers see NOT_SERVING and "
        "send nothing more, in seconds; at most half of drain_timeout_seconds",
        "SECONDS",
    ),
    Setting(
        "progress_interval_seconds",
        _seconds(0.01, 10),
        8.0,
        "an idle event stream says that it is alive this often, in seconds",
        "SECONDS",
    ),
    Setting(
        "allowed_roots",
        _directories,
        (),
        "directories; sessions' working directories, and pictures by path, must be in one of them",
        "DIRS",
        repeated=True,
    ),
    Setting(
        "agent_environment",
        _names,
        AGENT_ENVIRONMENT,
        "variables of the daemon that agents get; NAME* is a beginning",
        "NAMES",
        repeated=True,
    ),
    Setting(
        "agent_executables",
        _executables,
        _no_executables,
        "executable of an agent, instead of the one on PATH",
        "NAME=PATH",
        repeated=True,
    ),
    Setting(
        "agent_idle_stop_seconds",
        _seconds(0, 7 * 24 * 3600),
        900.0,
        "an idle agent is stopped after this time, until the next message, in seconds; 0: never",
        "SECONDS",
    ),
    Setting(
        "interrupt_grace_seconds",
        _seconds(0.1, 600),
        10.0,
        "an interrupted turn may take so long to end before its agent is stopped, in seconds",
        "SECONDS",
    ),
    Setting(
        "max_running_sessions", _count(1), 1000, "sessions with a running turn, at most", "COUNT"
    ),
    Setting(
        "max_queued_messages", _count(1), 100, "messages that wait in one session, at most", "COUNT"
    ),
    Setting(
        "max_queued_bytes",
        _bytes(1),
        128 * MIB,
        "bytes of the messages that wait in one session, at most",
        "BYTES",
    ),
    Setting("max_streams", _count(1), 10_000, "event streams open at once, at most", "COUNT"),
    Setting(
        "max_streams_per_client",
        _count(0),
        _LIMITS.max_streams_per_client,
        "streams that one client has open at once, at most; 0: as many as max_streams",
        "COUNT",
    ),
    Setting("max_calls", _count(1), _LIMITS.max_calls, "other calls at once, at most", "COUNT"),
    Setting(
        "max_pending_bytes",
        _bytes(1),
        _LIMITS.max_pending_bytes,
        "bytes of the requests that are worked on, together, at most",
        "BYTES",
    ),
    Setting(
        "max_request_bytes",
        _bytes(64 * 1024, 2**31 - 1),
        _LIMITS.max_request_bytes,
        "bytes of one request, at most",
        "BYTES",
    ),
    Setting(
        "retention_ended_sessions_seconds",
        _seconds(0, _CENTURY_SECONDS),
        0.0,
        "an ended session is deleted this long after its end, in seconds; 0: never",
        "SECONDS",
    ),
    Setting(
        "retention_event_age_seconds",
        _seconds(0, _CENTURY_SECONDS),
        0.0,
        "events older than this are removed, in seconds; 0: never",
        "SECONDS",
    ),
    Setting(
        "retention_session_bytes",
        _bytes(0),
        0,
        "a session's events beyond so many bytes are removed, oldest first; 0: never",
        "BYTES",
    ),
)
