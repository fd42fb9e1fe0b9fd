"""Native lines as Claude Code writes them, for measuring what becomes of them."""

import json
from collections.abc import Mapping
from typing import Any

SESSION = "11111111-2222-4333-8444-555555555555"

_INIT = {
    "type": "system",
    "subtype": "init",
    "cwd": "/tmp",
    "session_id": SESSION,
    "tools": ["Bash", "Read"],
    "mcp_servers": [],
    "model": "claude-bench",
    "permissionMode": "default",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def line(message: Mapping[str, object]) -> bytes:
    """One native message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def stream_event(event: Mapping[str, object]) -> bytes:
    """A partial message, about 430 bytes long when it is a delta of a few words."""
    return line(
        {
            "type": "stream_event",
            "event": event,
            "session_id": SESSION,
            "parent_tool_use_id": None,
            "uuid": "00000000-0000-4000-8000-000000000001",
        }
    )


def delta(text: str) -> bytes:
    """A piece of text."""
    return stream_event(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
    )


def opening(message_id: str) -> list[bytes]:
    """What comes before the deltas of a message."""
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "claude-bench",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return [
        stream_event({"type": "message_start", "message": message}),
        stream_event(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            }
        ),
    ]


def closing(message_id: str, text: str) -> list[bytes]:
    """What comes after them."""
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "claude-bench",
        "content": [{"type": "text", "text": text}],
        "stop_reason": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    return [
        line(
            {
                "type": "assistant",
                "message": message,
                "parent_tool_use_id": None,
                "session_id": SESSION,
                "uuid": "00000000-0000-4000-8000-000000000002",
            }
        ),
        stream_event({"type": "content_block_stop", "index": 0}),
        stream_event({"type": "message_stop"}),
    ]


def init() -> bytes:
    """The first line of a turn."""
    return line(_INIT)


def result() -> bytes:
    """The last line of a turn."""
    return line(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1,
            "num_turns": 1,
            "result": "",
            "session_id": SESSION,
            "total_cost_usd": 0.0,
            "usage": {"input_tokens": 1, "output_tokens": 1},
            "uuid": "00000000-0000-4000-8000-000000000003",
        }
    )


def turn(deltas: int, *, per_message: int = 500, words: int = 40) -> bytes:
    """A whole turn of about `deltas` deltas, in messages of `per_message` each.

    With 40 words a line is about 430 bytes long, as the recorded ones are on the average.
    """
    text = "lorem " * words
    piece = delta(text)
    lines = [init()]
    for number in range(max(1, deltas // per_message)):
        message_id = f"msg_bench_{number}"
        lines.extend(opening(message_id))
        lines.extend([piece] * per_message)
        lines.extend(closing(message_id, text * per_message))
    lines.append(result())
    return b"".join(lines)
