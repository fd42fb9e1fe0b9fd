"""The mock agent's little language: one directive a line, parsed. Pure."""

import json
import re
from dataclasses import dataclass

BLOCKS = frozenset({"agent", "background", "message", "on", "parallel", "repeat", "spontaneous"})
"""Directives that hold others: on the same line, or on those that follow, up to `end`."""

_ARGUMENT_WORDS = {"on": 1, "repeat": 1, "spontaneous": 0, "background": 0}
"""How many words stand between such a directive and the one it holds on the same line."""

DIRECTIVES = BLOCKS | {
    "ask",
    "call",
    "close_stdout",
    "compact",
    "crash",
    "delay",
    "delete",
    "delta",
    "edit",
    "error",
    "exit",
    "fail",
    "garbage",
    "image",
    "invalid_utf8",
    "json",
    "lone_surrogate",
    "mcp",
    "mode",
    "model",
    "move",
    "native",
    "oversized",
    "permission_mode",
    "read",
    "recall",
    "refuse",
    "retract",
    "say",
    "settings",
    "silent",
    "spawn",
    "status",
    "stderr",
    "system",
    "text",
    "think",
    "title",
    "todo",
    "tool",
    "tools",
    "unknown",
    "unterminated",
    "usage",
    "wait",
    "write",
}

_NEEDS = {
    "call": "the name of a tool",
    "mcp": "the name of a server",
    "status": "a label",
    "tool": "the name of a tool",
    **dict.fromkeys(("delete", "edit", "move", "read", "write"), "a path"),
}
"""What directives can't do without: events would lack what the contract demands."""

_SIZE = re.compile(r"(\d+)\s*(B|KB|MB)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)", re.IGNORECASE)
_UNITS = {"B": 1, "KB": 1024, "MB": 1024 * 1024}
_FILLER = "The quick brown fox jumps over the lazy dog. "

MAX_SIZE_BYTES = 1024 * 1024 * 1024


class ScriptError(Exception):
    """A script that can't be run. `str(error)` is a sentence that names the line."""


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive.

    Attributes:
        line: Its line in the message, counted from 1.
        name: Its name.
        rest: The rest of its line.
        block: The directives it holds.
    """

    line: int
    name: str
    rest: str
    block: tuple["Directive", ...] = ()

    def wrong(self, sentence: str) -> ScriptError:
        """An error that names this directive's line."""
        return ScriptError(f"line {self.line}: {sentence}")


def is_script(text: str) -> bool:
    """Whether a message is a script: its first line that says something begins with a directive."""
    for line in text.splitlines():
        if (words := line.split(None, 1)) and not words[0].startswith("#"):
            return words[0] in DIRECTIVES
    return False


def parse(text: str) -> tuple[Directive, ...]:
    """Parse a script. Raises ScriptError."""
    stack: list[tuple[Directive, list[Directive]]] = []
    current: list[Directive] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped == "end":
            if not stack:
                raise ScriptError(f"line {number}: there is nothing to end")
            opened, outer = stack.pop()
            outer.append(Directive(opened.line, opened.name, opened.rest, tuple(current)))
            current = outer
            continue
        directive = _parse_line(number, stripped)
        if directive.name in BLOCKS and not directive.block:
            stack.append((directive, current))
            current = []
        else:
            current.append(directive)
    if stack:
        raise stack[-1][0].wrong(f"{stack[-1][0].name} has no end")
    return tuple(current)


def _parse_line(number: int, line: str) -> Directive:
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name not in DIRECTIVES:
        raise ScriptError(f"line {number}: there is no directive {name!r}")
    if name in _NEEDS and not quoted(rest)[0]:
        raise ScriptError(f"line {number}: {name} needs {_NEEDS[name]}")
    if name not in _ARGUMENT_WORDS:
        return Directive(number, name, rest)
    words = _ARGUMENT_WORDS[name]
    pieces = rest.split(None, words)
    if len(pieces) < words:
        raise ScriptError(f"line {number}: {name} needs an argument")
    inner = pieces[words] if len(pieces) > words else ""
    block = (_parse_line(number, inner),) if inner else ()
    if block and block[0].name in BLOCKS and not block[0].block:
        raise ScriptError(f"line {number}: {block[0].name} must stand on a line of its own here")
    return Directive(number, name, " ".join(pieces[:words]), block)


def size(text: str) -> int | None:
    """A size in bytes, as in `5MB`; None where it is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return min(int(found[1]) * _UNITS[(found[2] or "B").upper()], MAX_SIZE_BYTES)


def duration(text: str) -> float | None:
    """A time in seconds, as in `50ms` or `1.5s`; None where it is none."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]) / (1000 if found[2].lower() == "ms" else 1)


def filler(size_bytes: int) -> str:
    """So many bytes of ASCII text, always the same."""
    return (_FILLER * (size_bytes // len(_FILLER) + 1))[:size_bytes]


def text_of(argument: str) -> str:
    """A text argument: a JSON string, `@SIZE` for filler, or the text as it stands."""
    if argument.startswith("@") and (wanted := size(argument[1:])) is not None:
        return filler(wanted)
    if argument.startswith('"'):
        try:
            text, end = json.JSONDecoder().raw_decode(argument)
        except ValueError:
            return argument
        if end == len(argument) and isinstance(text, str):
            return text
    return argument


def quoted(argument: str) -> tuple[str, str]:
    """Take a JSON string, or else one word, off the front; returns it and the rest."""
    argument = argument.strip()
    if argument.startswith('"'):
        try:
            text, end = json.JSONDecoder().raw_decode(argument)
        except ValueError:
            return argument, ""
        return str(text), argument[end:].strip()
    word, _, rest = argument.partition(" ")
    return word, rest.strip()


def json_value(argument: str) -> tuple[str, str]:
    """Take one JSON value, verbatim, off the front; returns it (empty for none) and the rest."""
    argument = argument.strip()
    if argument[:1] in ("{", "["):
        try:
            _, end = json.JSONDecoder().raw_decode(argument)
        except ValueError:
            return "", argument
        return argument[:end], argument[end:].strip()
    return "", argument
