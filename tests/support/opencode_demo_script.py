"""The script of `AGENT=opencode make demo`: a command to be allowed, a question, an edit."""

import json
import re
from collections.abc import Callable

from tests.support.chat_completions_server import (
    ChatReply,
    ChatRequest,
    after,
    reasoning,
    reply,
    says,
    text,
    tool_call,
)
from tests.support.demo_script import FILE

_LINES = {
    "Frog": "A frog jumps into the pond",
    "Cat": "A cat looks into the pond",
    "Compiler": "A compiler runs, no splash",
}
_FIRST = ("The old silent pond", "A frog jumps in with a splash", "Silence again")
_COMMAND = f"printf '%s\\n' {' '.join(repr(line) for line in _FIRST)} > {FILE}"
_QUESTION = {
    "question": "Who shall disturb the pond?",
    "header": "Visitor",
    "options": [
        {"label": "Frog", "description": "The classic, in seven syllables"},
        {"label": "Cat", "description": "Less likely to jump"},
        {"label": "Compiler", "description": "Does not get wet"},
    ],
}


def opencode_demo_script() -> list[ChatReply]:
    """The replies. The agent's workspace should be an empty directory: poem.txt will appear."""
    return [
        reply(
            reasoning(*_words("They want a poem in a file. I'll write it, then ask about it.")),
            text(*_words("I'll write a first version, for which I need your permission.")),
            tool_call("bash", {"command": _COMMAND, "description": "Write it"}, id="call_write"),
            when=says("haiku"),
        ),
        reply(
            text(*_words("It is there. One thing is up to you.")),
            tool_call("question", {"questions": [_QUESTION]}, id="call_ask"),
            when=after("bash"),
        ),
        reply(tool_call("read", {"filePath": FILE}, id="call_read"), when=after("question")),
        *(_edit(name, line) for name, line in _LINES.items()),
        reply(text(*_words(f"Done: `{FILE}` has its poem.")), when=after("edit")),
    ]


def _edit(name: str, line: str) -> ChatReply:
    change = {"filePath": FILE, "oldString": _FIRST[1], "newString": line}
    return reply(
        text(*_words(f"**{name}**, then. See the difference:")),
        tool_call("edit", change, id="call_edit"),
        when=_chosen(name),
    )


def _chosen(name: str) -> Callable[[ChatRequest], bool]:
    said = json.dumps(f'="{name}"')[1:-1]
    return lambda request: after("read")(request) and said in json.dumps(request.messages)


def _words(sentence: str) -> list[str]:
    return re.findall(r"\S+\s*", sentence)
