"""Turn a recorded native transcript into the events of a session, offline.

Reads one native message per line, as the agent wrote it, and writes one Event per line as canonical
ProtoJSON. Needs no daemon. With --check the laws of a stream are checked too; what breaks one is
named with its law, the line of the transcript and the sequence of the event.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from agentstream.cli.context import Context, json_line
from agentstream.cli.display import Display
from agentstream.cli.exits import FAILED, NOT_FOUND, OK, CliError, usage_error
from agentstream.v1 import session_pb2

if TYPE_CHECKING:
    from agentstreamd.adapters.base import Adapter
    from agentstreamd.laws import LawChecker

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="the transcript; - reads standard input")
    parser.add_argument("--agent", required=True, metavar="NAME", help="the agent that wrote it")
    parser.add_argument(
        "--client", metavar="FILE", help="what was written to the agent, one message per line"
    )
    parser.add_argument("--include-raw", action="store_true", help="with the native messages")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a law is violated")
    parser.add_argument("--cwd", default="", help="working directory that the session had")
    parser.add_argument("--pretty", action="store_true", help="draw the session for people")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    # Only here: clients can be installed where the daemon's code is not wanted in memory.
    from agentstreamd.laws import LawChecker
    from agentstreamd.replay import numbered_lines, read_lines, replay

    if arguments.file == arguments.client == "-":
        raise usage_error("Standard input can't be both the transcript and the client's side.")
    adapter = _adapter(arguments.agent)
    client_lines = None
    if arguments.client is not None:
        with _open(arguments.client) as file:
            client_lines = [line for line in read_lines(file) if isinstance(line, bytes)]
    config = session_pb2.SessionConfig(agent=arguments.agent, working_directory=arguments.cwd)
    checker = LawChecker(raw=arguments.include_raw)
    display = Display(context, raw=arguments.include_raw) if arguments.pretty else None
    told = 0
    with _open(arguments.file) as file:
        counted = _Counted(numbered_lines(file))
        events = replay(
            adapter,
            counted,
            client_lines=client_lines,
            include_raw=arguments.include_raw,
            config=config,
        )
        for event in events:
            if display is not None:
                display.show(event)
            else:
                sys.stdout.write(json_line(event) + "\n")
            if arguments.check:
                checker.feed(event)
                told = _tell(checker, told, counted.number, context)
    if display is not None:
        display.finish()
    sys.stdout.flush()
    if arguments.check:
        checker.finish(complete=True)
        _tell(checker, told, counted.number, context)
        return FAILED if checker.violations else OK
    return OK


class _Counted(Iterator[T]):
    """Remembers the number of what was taken last; 0 at first."""

    def __init__(self, items: Iterable[tuple[int, T]]) -> None:
        self._items = iter(items)
        self.number = 0

    def __next__(self) -> T:
        self.number, item = next(self._items)
        return item


def _tell(checker: "LawChecker", told: int, line: int, context: Context) -> int:
    for violation in checker.violations[told:]:
        context.notice(f"line {line}: {violation}")
    return len(checker.violations)


def _adapter(name: str) -> "Adapter":
    from agentstreamd.adapters.registry import UnknownAgent, load

    try:
        return load([name])[name]
    except UnknownAgent as error:
        raise CliError(f"{str(error).capitalize()}.", NOT_FOUND) from error


def _open(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise usage_error(f"{path} can't be read: {error.strerror}.") from error
