"""What no agent writes, made of what one wrote: odd messages, and odd transcripts."""

import json
import random
from collections.abc import Iterator
from typing import Any

_LEFT_OUT = object()
_ODD: tuple[Any, ...] = (
    None,
    "",
    0,
    -1,
    True,
    [],
    {},
    [None],
    "odd",
    1e30,
    2**80,
    -(10**400),
    "\ud800",
    _LEFT_OUT,
)
_DEEP = 200


def odd_message(line: bytes, chance: random.Random) -> bytes:
    """The message with one member, anywhere in it, emptied, left out or of another type."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if places := list(_places(message)):
        holder, key = chance.choice(places)
        odd = chance.choice(_ODD)
        if odd is _LEFT_OUT:
            del holder[key]
        elif chance.random() < 0.05:
            holder[key] = _nested(holder[key])
        else:
            holder[key] = odd
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def odd_lines(lines: list[bytes], chance: random.Random) -> list[bytes]:
    """The transcript with one of its lines odd, missing, repeated, broken off or somewhere else."""
    if not lines:
        return lines
    lines = list(lines)
    at, elsewhere = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(elsewhere, lines[at])
        case 2:
            lines.insert(elsewhere, lines.pop(at))
        case 3:
            lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        case _:
            lines[at] = odd_message(lines[at], chance)
    return lines


def _nested(value: Any) -> Any:
    for _ in range(_DEEP):
        value = [value]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member and element of a JSON value, as what holds it and its key or index."""
    if isinstance(value, dict):
        held = list(value.items())
    elif isinstance(value, list):
        held = list(enumerate(value))
    else:
        return
    for key, inner in held:
        yield value, key
        yield from _places(inner)
