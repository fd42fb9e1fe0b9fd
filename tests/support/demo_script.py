"""The script of `make demo`: an answer, a command that needs permission, a question, an edit."""

import json
import re

from tests.support.anthropic_script import (
    AnthropicReply,
    AnthropicRequest,
    Step,
    after,
    reply,
    says,
    text,
    thinking,
    tool_use,
)

PROMPT = "Write a haiku to poem.txt"
"""What to ask: any text with the word haiku will do."""
FILE = "poem.txt"

_WRITE = rf"printf 'The old silent pond\nA frog jumps in with a splash\nSilence again\n' > {FILE}"
_LINE = "A frog jumps in with a splash"
_LINES = {
    "Frog": "A frog jumps into the pond",
    "Cat": "A cat looks into the pond",
    "Compiler": "A compiler runs, no splash",
}
_QUESTION = {
    "question": "Who shall disturb the pond?",
    "header": "Visitor",
    "multiSelect": False,
    "options": [
        {"label": "Frog", "description": "The classic, in seven syllables"},
        {"label": "Cat", "description": "Less likely to jump"},
        {"label": "Compiler", "description": "Does not get wet"},
    ],
}


def demo_script() -> list[AnthropicReply]:
    """The replies; each answers what came just before it, so that a turn can be repeated.

    The agent's workspace should be an empty directory, in which poem.txt will appear.
    """
    return [
        reply(
            thinking(*_words("They want a poem in a file. I'll write it, then ask about it.")),
            _text("I'll write a first version, for which I need your permission."),
            tool_use("Bash", {"command": _WRITE, "description": "Write the poem"}),
            when=says("haiku"),
            repeat=True,
        ),
        reply(
            _text("It is there. One thing is up to you."),
            tool_use("AskUserQuestion", {"questions": [_QUESTION]}),
            when=after("Bash"),
            repeat=True,
        ),
        reply(tool_use("Read", {"file_path": FILE}), when=after("AskUserQuestion"), repeat=True),
        *(_edit(visitor, line) for visitor, line in _LINES.items()),
        reply(_text(f"Done: {FILE} has its poem."), when=after("Edit"), repeat=True),
        reply(_text("I know only one thing: ask me for a haiku."), repeat=True),
    ]


def _edit(visitor: str, line: str) -> AnthropicReply:
    return reply(
        _text(f"{visitor}, then. See the difference:"),
        tool_use("Edit", {"file_path": FILE, "old_string": _LINE, "new_string": line}),
        when=lambda request: after("Read")(request) and _choice(request) == visitor,
        repeat=True,
    )


def _choice(request: AnthropicRequest) -> str:
    """The visitor answered last; the first of all when the answer was none of them."""
    conversation = json.dumps(request.body["messages"])
    return max(_LINES, key=lambda visitor: conversation.rfind(json.dumps(f'="{visitor}"')[1:-1]))


def _text(sentence: str) -> Step:
    return text(*_words(sentence))


def _words(sentence: str) -> list[str]:
    return re.findall(r"\S+\s*", sentence)
