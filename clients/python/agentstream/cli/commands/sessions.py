"""List sessions, oldest first, with what they are doing."""

import argparse
import time
from collections.abc import AsyncIterator

from rich.text import Text

from agentstream.cli.context import Context
from agentstream.cli.exits import OK
from agentstream.cli.options import pairs
from agentstream.cli.text import duration, enum_name, one_line, visible
from agentstream.client import AsyncClient, typed_errors
from agentstream.v1 import service_pb2, session_pb2

_STYLES = {
    session_pb2.SESSION_STATE_RUNNING: "green",
    session_pb2.SESSION_STATE_WAITING: "yellow",
    session_pb2.SESSION_STATE_ENDED: "dim",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--live", action="store_true", help="leave out ended sessions")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only sessions with this label; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="one Session per line, as ProtoJSON")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    labels = pairs(arguments.label, "--label")
    async with context.connect() as client:
        sessions = [session async for session in _all(client, labels, arguments.live)]
    if arguments.json:
        for session in sessions:
            context.json(session)
        return OK
    if not sessions:
        context.err.print("No sessions.")
        return OK
    table = context.table("SESSION", "AGENT", "STATE", "EVENTS", "ACTIVE", "DIRECTORY", "ABOUT")
    now = time.time()
    for session in sessions:
        table.add_row(
            Text(session.session_id, "bold"),
            session.config.agent,
            _state(session),
            str(session.latest_sequence),
            f"{duration(now - session.update_time.ToMilliseconds() / 1000)} ago",
            visible(session.config.working_directory),
            _about(session),
        )
    context.print_table(table)
    return OK


async def _all(
    client: AsyncClient, labels: dict[str, str], live_only: bool
) -> AsyncIterator[session_pb2.Session]:
    request = service_pb2.ListSessionsRequest(page_size=500, labels=labels, live_only=live_only)
    while True:
        with typed_errors():
            page = await client.stub.ListSessions(request)
        for session in page.sessions:
            yield session
        request.page_token = page.next_page_token
        if not request.page_token:
            return


def _state(session: session_pb2.Session) -> Text:
    state = enum_name(session_pb2.SessionState.Name(session.state), "SESSION_STATE_")
    if waiting := len(session.pending_requests):
        state += f" ({waiting} to answer)"
    return Text(state, _STYLES.get(session.state, ""))


def _about(session: session_pb2.Session) -> Text:
    labels = " ".join(f"{key}={value}" for key, value in sorted(session.config.labels.items()))
    return Text.assemble(one_line(session.config.title, 40), " ", (one_line(labels, 60), "dim"))
