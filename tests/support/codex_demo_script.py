"""The script of `AGENT=codex make demo`: a command that needs permission, a question, a patch."""

from tests.support.demo_script import FILE, PROMPT
from tests.support.responses_script import (
    Matcher,
    Part,
    ResponsesReply,
    ResponsesRequest,
    call,
    output_of,
    patch,
    reasoning,
    reply,
    says,
    text,
)

__all__ = ["PROMPT", "demo_script"]

_LINES = {
    "Frog": "A frog jumps into the pond",
    "Cat": "A cat looks into the pond",
    "Compiler": "A compiler runs, no splash",
}
_FIRST = ("The old silent pond", "A frog jumps in with a splash", "Silence again")
_QUESTION = {
    "id": "visitor",
    "header": "Visitor",
    "question": "Who shall disturb the pond?",
    "options": [
        {"label": "Frog", "description": "The classic, in seven syllables"},
        {"label": "Cat", "description": "Less likely to jump"},
        {"label": "Compiler", "description": "Does not get wet"},
    ],
}
_COMMAND = f"printf '%s\\n' {' '.join(repr(line) for line in _FIRST)} > {FILE}"


def demo_script() -> list[ResponsesReply]:
    """The replies. The agent's workspace should be an empty directory: poem.txt will appear."""
    return [
        reply(
            reasoning("They want a poem in a file. I'll write it, then ask about it."),
            _text("I'll write a first version, for which I need your permission."),
            call("exec_command", {"cmd": _COMMAND}, id="call_write"),
            when=says("haiku"),
        ),
        reply(
            _text("It is there. One thing is up to you."),
            call("request_user_input", {"questions": [_QUESTION]}, id="call_ask"),
            when=output_of("call_write"),
        ),
        *(
            reply(
                _text(f"**{name}**, then. See the difference:"),
                patch(
                    f"*** Update File: {FILE}\n@@\n {_FIRST[0]}\n-{_FIRST[1]}\n+{line}\n"
                    f" {_FIRST[2]}",
                    id="call_patch",
                ),
                when=_chosen(name),
            )
            for name, line in _LINES.items()
        ),
        reply(_text(f"Done: `{FILE}` has its poem."), when=output_of("call_patch")),
    ]


def _chosen(name: str) -> Matcher:
    def chosen(request: ResponsesRequest) -> bool:
        return name in request.outputs.get("call_ask", "") and "call_ask" in request.new_outputs

    return chosen


def _text(words: str) -> Part:
    return text(*(f"{word} " for word in words.split(" ")[:-1]), words.split(" ")[-1])
