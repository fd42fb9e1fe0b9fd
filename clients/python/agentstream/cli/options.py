"""Options that several commands have, and what they mean for the contract."""

import argparse
import json
import mimetypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agentstream.cli.context import Context
from agentstream.cli.exits import usage_error
from agentstream.v1 import agent_pb2, service_pb2, session_pb2

PERMISSION_MODES: Final = {
    "default": agent_pb2.PERMISSION_MODE_DEFAULT,
    "accept-edits": agent_pb2.PERMISSION_MODE_ACCEPT_EDITS,
    "plan": agent_pb2.PERMISSION_MODE_PLAN,
    "bypass": agent_pb2.PERMISSION_MODE_BYPASS,
}


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add what a new session is made of."""
    group = parser.add_argument_group("session")
    group.add_argument(
        "--agent",
        default=os.environ.get("AGENTSTREAM_AGENT") or "claude",
        help="which agent (default: $AGENTSTREAM_AGENT or claude)",
    )
    group.add_argument("--model", default="", help="model (default: the agent's)")
    group.add_argument("--mode", default="", help="the agent's own mode, see `agentstream agents`")
    group.add_argument(
        "--permission-mode",
        choices=PERMISSION_MODES,
        default="default",
        help="how much the agent may do without asking (default: %(default)s)",
    )
    group.add_argument("--cwd", help="working directory, on the daemon's machine (default: here)")
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable of the agent; without VALUE as it is here; repeatable",
    )
    group.add_argument("--system-prompt", default="", help="added to the agent's system prompt")
    group.add_argument(
        "--mcp-config",
        metavar="FILE",
        help='JSON file with MCP servers: {"mcpServers": {NAME: {"command": ...} or {"url": ...}}}',
    )
    group.add_argument("--resume", default="", metavar="NATIVE_ID", help="native session to go on")
    group.add_argument("--effort", default="", help="reasoning effort, in the agent's words")
    group.add_argument("--title", default="", help="name of the session, for people")
    group.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="label; repeatable"
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of this agent alone, see `agentstream agents`; repeatable",
    )


def session_config(
    arguments: argparse.Namespace, context: Context, *, one_shot: bool
) -> session_pb2.SessionConfig:
    """The settings that the options ask for. Raises CliError."""
    if arguments.cwd is None and not context.is_local:
        raise usage_error(
            f"The daemon at {context.address} is on another machine: say where the agent "
            "should work there, with --cwd."
        )
    directory = arguments.cwd or os.getcwd()
    return session_pb2.SessionConfig(
        agent=arguments.agent,
        working_directory=os.path.abspath(directory) if context.is_local else directory,
        model=arguments.model,
        mode=arguments.mode,
        permission_mode=PERMISSION_MODES[arguments.permission_mode],
        env=_environment(arguments.env),
        system_prompt=arguments.system_prompt,
        mcp_servers=mcp_servers(arguments.mcp_config) if arguments.mcp_config else (),
        resume_native_session_id=arguments.resume,
        effort=arguments.effort,
        title=arguments.title,
        labels=pairs(arguments.label, "--label"),
        agent_options=pairs(arguments.option, "--option"),
        one_shot=one_shot,
    )


def pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE options as a dictionary. Raises CliError."""
    made = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not key or not equals:
            raise usage_error(f"{option} {value} is not of the form KEY=VALUE.")
        made[key] = rest
    return made


def mcp_servers(file: str) -> list[session_pb2.McpServer]:
    """The MCP servers of a file in the form that agents share. Raises CliError."""
    data = _json_file(file)
    servers = data.get("mcpServers", data) if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise usage_error(f'{file} has no object "mcpServers".')
    made = []
    for name, about in servers.items():
        server = session_pb2.McpServer(name=name)
        try:
            if "url" in about:
                server.http.url = about["url"]
                server.http.headers.update(about.get("headers", {}))
            else:
                server.stdio.command = about["command"]
                server.stdio.args.extend(about.get("args", ()))
                server.stdio.env.update(about.get("env", {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise usage_error(
                f"MCP server {name} in {file} needs a command (with args, env) "
                "or a url (with headers), all of them text."
            ) from error
        made.append(server)
    return made


def image_part(file: str) -> service_pb2.InputPart:
    """An image for a message. Raises CliError."""
    media_type = mimetypes.guess_type(file)[0] or ""
    if media_type not in ("image/png", "image/jpeg", "image/gif", "image/webp"):
        raise usage_error(f"{file} is no PNG, JPEG, GIF or WebP image, by its name.")
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise usage_error(f"The image {file} can't be read: {error.strerror}.") from error
    image = service_pb2.InputImage(media_type=media_type, data=data)
    return service_pb2.InputPart(image=image)


def _environment(values: Sequence[str]) -> dict[str, str]:
    made = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals and name not in os.environ:
            raise usage_error(f"--env {name}: there is no such variable here; give it a value.")
        made[name] = rest if equals else os.environ[name]
    return made


def _json_file(file: str) -> Any:
    try:
        return json.loads(Path(file).read_bytes())
    except OSError as error:
        raise usage_error(f"{file} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise usage_error(f"{file} is not JSON: {error}.") from error
