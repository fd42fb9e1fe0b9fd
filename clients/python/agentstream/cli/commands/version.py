"""Print the version of this program and of the contract it speaks."""

import argparse
from importlib import metadata

from agentstream.cli.context import Context
from agentstream.cli.exits import OK
from agentstream.v1 import service_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    version = metadata.version("agentstream")
    context.out.print(f"agentstream {version} ({service_pb2.DESCRIPTOR.package})", soft_wrap=True)
    return OK
