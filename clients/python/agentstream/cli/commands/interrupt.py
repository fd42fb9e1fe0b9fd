"""Stop the turn that a session is running; the session stays."""

import argparse

from agentstream.cli.context import Context
from agentstream.cli.exits import OK
from agentstream.cli.text import enum_name
from agentstream.client import typed_errors
from agentstream.v1 import event_pb2, service_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("session", metavar="SESSION", help="the session")
    parser.add_argument("--turn", default="", metavar="ID", help="only if this turn runs")
    parser.add_argument("--discard-queue", action="store_true", help="forget waiting messages too")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    request = service_pb2.InterruptTurnRequest(
        session_id=arguments.session,
        turn_id=arguments.turn,
        discard_queue=arguments.discard_queue,
    )
    async with context.connect() as client:
        with typed_errors():
            answer = await client.stub.InterruptTurn(request)
    status = enum_name(event_pb2.TurnStatus.Name(answer.status), "TURN_STATUS_")
    context.out.print(f"Turn {answer.turn_id}: {status}.", soft_wrap=True)
    return OK
