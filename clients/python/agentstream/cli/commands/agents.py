"""List the agents that the daemon can drive, or describe one."""

import argparse
from collections.abc import AsyncIterator

from rich.text import Text

from agentstream.cli.context import Context
from agentstream.cli.exits import OK
from agentstream.cli.summary import permission_mode_name
from agentstream.cli.text import visible
from agentstream.client import AsyncClient, typed_errors
from agentstream.v1 import agent_pb2, service_pb2

_STATES = {
    agent_pb2.AGENT_STATE_AVAILABLE: ("available", "green"),
    agent_pb2.AGENT_STATE_NOT_INSTALLED: ("not installed", "dim"),
    agent_pb2.AGENT_STATE_UNUSABLE: ("unusable", "red"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="describe this one")
    parser.add_argument("--json", action="store_true", help="one Agent per line, as ProtoJSON")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    async with context.connect() as client:
        if arguments.name:
            with typed_errors():
                request = service_pb2.GetAgentRequest(name=arguments.name)
                agent = (await client.stub.GetAgent(request)).agent
            if arguments.json:
                context.json(agent)
            else:
                _describe(agent, context)
            return OK
        agents = [agent async for agent in all_agents(client)]
    if arguments.json:
        for agent in agents:
            context.json(agent)
        return OK
    table = context.table("AGENT", "STATE", "VERSION", "")
    for agent in agents:
        table.add_row(
            Text(agent.name, "bold"),
            Text(*_STATES.get(agent.state, ("unknown", ""))),
            visible(agent.version),
            Text(visible(agent.unavailable_reason or agent.executable_path), "dim"),
        )
    context.print_table(table)
    return OK


async def all_agents(client: AsyncClient) -> AsyncIterator[agent_pb2.Agent]:
    """All agents that the daemon knows."""
    token = ""
    while True:
        with typed_errors():
            page = await client.stub.ListAgents(service_pb2.ListAgentsRequest(page_token=token))
        for agent in page.agents:
            yield agent
        token = page.next_page_token
        if not token:
            return


def _describe(agent: agent_pb2.Agent, context: Context) -> None:
    state, style = _STATES.get(agent.state, ("unknown", ""))
    table = context.table("", "")
    table.show_header = False

    def row(name: str, value: str | Text) -> None:
        if value:
            table.add_row(Text(name, "dim"), value)

    can = [field.name for field, _ in agent.capabilities.ListFields()]
    fields = agent_pb2.AgentCapabilities.DESCRIPTOR.fields
    cannot = [field.name for field in fields if field.name not in can]
    row("agent", Text(f"{agent.name}  {visible(agent.display_name)}", "bold"))
    row("state", Text(state, style))
    row("", visible(agent.unavailable_reason))
    row("version", visible(agent.version))
    row("executable", visible(agent.executable_path))
    row("can", ", ".join(name.replace("_", " ") for name in can))
    row("can't", Text(", ".join(name.replace("_", " ") for name in cannot), "dim"))
    for model in agent.models:
        row("model", f"{model.name}  {model.display_name}  {model.description}".rstrip())
    for mode in agent.modes:
        row("mode", f"{mode.name}  {mode.description}")
    for info in agent.permission_modes:
        row("permission mode", f"{permission_mode_name(info.mode)}  {info.description}")
    for option in agent.options:
        row("option", f"{option.name}  {option.description}")
    context.print_table(table)
