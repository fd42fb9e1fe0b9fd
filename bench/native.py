"""What agents write: recorded turns, made as long as one likes.

A recorded turn is taken apart into what comes before its messages, its messages, and its end; the
messages are said again and again, each time with ids of their own, as if the turn had been so long.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TRANSCRIPTS = Path(__file__).resolve().parents[1] / "tests" / "transcripts"


@dataclass(frozen=True, slots=True)
class Recording:
    """A turn that was recorded.

    Attributes:
        scenario: Where, in tests/transcripts.
        begins: Found in the line before the turn's messages.
        ends: Found in the first line after them.
        ids: What looks like an id in this agent's messages.
        leave_out: Found in lines that agents write once in their life.
    """

    scenario: str
    begins: str
    ends: str
    ids: str
    leave_out: str = "\0"


RECORDINGS = {
    "claude": Recording(
        "claude/partial",
        '"subtype":"init"',
        '"type":"result"',
        r'"(?:msg|toolu)_\w+|"[0-9a-f-]{36}',
    ),
    "codex": Recording(
        "codex/shell_stream",
        '"method":"item/completed","params":{"item":{"type":"userMessage"',
        '"method":"thread/readState/changed"',
        r'"(?:call|msg)_\w+',
    ),
    "opencode": Recording(
        "opencode/tool_allowed",
        '"status":{"type":"busy"}',
        '"status":{"type":"idle"}',
        r'"(?:evt|msg|prt|call)_\w+',
        '"type":"plugin.added"',
    ),
    "amp": Recording(
        "amp/may-delegate-allow",
        '"type":"user","message":{"role":"user","content":[{"type":"text"',
        '"stop_reason":"end_turn"',
        r'"toolu_\w+',
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """Native lines of a turn.

    Attributes:
        data: The lines.
        count: How many.
    """

    data: bytes
    count: int


def turn(agent: str, lines: int) -> Turn:
    """A turn of about so many lines."""
    recording = RECORDINGS[agent]
    path = _TRANSCRIPTS / recording.scenario / "native.jsonl"
    recorded = [
        line for line in path.read_text().splitlines(True) if recording.leave_out not in line
    ]
    first = next(n for n, line in enumerate(recorded) if recording.begins in line) + 1
    last = next(n for n, line in enumerate(recorded) if n > first and recording.ends in line)
    before, messages, after = recorded[:first], recorded[first:last], recorded[last:]
    times = max(1, lines // len(messages))
    said = "".join(_again("".join(messages), "".join(before), recording.ids, times))
    return Turn(
        ("".join(before) + said + "".join(after)).encode(),
        len(before) + times * len(messages) + len(after),
    )


def _again(messages: str, before: str, ids: str, times: int) -> Iterator[str]:
    """The messages, with ids that were not used before each time."""
    fresh = set(re.findall(ids, messages)) - set(re.findall(ids, before))
    pieces = re.split(
        "(" + "|".join(map(re.escape, sorted(fresh, key=len, reverse=True))) + ")", messages
    )
    for number in range(times):
        yield "".join(f"{piece}{number:x}" if piece in fresh else piece for piece in pieces)


# Turns of Claude with one's own text.

_SESSION = "11111111-2222-4333-8444-555555555555"
_UUID = "00000000-0000-4000-8000-000000000000"
_PER_MESSAGE = 500


def _line(message: Mapping[str, object]) -> bytes:
    said = {"session_id": _SESSION, "uuid": _UUID, "parent_tool_use_id": None}
    return json.dumps({**message, **said}, separators=(",", ":")).encode() + b"\n"


def _partial(event: Mapping[str, object]) -> bytes:
    return _line({"type": "stream_event", "event": event})


def _message(number: int, text: str) -> dict[str, object]:
    return {
        "id": f"msg_bench_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-bench",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def begin() -> bytes:
    """A turn begins."""
    return _line(
        {
            "type": "system",
            "subtype": "init",
            "cwd": "/tmp",
            "tools": ["Bash", "Read"],
            "mcp_servers": [],
            "model": "claude-bench",
            "permissionMode": "default",
        }
    )


def opening(number: int = 0) -> bytes:
    """A message begins."""
    block = {"type": "text", "text": ""}
    return _partial({"type": "message_start", "message": _message(number, "")}) + _partial(
        {"type": "content_block_start", "index": 0, "content_block": block}
    )


def delta(text: str) -> bytes:
    """A piece of the message's text; with 40 words about 430 bytes long."""
    return _partial(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
    )


def closing(text: str, number: int = 0) -> bytes:
    """The message is whole: this is its text."""
    whole = _line({"type": "assistant", "message": _message(number, text)})
    stop = _partial({"type": "content_block_stop", "index": 0})
    return whole + stop + _partial({"type": "message_stop"})


def end() -> bytes:
    """The turn ends."""
    return _line(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1,
            "num_turns": 1,
            "result": "",
            "total_cost_usd": 0.0,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


def deltas(count: int) -> Iterator[bytes]:
    """A turn of at least so many deltas, message by message."""
    text = "lorem " * 40
    pieces = delta(text) * _PER_MESSAGE
    yield begin()
    for number in range(-(-count // _PER_MESSAGE)):
        yield opening(number) + pieces + closing(text * _PER_MESSAGE, number)
    yield end()
