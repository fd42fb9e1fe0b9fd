"""The `agentstream` command: arguments, and failures as sentences and exit codes."""

import os

# Read when gRPC is imported: nothing of its own on standard error, and no fork handlers.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import argparse
import asyncio
import io
import sys
from collections.abc import Sequence

from rich.text import Text

from agentstream.cli import exits
from agentstream.cli.commands import COMMANDS
from agentstream.cli.context import Context, make_context
from agentstream.client import AgentstreamError
from agentstream.client.channel import DEFAULT_ADDRESS

_EPILOG = f"""\
environment:
  AGENTSTREAM_ADDRESS  where the daemon is (default: {DEFAULT_ADDRESS})
  AGENTSTREAM_TOKEN    token, where the daemon wants one
  NO_COLOR             no colours

{exits.HELP}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parsed = make_parser().parse_args(arguments)
    try:
        context = make_context(parsed)
    except exits.CliError as error:
        print(f"agentstream: {error}", file=sys.stderr)
        return error.exit_code
    try:
        return asyncio.run(_run(parsed, context))
    except exits.CliError as error:
        context.err.print(Text(f"agentstream: {error}", "red"), soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`| head`); nor may the interpreter flush at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exits.OK


async def _run(parsed: argparse.Namespace, context: Context) -> int:
    try:
        code: int = await parsed.run(parsed, context)
    except AgentstreamError as error:
        raise exits.cli_error(error, context.address) from error
    return code


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    # Before the command or after it, hence no defaults: the second would undo the first.
    connection = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = connection.add_argument_group("connection")
    group.add_argument("--address", help="host:port or unix:PATH of the daemon")
    group.add_argument("--token-file", metavar="FILE", help="file that holds the daemon's token")
    group.add_argument("--tls-ca", metavar="FILE", help="authority of the daemon's certificate")
    group.add_argument("--tls-cert", metavar="FILE", help="client certificate")
    group.add_argument("--tls-key", metavar="FILE", help="its key")
    parser = argparse.ArgumentParser(
        prog="agentstream",
        description="Run coding agents and follow what they do, as one event stream.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[connection],
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").strip()
        subparser = subparsers.add_parser(
            name,
            help=summary.splitlines()[0].rstrip("."),
            description=summary,
            epilog=exits.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[connection],
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
