"""Talk to an agent, message by message.

Ctrl-C interrupts a running turn, Ctrl-D leaves; the session stays, and --session comes back to it.
A line that begins with / is a command of the chat: /help lists them.
"""

import argparse
import uuid

from agentstream.cli.asking import add_policy_option, make_answerer, shown_on_terminal
from agentstream.cli.chat import Chat
from agentstream.cli.context import Context
from agentstream.cli.exits import usage_error
from agentstream.cli.options import add_session_options, session_config
from agentstream.cli.terminal import can_ask
from agentstream.client import AsyncClient, typed_errors
from agentstream.v1 import service_pb2, session_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--session", metavar="SESSION", help="go on with this session")
    parser.add_argument("--history", action="store_true", help="with --session: show it all first")
    add_policy_option(parser)
    add_session_options(parser)


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    if not can_ask():
        raise usage_error("A chat needs a terminal; `agentstream run` works without one.")
    answerer = make_answerer(
        arguments.permission_policy, context, stdin_is_used=False, shown=shown_on_terminal()
    )
    async with context.connect() as client:
        session = await _session(arguments, context, client)
        after = session.latest_sequence if arguments.session and not arguments.history else 0
        chat = Chat(client, session.session_id, context, answerer)
        return await chat.run(after)


async def _session(
    arguments: argparse.Namespace, context: Context, client: AsyncClient
) -> session_pb2.Session:
    if arguments.session:
        with typed_errors():
            request = service_pb2.GetSessionRequest(session_id=arguments.session)
            return (await client.stub.GetSession(request)).session
    create = service_pb2.CreateSessionRequest(
        session_id=f"chat-{uuid.uuid4().hex[:8]}",
        config=session_config(arguments, context, one_shot=False),
    )
    with typed_errors():
        return (await client.stub.CreateSession(create)).session
