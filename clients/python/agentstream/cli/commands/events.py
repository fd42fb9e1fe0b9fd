"""Show a session's events, from any point on, and follow them.

Ctrl-C stops following; the session goes on.
"""

import argparse

from agentstream.cli.context import Context
from agentstream.cli.display import Display
from agentstream.cli.exits import OK, usage_error
from agentstream.client import typed_errors
from agentstream.v1 import event_pb2, service_pb2

_KINDS = {
    name.removeprefix("EVENT_KIND_").lower(): value
    for name, value in event_pb2.EventKind.items()
    if value != event_pb2.EVENT_KIND_UNSPECIFIED
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("session", metavar="SESSION", help="the session")
    parser.add_argument(
        "--after", type=int, default=0, metavar="N", help="only events after sequence N"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the session ends")
    parser.add_argument("--raw", action="store_true", help="with the agent's own messages")
    parser.add_argument("--json", action="store_true", help="one Event per line, as ProtoJSON")
    parser.add_argument(
        "--kinds", metavar="KIND,...", help=f"only these kinds: {', '.join(_KINDS)}"
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    kinds = _kinds(arguments.kinds)
    display = Display(context, json=arguments.json, raw=arguments.raw)
    async with context.connect() as client:
        with typed_errors():  # first, as it does not try for long to reach the daemon
            request = service_pb2.GetSessionRequest(session_id=arguments.session)
            session = (await client.stub.GetSession(request)).session
        stream = client.follow(
            arguments.session,
            arguments.after,
            follow=arguments.follow,
            include_raw=arguments.raw,
            kinds=kinds,
            expected_session_uid=session.uid,
            on_reconnect=lambda error, delay: context.notice(
                f"The connection was lost, trying again in {delay:.1f} s …"
            ),
        )
        try:
            async with stream:
                async for event in stream:
                    display.show(event)
        finally:
            display.finish()
    return OK


def _kinds(names: str | None) -> list[event_pb2.EventKind.ValueType]:
    kinds = []
    for name in names.split(",") if names else ():
        kind = _KINDS.get(name.strip().lower())
        if kind is None:
            raise usage_error(f"{name!r} is no kind of event; there are: {', '.join(_KINDS)}.")
        kinds.append(kind)
    return kinds
