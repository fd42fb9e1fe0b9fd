"""End sessions and stop their agents; their events can still be read."""

import argparse

from agentstream.cli.context import Context
from agentstream.cli.exits import OK
from agentstream.client import typed_errors
from agentstream.v1 import service_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("sessions", nargs="+", metavar="SESSION", help="the sessions")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    async with context.connect() as client:
        for session in arguments.sessions:
            with typed_errors():
                await client.stub.EndSession(service_pb2.EndSessionRequest(session_id=session))
            context.out.print(f"Ended {session}.", soft_wrap=True)
    return OK
