"""Structured logging on standard error: one line a record, as text or as JSON.

What is logged are names, numbers and ids. Settings of sessions, environments, prompts, tokens and
metadata of calls never are; what looks like a secret all the same is taken out.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from agentstreamd.redaction import redacted

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(
    level: str = "info", format: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> None:
    """Send all log records of the process to `stream` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # The loop's own debug chatter and gRPC's view of errors that the edge has handled already.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, the record's own fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        shown = {k: redacted(v) if isinstance(v, str) else v for k, v in line.items()}
        return msgspec.json.encode(shown, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message and key=value; a traceback goes on lines below."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        fields = "".join(f" {key}={_plain(value)}" for key, value in _fields(record).items())
        message = _one_line(record.getMessage())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redacted(line)


def _one_line(text: str) -> str:
    """Text that can't pass for a line of the log of its own."""
    return text if text.isprintable() else repr(text)[1:-1]


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else repr(text)
