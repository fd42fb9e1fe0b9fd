"""Markdown while it is being written: the few marks that help a reader, as they stream by."""

import re
from typing import Final

from agentstream.cli.screen import Screen

_OPENING: Final = re.compile(
    r" *(?:(?P<fence>`{3,}|~{3,})[^\n]*\n|(?P<heading>#{1,6}) |(?P<bullet>[-*+]) |(?P<quote>>) ?)"
)
_MAYBE_OPENING: Final = re.compile(r" *(?:`{0,2}|~{0,2}|(?:`{3,}|~{3,})[^\n]*|#{0,6}|[-*+>]?)\Z")
_PIECE: Final = re.compile(r"\n|\*\*|`|\*|[^\n*`\s]+|[^\S\n]+")


class MarkdownWriter:
    """Writes Markdown to a screen as it comes, in pieces that may end anywhere.

    Where formatting can't be seen, the text goes out as it is.
    """

    def __init__(self, screen: Screen, style: str = "") -> None:
        self._screen = screen
        self._style = style
        self._held = ""
        self._at_line_start = True
        self._fence = ""
        self._heading = False
        self._bold = False
        self._code = False

    def feed(self, text: str) -> None:
        """Write as much as can be known of what has come so far."""
        if not self._screen.formatted:
            self._screen.stream(text, self._style)
            return
        self._held += text
        while self._held and self._step(final=False):
            pass

    def finish(self) -> None:
        """There is no more: write what was held back."""
        while self._held and self._step(final=True):
            pass

    def _step(self, *, final: bool) -> bool:
        if self._fence:
            return self._fenced_line(final)
        if self._at_line_start:
            if not final and _MAYBE_OPENING.match(self._held):
                return False
            self._at_line_start = False
            if opening := _OPENING.match(self._held):
                self._open(opening)
                return True
        return self._piece(final)

    def _open(self, opening: re.Match[str]) -> None:
        self._held = self._held[opening.end() :]
        text = opening.group()
        if fence := opening["fence"]:
            self._fence = fence
            self._screen.stream(text, "dim")
        elif opening["heading"]:
            self._heading = True
        elif opening["bullet"]:
            self._screen.stream(text[: opening.start("bullet")] + "• ", self._style)
        else:
            self._screen.stream("▏ ", "dim")

    def _fenced_line(self, final: bool) -> bool:
        line, newline, rest = self._held.partition("\n")
        if not newline and not final:
            return False
        self._held = rest
        closing = line.strip()
        if closing.startswith(self._fence) and not closing.strip(self._fence[0]):
            self._fence = ""
            self._at_line_start = True
            self._screen.stream(line + newline, "dim")
        else:
            self._screen.stream(line + newline, "cyan")
        return True

    def _piece(self, final: bool) -> bool:
        match = _PIECE.match(self._held)
        assert match is not None  # every character is of some piece
        piece = match.group()
        if not final and match.end() == len(self._held) and piece not in ("\n", "`", "**"):
            return False  # a word or a mark that may go on
        self._held = self._held[match.end() :]
        if piece == "\n":
            self._heading = self._bold = self._code = False
            self._at_line_start = True
            self._screen.stream(piece)
        elif piece == "**" and not self._code:
            self._bold = not self._bold
        elif piece == "`":
            self._code = not self._code
        else:
            self._screen.stream(piece, self._piece_style(), wrap=not piece.isspace())
        return True

    def _piece_style(self) -> str:
        marks = [self._style]
        if self._code:
            marks.append("cyan")
        if self._bold or self._heading:
            marks.append("bold")
        return " ".join(mark for mark in marks if mark)
