"""Say what works and what does not, and what to do about it.

It asks each agent whether it is logged in, where that can be told without its provider. With --try
each is given one small task instead, in the current directory: only that shows whether its provider
takes its credentials, and whether it reaches its model. It costs what a message costs.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence

from rich.text import Text

from agentstream.cli.commands.agents import all_agents
from agentstream.cli.context import Context
from agentstream.cli.exits import FAILED, OK, cli_error
from agentstream.cli.text import visible
from agentstream.client import AgentstreamError, AsyncClient, typed_errors
from agentstream.v1 import agent_pb2, error_pb2, event_pb2, service_pb2, session_pb2

TASK = "Answer with the one word: ok. Use no tools."
TASK_SECONDS = 120.0
ASKED_SECONDS = 1
"""What the agent asks is rejected after this time: nobody is there to answer."""

_GOOD, _NOTE, _BAD = ("✓", "green"), ("-", "dim"), ("✗", "red")
_WHY = {
    error_pb2.ERROR_CODE_AUTHENTICATION: "it is not logged in, or its key is wrong: log in with "
    "its own program, as the daemon's user, or give the daemon its key",
    error_pb2.ERROR_CODE_PERMISSION_DENIED: "its account may not use the model",
    error_pb2.ERROR_CODE_QUOTA_EXCEEDED: "its quota or credit is used up",
    error_pb2.ERROR_CODE_RATE_LIMITED: "it is rate-limited: try again later",
    error_pb2.ERROR_CODE_OVERLOADED: "its provider is overloaded: try again later",
    error_pb2.ERROR_CODE_MODEL_NOT_FOUND: "its default model does not exist: name another",
    error_pb2.ERROR_CODE_NETWORK: "it does not reach its provider: look at the network, and at "
    "the proxy variables of the daemon",
    error_pb2.ERROR_CODE_AGENT_START_FAILED: "it does not start",
    error_pb2.ERROR_CODE_AGENT_EXITED: "it ended by itself",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="these agents (default: all)")
    parser.add_argument("--try", dest="try_", action="store_true", help="give each a small task")
    parser.add_argument("--task", default=TASK, metavar="TEXT", help="another task for --try")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    task = arguments.task if arguments.try_ else ""
    async with context.connect() as client:
        agents = [agent async for agent in all_agents(client)]
        _say(context, _GOOD, f"the daemon at {context.address} answers")
        wanted: Sequence[str] = arguments.names or [agent.name for agent in agents]
        known = {agent.name: agent for agent in agents}
        fine, broken = 0, 0
        for name in wanted:
            good = await _examine(client, context, name, known.get(name), task)
            fine += good is True
            broken += good is False
    if not fine and not broken:
        _say(context, _BAD, "there is no agent to run: install one, then ask again")
    return OK if fine and not broken else FAILED


async def _examine(
    client: AsyncClient,
    context: Context,
    name: str,
    agent: agent_pb2.Agent | None,
    task: str,
) -> bool | None:
    """Whether an agent works; None where it is not installed."""
    if agent is None:
        _say(context, _BAD, f"{name}: the daemon knows no such agent")
        return False
    reason = visible(agent.unavailable_reason)
    if agent.state == agent_pb2.AGENT_STATE_NOT_INSTALLED:
        _say(context, _NOTE, f"{name}: {reason or 'not installed'}")
        return None
    if agent.state != agent_pb2.AGENT_STATE_AVAILABLE:
        _say(context, _BAD, f"{name}: {reason or 'it cannot be used'}")
        return False
    what = " ".join(filter(None, (visible(agent.version), visible(agent.executable_path))))
    if not task:
        return _tell_login(context, name, what, await _login(client, name))
    failure = await _try(client, name, task)
    if failure:
        _say(context, _BAD, f"{name}: {visible(failure)}")
        return False
    _say(context, _GOOD, f"{name}: answers ({what})")
    return True


async def _login(client: AsyncClient, name: str) -> agent_pb2.AgentLogin:
    with typed_errors():
        request = service_pb2.GetAgentRequest(name=name, include_login=True)
        return (await client.stub.GetAgent(request)).agent.login


def _tell_login(context: Context, name: str, what: str, login: agent_pb2.AgentLogin) -> bool:
    """Say whether an agent that is installed is logged in; False where it is not."""
    detail = visible(login.detail)
    if login.state == agent_pb2.LOGIN_STATE_LOGGED_OUT:
        fix = f": {detail}" if detail else ""
        _say(context, _BAD, f"{name}: installed ({what}), but not logged in{fix}")
        return False
    if login.state == agent_pb2.LOGIN_STATE_LOGGED_IN:
        by = f" ({detail})" if detail else ""
        _say(context, _GOOD, f"{name}: installed ({what}), logged in{by}")
        return True
    why = f" ({detail})" if detail else ""
    hint = f"whether it is logged in can't be told without --try{why}"
    _say(context, _GOOD, f"{name}: installed ({what}); {hint}")
    return True


async def _try(client: AsyncClient, name: str, task: str) -> str:
    """Why an agent does not do a task; empty where it does."""
    config = session_pb2.SessionConfig(
        agent=name,
        working_directory=os.getcwd(),
        one_shot=True,
        request_policy=session_pb2.REQUEST_POLICY_REJECT,
        title="agentstream doctor",
    )
    config.request_timeout.seconds = ASKED_SECONDS
    try:
        session = await client.create(config)
        async with asyncio.timeout(TASK_SECONDS), client.follow(session.session_id) as events:
            await session.send(task)
            async for event in events:
                if event.HasField("turn_ended"):
                    return _failure(event.turn_ended)
    except AgentstreamError as error:
        return str(cli_error(error, ""))
    except TimeoutError:
        await session.end()
        return f"it did not do a small task within {TASK_SECONDS:.0f} s"
    return "it ended without an answer"


def _failure(ended: event_pb2.TurnEnded) -> str:
    if ended.status == event_pb2.TURN_STATUS_COMPLETED:
        return ""
    why = _WHY.get(ended.error.code, "it failed")
    return f"{why} ({ended.error.message})" if ended.error.message else why


def _say(context: Context, mark: tuple[str, str], text: str) -> None:
    context.out.print(Text.assemble(mark, " ", text), soft_wrap=True)
