"""What every command works with: where the daemon is, where output goes."""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentstream.cli.exits import usage_error
from agentstream.client import AsyncClient, connect_aio
from agentstream.client.channel import DEFAULT_ADDRESS, is_local

_WIDE = 10_000
"""Columns where output is piped: nothing is cut or wrapped."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a command works with.

    Attributes:
        address: Where the daemon is.
        out: Standard output.
        err: Standard error.
    """

    address: str
    out: Console
    err: Console
    _token: str = ""
    _tls: tuple[str | None, str | None, str | None] = (None, None, None)

    def connect(self) -> AsyncClient:
        """A client of the daemon. Raises CliError."""
        ca, certificate, key = self._tls
        try:
            return connect_aio(
                self.address,
                token=self._token or None,
                tls_ca=ca,
                tls_cert=certificate,
                tls_key=key,
            )
        except (ValueError, OSError) as error:
            raise usage_error(f"The TLS settings can't be used: {error}.") from error

    @property
    def is_local(self) -> bool:
        """Whether the daemon runs on this machine."""
        return is_local(self.address)

    def notice(self, message: str) -> None:
        """Say something beside the output."""
        self.err.print(Text(f"agentstream: {message}", "yellow"), soft_wrap=True)

    def err_line(self, line: Text) -> None:
        """Write one line to standard error."""
        self.err.print(line, soft_wrap=True)

    def json(self, message: Message) -> None:
        """Write one message as canonical ProtoJSON, on a line of its own."""
        sys.stdout.write(json_line(message) + "\n")
        sys.stdout.flush()

    def table(self, *columns: str) -> Table:
        """A table for `print_table`."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            table.add_column(column, no_wrap=not self.out.is_terminal)
        return table

    def print_table(self, table: Table) -> None:
        """Write a table to `out`; where it is piped, without spaces at the ends of its lines."""
        if self.out.is_terminal:
            self.out.print(table)
            return
        with self.out.capture() as capture:
            self.out.print(table)
        for line in capture.get().splitlines():
            self.out.print(line.rstrip(), soft_wrap=True)


def json_line(message: Message) -> str:
    """Canonical ProtoJSON on one line."""
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False)


def make_context(arguments: argparse.Namespace) -> Context:
    """The context that arguments and environment ask for. Raises CliError."""
    given = vars(arguments)
    return Context(
        address=given.get("address") or os.environ.get("AGENTSTREAM_ADDRESS") or DEFAULT_ADDRESS,
        out=_console(stderr=False),
        err=_console(stderr=True),
        _token=_token(given.get("token_file")),
        _tls=(given.get("tls_ca"), given.get("tls_cert"), given.get("tls_key")),
    )


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def _token(file: str | None) -> str:
    if file is None:
        return os.environ.get("AGENTSTREAM_TOKEN", "")
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"The token file {file} can't be read: {error}.") from error
