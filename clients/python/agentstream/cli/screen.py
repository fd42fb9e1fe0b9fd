"""Where a session is written: lines and streamed text, with margins, on one rich console."""

import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from agentstream.cli.text import plain

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


class Screen:
    """Writes to a console and knows where the cursor is.

    Attributes:
        console: Where it is written.
        formatted: Whether formatting can be seen: a terminal, and colours are wanted.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.formatted = console.is_terminal and not console.no_color
        self._column = 0
        self._blank = True
        self._margin = ""

    def set_depth(self, depth: int) -> None:
        """How deep what follows stands: the work of sub-agents is set off by bars."""
        margin = "│ " * depth
        if margin != self._margin:
            self.fresh_line()
            self._margin = margin

    def fresh_line(self) -> None:
        """Go to the beginning of a line."""
        if self._column:
            self._print(Text("\n"))
            self._column = 0

    def gap(self) -> None:
        """Leave one empty line."""
        self.fresh_line()
        if not self._blank:
            self._print(Text("\n"))
            self._blank = True

    def line(self, *parts: str | tuple[str, str] | Text) -> None:
        """Write one line of parts, each text or (text, style)."""
        self.fresh_line()
        self._print(Text.assemble((self._margin, "dim"), *parts, "\n"))
        self._blank = False

    def lines(self, lines: Iterable[Text]) -> None:
        """Write lines."""
        for line in lines:
            self.line(line)

    def stream(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        """Write on from where the cursor is. With `wrap`, `text` is a word that is kept whole."""
        text = plain(text)
        if wrap and self._column and self._column + Text(text).cell_len > self.console.width:
            self.fresh_line()
        for piece in _LINE.findall(text):
            if not self._column and self._margin:
                self._print(Text(self._margin, "dim"))
            self._print(Text(piece, style))
            if piece.endswith("\n"):
                self._blank = not self._column and piece == "\n"
                self._column = 0
            else:
                self._column += Text(piece).cell_len
                self._blank = False

    def _print(self, text: Text) -> None:
        self.console.print(text, end="", soft_wrap=True, highlight=False)
