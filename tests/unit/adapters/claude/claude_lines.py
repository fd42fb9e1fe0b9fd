"""Lines as Claude Code writes them, and what a normalizer makes of them."""

import json
from collections.abc import Iterable
from typing import Any

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.model import Draft, Kind

Json = dict[str, Any]

SESSION = "94a35612-0000-4000-8000-000000000000"

RULE = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "touch a"}],
    "behavior": "allow",
    "destination": "localSettings",
}
DIRECTORY = {"type": "addDirectories", "directories": ["/w"], "destination": "session"}
MODE = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
COLOR = {
    "question": "Which color?",
    "header": "Color",
    "multiSelect": False,
    "options": [
        {"label": "Red", "description": "Warm", "preview": "# red"},
        {"label": "Blue", "description": "Cold"},
    ],
}
TOPPINGS = {
    "question": "Which toppings?",
    "header": "Toppings",
    "multiSelect": True,
    "options": [{"label": "Cheese", "description": "c"}, {"label": "Ham", "description": "h"}],
}


def line(**members: Any) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def init(**more: Any) -> bytes:
    base = {
        "type": "system",
        "subtype": "init",
        "cwd": "/workspace",
        "session_id": SESSION,
        "tools": ["Bash", "Edit"],
        "mcp_servers": [{"name": "db", "status": "connected"}],
        "model": "claude-opus-4-8",
        "permissionMode": "default",
        "claude_code_version": "2.1.197",
        "uuid": "00000000-0000-4000-8000-000000000001",
    }
    return line(**{**base, **more})


def system(subtype: str, **more: Any) -> bytes:
    return line(type="system", subtype=subtype, **more)


def assistant(message_id: str, *blocks: Json, thread: str | None = None, **more: Any) -> bytes:
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": list(blocks),
        "stop_reason": None,
    }
    return line(type="assistant", message=message, parent_tool_use_id=thread, **more)


def synthetic(text: str, **more: Any) -> bytes:
    message = {
        "id": "e31637c7-f722-423c-89b3-f617c162dada",
        "model": "<synthetic>",
        "role": "assistant",
        "content": [text_block(text)],
    }
    return line(type="assistant", message=message, **{"parent_tool_use_id": None, **more})


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def tool_use(tool_use_id: str, name: str = "Bash", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def user(content: str | list[Json], thread: str | None = None, **more: Any) -> bytes:
    message = {"role": "user", "content": content}
    return line(type="user", message=message, parent_tool_use_id=thread, **more)


def tool_result(
    tool_use_id: str,
    content: str | list[Json] = "ok",
    result: Any = None,
    *,
    is_error: bool = False,
    thread: str | None = None,
) -> bytes:
    block = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "content": content,
        "is_error": is_error,
    }
    more = {} if result is None else {"tool_use_result": result}
    return user([block], thread, **more)


def streamed(event: Json, thread: str | None = None) -> bytes:
    return line(type="stream_event", event=event, session_id=SESSION, parent_tool_use_id=thread)


def message_start(message_id: str) -> bytes:
    return streamed({"type": "message_start", "message": {"id": message_id, "content": []}})


def block_start(index: int, block: Json) -> bytes:
    return streamed({"type": "content_block_start", "index": index, "content_block": block})


def block_delta(index: int, **delta: Any) -> bytes:
    return streamed({"type": "content_block_delta", "index": index, "delta": delta})


def text_delta(index: int, text: str) -> bytes:
    return block_delta(index, type="text_delta", text=text)


def result(**more: Any) -> bytes:
    base = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "num_turns": 1,
        "result": "",
        "stop_reason": "end_turn",
        "terminal_reason": "completed",
        "session_id": SESSION,
        "permission_denials": [],
    }
    return line(**{**base, **more})


def interrupted(reason: str = "aborted_streaming") -> bytes:
    return result(
        subtype="error_during_execution",
        is_error=True,
        stop_reason=None,
        terminal_reason=reason,
        errors=["[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=null"],
    )


def can_use_tool(request_id: str, tool_name: str, arguments: Json, **more: Any) -> bytes:
    request = {
        "subtype": "can_use_tool",
        "tool_name": tool_name,
        "display_name": tool_name,
        "input": arguments,
        **more,
    }
    return line(type="control_request", request_id=request_id, request=request)


def answer(request_id: str, response: Json) -> bytes:
    inner = {"subtype": "success", "request_id": request_id, "response": response}
    return line(type="control_response", response=inner)


def fed(normalizer: ClaudeNormalizer, *lines: bytes) -> list[Draft]:
    return [draft for one in lines for draft in normalizer.feed(one)]


def feed(*lines: bytes) -> list[Draft]:
    """What a fresh normalizer says of `lines`."""
    return fed(ClaudeNormalizer(), *lines)


def events(drafts: Iterable[Draft], kind: Kind) -> list[event_pb2.Event]:
    return [draft.event for draft in drafts if draft.kind is kind]


def completed(drafts: Iterable[Draft]) -> list[item_pb2.Item]:
    return [event.item_completed.item for event in events(drafts, Kind.ITEM_COMPLETED)]


def the_item(drafts: Iterable[Draft], item_id: str) -> item_pb2.Item:
    """The one completed item of that id."""
    (item,) = [item for item in completed(drafts) if item.item_id == item_id]
    return item


def deltas(drafts: Iterable[Draft]) -> list[event_pb2.ItemDelta]:
    return [event.item_delta for event in events(drafts, Kind.ITEM_DELTA)]


def statuses(drafts: Iterable[Draft]) -> list[item_pb2.StatusPart]:
    return [
        item.content[0].status
        for item in completed(drafts)
        if item.kind == item_pb2.ITEM_KIND_STATUS
    ]


def the_turn_end(drafts: Iterable[Draft]) -> event_pb2.TurnEnded:
    (ended,) = events(drafts, Kind.TURN_ENDED)
    return ended.turn_ended
