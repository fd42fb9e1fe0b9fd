"""Tool calls and their results."""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from agentstream.v1 import item_pb2
from agentstreamd.adapters.claude.files import as_parts, called_files, changed_files
from agentstreamd.adapters.claude.native import Block, Line, plain, text_of
from agentstreamd.adapters.claude.threads import call_item_id, result_item_id
from agentstreamd.adapters.claude.todo import TodoLists
from agentstreamd.model import (
    Draft,
    completed,
    image_at_part,
    image_part,
    json_part,
    started,
    status_item,
    text_part,
    tool_result_item,
    unknown_item,
    whole,
)

REJECTED_OUTPUT = "The tool use was rejected or interrupted."
"""Stands for the CLI's canned rejection, which is addressed to the model and not for people."""

REJECTION = "User rejected tool use"
"""The structured result of a call that was rejected or interrupted."""

_CANNED_REJECTION = "The user doesn't want to proceed with this tool use."
_SAID_BY_USER = re.compile(r"the user said:\s*(.+)", re.DOTALL)
_WRAPPER = re.compile(r"\A\s*<(tool_use_error|persisted-output)>(.*?)</\1>\s*\Z", re.DOTALL)
_EXIT_CODE = re.compile(r"\A(?:Error: )?Exit code (\d{1,5})\b")


@dataclass(slots=True)
class Call:
    """A call whose result has not come yet.

    Attributes:
        name: The tool.
        arguments: Its arguments, as plain values.
        thread: The thread it was made in.
    """

    name: str
    arguments: dict[str, Any]
    thread: str


class Tools:
    """Maps tool results, and remembers of calls what their results need."""

    def __init__(self, next_id: Callable[[str], str]) -> None:
        """Make ids where the agent gives none with `next_id(kind)`."""
        self.calls: dict[str, Call] = {}
        self._next_id = next_id
        self._todos = TodoLists()

    def on_call(self, tool_use_id: str, block: Block, thread: str) -> list[item_pb2.ContentPart]:
        """Take note of a call; returns parts for the files it names."""
        arguments = plain(block.input)
        call = Call(block.name, arguments if isinstance(arguments, dict) else {}, thread)
        self.calls[tool_use_id] = call
        return as_parts(called_files(call.name, call.arguments))

    def after_call(self, tool_use_id: str, raw: tuple[bytes, ...]) -> list[Draft]:
        """What else follows from a call."""
        call = self.calls.get(tool_use_id)
        if call is None or call.name != "ExitPlanMode":
            return []
        plan = call.arguments.get("plan")
        if not isinstance(plan, str) or not plan:
            return []
        item = status_item(
            f"plan:{tool_use_id}",
            "plan",
            "The agent proposes a plan.",
            key="plan",
            parent_id=call_item_id(tool_use_id),
            more=[text_part(plan)],
        )
        return whole(item, raw)

    def on_result(self, block: Block, line: Line, raw: tuple[bytes, ...]) -> list[Draft]:
        """A tool's result: an item of its own, and what follows from it."""
        tool_use_id = block.tool_use_id
        call = self.calls.pop(tool_use_id, None) or Call("", {}, "")
        is_error = bool(block.is_error)
        result = plain(line.tool_use_result)
        output, more = _content(block.content)
        output = _report(call, result) or output
        if not is_error:
            more += as_parts(changed_files(call.name, call.arguments, result))
        more += _structured(line, block, result, output)
        exit_code = _EXIT_CODE.match(output) if is_error and call.name == "Bash" else None
        item = tool_result_item(
            result_item_id(tool_use_id),
            call_id=tool_use_id,
            output=_for_people(output),
            is_error=is_error,
            exit_code=int(exit_code.group(1)) if exit_code else None,
            parent_id=call_item_id(tool_use_id),
            native_item_id=tool_use_id,
            more=more,
        )
        head = item_pb2.Item()
        head.CopyFrom(item)
        del head.content[:]
        head.content.add().tool_result.call_id = tool_use_id
        drafts = [started(head, raw), completed(item, raw, failed=is_error)]
        if not is_error:
            todo = self._todos.on_result(
                tool_use_id, call.name, call.arguments, result, call.thread
            )
            if todo is not None:
                drafts += whole(todo, raw)
        return drafts

    def unknown(self, label: str, native: bytes) -> list[Draft]:
        """An item for a native message that is not known."""
        json = native.decode("utf-8", "replace")
        return whole(unknown_item(self._next_id("unknown"), label, json), (native,))


def content_parts(content: Raw) -> list[item_pb2.ContentPart]:
    """The parts of a user's message: text, images, anything else as JSON."""
    text, more = _content(content)
    return [text_part(text), *more] if text else more


def _content(content: Raw) -> tuple[str, list[item_pb2.ContentPart]]:
    """Text and other parts of a message's or a result's content."""
    value = plain(content)
    if isinstance(value, str):
        return value, []
    if not isinstance(value, list):
        return "", [] if value is None else [json_part("content", text_of(content))]
    texts: list[str] = []
    parts: list[item_pb2.ContentPart] = []
    for position, block in enumerate(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "image" and (image := _image(block.get("source"))) is not None:
            parts.append(image)
        else:
            parts.append(json_part(str(kind or "content"), _nth(content, position, block)))
    return "\n".join(texts), parts


def _image(source: object) -> item_pb2.ContentPart | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return image_at_part(url=source["url"])
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str) or not isinstance(data, str):
        return None
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return image_part(media_type, decoded) if media_type and decoded else None


def _nth(content: Raw, position: int, block: object) -> str:
    """The JSON text of one block, verbatim where it can be had."""
    try:
        return text_of(msgspec.json.decode(content, type=list[Raw])[position])
    except (msgspec.MsgspecError, IndexError):
        return msgspec.json.encode(block).decode()


def _structured(
    line: Line, block: Block, result: object, output: str
) -> list[item_pb2.ContentPart]:
    """The structured result, unless it only repeats what the item holds already."""
    if result is None or bytes(line.tool_use_result) == bytes(block.content):
        return []
    if isinstance(result, str) and result.removeprefix("Error: ").strip() in output:
        return []
    if result == REJECTION and output.startswith(_CANNED_REJECTION):
        return []
    if isinstance(result, dict) and result.get("type") == "image":
        return []
    return [json_part("tool_use_result", text_of(line.tool_use_result))]


def _report(call: Call, result: object) -> str:
    """What a sub-agent reports, without what the CLI adds for the model; empty for other calls."""
    if call.name not in ("Agent", "Task") or not isinstance(result, dict):
        return ""
    content = result.get("content")
    if result.get("status") != "completed" or not isinstance(content, list):
        return ""
    said = (block.get("text") for block in content if isinstance(block, dict))
    return "\n".join(text for text in said if isinstance(text, str))


def _for_people(output: str) -> str:
    """The output without what the CLI wraps it in for the model."""
    if output.startswith(_CANNED_REJECTION):
        said = _SAID_BY_USER.search(output)
        return said.group(1) if said else REJECTED_OUTPUT
    wrapped = _WRAPPER.match(output)
    return wrapped.group(2).strip("\n") if wrapped else output
