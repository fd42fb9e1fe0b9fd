"""Which answerer a command has, by its options and by whether there is a person to ask."""

import argparse
import sys
from typing import Final

from agentstream.cli.answering import Answerer, PolicyAnswerer
from agentstream.cli.context import Context
from agentstream.cli.exits import usage_error
from agentstream.cli.prompts import Answer, Prompter, Request
from agentstream.cli.terminal import Terminal, can_ask

POLICIES: Final = ("ask", "accept", "reject")


def add_policy_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that says who answers."""
    parser.add_argument(
        "--permission-policy",
        choices=POLICIES,
        help="ask here, or accept or reject all permissions (questions are then declined); "
        "default: ask on a terminal, else reject",
    )


def make_answerer(
    policy: str | None, context: Context, *, stdin_is_used: bool, shown: bool
) -> Answerer:
    """The answerer for `--permission-policy`.

    `shown`: what is asked is seen on the terminal anyway, as part of the session. Raises CliError.
    """
    possible = can_ask(stdin_is_used=stdin_is_used)
    if policy == "ask" and not possible:
        raise usage_error(
            "There is no terminal to ask on: say --permission-policy accept or reject."
        )
    if policy in ("accept", "reject"):
        return PolicyAnswerer(accept=policy == "accept")
    if not possible:
        return _Unattended(context)
    return Prompter(Terminal(), context.err_line, show_request=not shown)


def shown_on_terminal() -> bool:
    """Whether what goes to standard output is seen where prompts are."""
    return sys.stdout.isatty()


class _Unattended:
    """Rejects, and says so once: that nobody is asked may not have been meant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._policy = PolicyAnswerer(accept=False)
        self._said = False

    async def ask(self, request: Request) -> Answer:
        if not self._said:
            self._said = True
            self._context.notice(
                "There is no terminal to ask on, so what the agent asks is rejected; "
                "see --permission-policy."
            )
        return await self._policy.ask(request)
