"""Run one prompt in a session of its own, which ends with the answer.

Ctrl-C interrupts the turn; once more quits.
"""

import argparse
import asyncio
import sys
import uuid

from agentstream.cli.asking import add_policy_option, make_answerer, shown_on_terminal
from agentstream.cli.context import Context
from agentstream.cli.conversation import Conversation
from agentstream.cli.display import Display
from agentstream.cli.exits import FAILED, INTERRUPTED, OK, usage_error
from agentstream.cli.options import add_session_options, image_part, session_config
from agentstream.cli.stopping import Stopper
from agentstream.cli.text import duration
from agentstream.client import AgentstreamError, AsyncClient, typed_errors
from agentstream.v1 import event_pb2, service_pb2

_END_SECONDS = 15.0
"""How long the end of a session is waited for: longer than a deaf agent is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "prompt", nargs="+", metavar="PROMPT", help="what to do; - reads it from stdin"
    )
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="image to send; repeatable"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="interrupt the turn then")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one Event per line, as ProtoJSON")
    output.add_argument("--quiet", "-q", action="store_true", help="only what the assistant says")
    add_policy_option(parser)
    add_session_options(parser)


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    from_stdin = arguments.prompt == ["-"]
    prompt = sys.stdin.read() if from_stdin else " ".join(arguments.prompt)
    if not prompt.strip():
        raise usage_error("The prompt is empty.")
    parts = [service_pb2.InputPart(text=prompt), *map(image_part, arguments.image)]
    config = session_config(arguments, context, one_shot=True)
    drawn = shown_on_terminal() and not (arguments.json or arguments.quiet)
    answerer = make_answerer(
        arguments.permission_policy, context, stdin_is_used=from_stdin, shown=drawn
    )
    display = Display(context, json=arguments.json, text_only=arguments.quiet)
    session_id = f"run-{uuid.uuid4().hex[:12]}"
    async with context.connect() as client:
        with typed_errors():
            await client.stub.CreateSession(
                service_pb2.CreateSessionRequest(session_id=session_id, config=config)
            )
        stopper = Stopper(lambda: conversation.interrupt(), context.notice)
        conversation = Conversation(
            client,
            session_id,
            show=display.show,
            notice=context.notice,
            answerer=answerer,
            on_interrupt=stopper.press,
            hold=shown_on_terminal(),
        )
        try:
            with stopper.on_signal():
                return await _converse(conversation, parts, stopper, arguments.timeout, context)
        finally:
            await conversation.close()
            display.finish()
            if not conversation.ended.is_set():
                context.notice("Ending the session.")
                await _end(client, session_id)


async def _converse(
    conversation: Conversation,
    parts: list[service_pb2.InputPart],
    stopper: Stopper,
    seconds: float | None,
    context: Context,
) -> int:
    await conversation.start()
    turn = await conversation.send(parts)
    work = asyncio.create_task(_whole(conversation, turn))
    quitting = asyncio.create_task(stopper.quit.wait())
    timed_out = False
    try:
        done, _ = await asyncio.wait(
            [work, quitting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            timed_out = True
            context.notice(f"The turn has taken {duration(seconds or 0)}: interrupting it.")
            await conversation.interrupt()
            await asyncio.wait([work, quitting], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return INTERRUPTED
        ended = work.result()
    finally:
        work.cancel()
        quitting.cancel()
    if ended is not None and ended.status == event_pb2.TURN_STATUS_COMPLETED:
        return OK
    return INTERRUPTED if stopper.pressed and not timed_out else FAILED


async def _whole(
    conversation: Conversation, turn: "asyncio.Future[event_pb2.TurnEnded]"
) -> event_pb2.TurnEnded | None:
    ended = await conversation.wait(turn)
    await conversation.wait_ended()
    return ended


async def _end(client: AsyncClient, session_id: str) -> None:
    """Nothing of a session that nobody looks at any more should live on."""
    try:
        with typed_errors():
            await client.stub.EndSession(
                service_pb2.EndSessionRequest(session_id=session_id), timeout=_END_SECONDS
            )
    except AgentstreamError:
        pass  # what went wrong before is what the person should read
