import re

import pytest

from agentstream.cli.markdown import MarkdownWriter
from tests.unit.cli.events import make_screen

TEXT = """\
# Title with `code`
Some **bold words** and a `snippet` and 2*3*4.
- first
  - **nested**
> quoted
```python
x = "**not bold**"  # no heading
```
The end"""

EXPECTED = """\
Title with code
Some bold words and a snippet and 2*3*4.
• first
  • nested
▏ quoted
```python
x = "**not bold**"  # no heading
```
The end"""


def written(*pieces: str, width: int = 200) -> str:
    screen, file = make_screen(terminal=True, width=width)
    writer = MarkdownWriter(screen)
    for piece in pieces:
        writer.feed(piece)
    writer.finish()
    return file.getvalue()


def without_style(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_marks_are_understood_wherever_the_pieces_end(size: int) -> None:
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    assert without_style(written(*pieces)) == EXPECTED


def test_styles_are_set_where_the_marks_are() -> None:
    output = written("a **b** `c`")
    assert "\x1b[1mb\x1b[0m" in output
    assert "\x1b[36mc\x1b[0m" in output


def test_a_word_is_written_as_soon_as_it_is_whole() -> None:
    screen, file = make_screen(terminal=True)
    writer = MarkdownWriter(screen)
    writer.feed("Hello wor")
    assert file.getvalue() == "Hello "


def test_words_are_kept_whole_at_the_edge() -> None:
    assert written("one two three four", width=10).splitlines() == ["one two ", "three four"]


def test_a_mark_that_is_never_closed_ends_with_its_line() -> None:
    assert written("**open\nnext").endswith("\nnext")


def test_where_formatting_is_not_seen_the_text_stays_as_it_is() -> None:
    screen, file = make_screen()
    writer = MarkdownWriter(screen)
    writer.feed(TEXT)
    writer.finish()
    assert file.getvalue() == TEXT
