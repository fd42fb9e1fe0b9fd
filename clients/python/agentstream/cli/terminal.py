"""Reading lines from the person at the terminal; a line that is not wanted any more can be
withdrawn by cancelling its task.
"""

import sys
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import Output, create_output


class Interrupted(Exception):
    """Ctrl-C was pressed at a prompt."""


class Declined(Exception):
    """Ctrl-D was pressed at a prompt."""


class LineReader(Protocol):
    """Asks for lines."""

    async def line(
        self, prompt: str, *, secret: bool = False, default: str = "", remember: bool = False
    ) -> str:
        """The line that is typed after `prompt`, without its end. Raises Interrupted, Declined."""


class Terminal:
    """A `LineReader` on the terminal. It writes to standard error: standard output may be piped."""

    def __init__(self, source: Input | None = None, output: Output | None = None) -> None:
        # The terminal also where standard input was piped in and has been read.
        self._input = source or create_input(always_prefer_tty=True)
        self._output = output or create_output(stdout=sys.stderr)
        self._history = InMemoryHistory()
        self._session: PromptSession[str] | None = None

    @property
    def typed(self) -> str:
        """What was typed at the prompt that was asked last, also if it was withdrawn."""
        return self._session.default_buffer.text if self._session is not None else ""

    async def line(
        self, prompt: str, *, secret: bool = False, default: str = "", remember: bool = False
    ) -> str:
        """See `LineReader`. With `remember`, the line can be recalled at the next such prompt."""
        self._session = PromptSession(
            input=self._input,
            output=self._output,
            history=self._history if remember else InMemoryHistory(),
            is_password=secret,
            interrupt_exception=Interrupted,
            eof_exception=Declined,
        )
        return await self._session.prompt_async(
            FormattedText([("bold", prompt)]), default=default, handle_sigint=False
        )


def can_ask(*, stdin_is_used: bool = False) -> bool:
    """Whether there is a person to ask. `stdin_is_used`: it was read for something else."""
    return sys.stderr.isatty() and (stdin_is_used or sys.stdin.isatty())
