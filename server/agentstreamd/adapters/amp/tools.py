"""Tool calls and their results."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from agentstream.v1 import item_pb2
from agentstreamd.adapters.amp import native
from agentstreamd.adapters.amp.files import (
    SUB_AGENT_TOOLS,
    as_parts,
    called_files,
    changed_files,
    unfenced,
)
from agentstreamd.model import (
    Draft,
    image_part,
    json_part,
    tool_call_item,
    tool_result_item,
    whole,
)

REJECTED_BY_PLUGIN = "Tool rejected by plugin:"
"""How a result begins that a newer CLI gives for a call it did not run, without calling it an
error."""


@dataclass(slots=True)
class Call:
    """A call whose result has not come yet.

    Attributes:
        name: The tool.
        arguments: Its arguments, as plain values.
        asked: A permission was asked for it.
    """

    name: str
    arguments: Any
    asked: bool = False


@dataclass(slots=True)
class Output:
    """What a result says.

    Attributes:
        text: The output, for people.
        exit_code: Exit code of a command.
        diff: What was changed.
        parts: What else it holds.
    """

    text: str = ""
    exit_code: int | None = None
    diff: str = ""
    parts: list[item_pb2.ContentPart] = field(default_factory=list)


class Tools:
    """Maps calls and results. Item ids are the calls' ids, results' with the suffix `:result`.

    Attributes:
        calls: Calls without a result so far, by call id, oldest first.
    """

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def on_call(
        self, call_id: str, name: str, arguments: Raw | None, parent_id: str, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        """A call: an item of its own. Arguments may be an object, or a string that holds one."""
        text, value = _arguments(arguments)
        name = name or "unknown"
        self.calls[call_id] = Call(name, value)
        item = tool_call_item(
            call_id,
            name=name,
            arguments_json=text,
            call_id=call_id,
            parent_id=parent_id,
            native_item_id=call_id,
            files=as_parts(called_files(name, _mapping(value))),
        )
        return whole(item, raw)

    def on_result(
        self, call_id: str, content: Raw | None, is_error: bool, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        """A result: an item of its own, under its call."""
        call = self.calls.pop(call_id, None) or Call("", {})
        output = read_output(content, call.name)
        # A command that failed is no error to Amp; to all other agents, and so to clients, it is.
        failed = is_error or bool(output.exit_code) or output.text.startswith(REJECTED_BY_PLUGIN)
        if not failed:
            files = changed_files(call.name, _mapping(call.arguments), output.diff)
            output.parts += as_parts(files)
        item = tool_result_item(
            f"{call_id}:result",
            call_id=call_id,
            output=output.text,
            is_error=failed,
            exit_code=output.exit_code,
            parent_id=call_id,
            native_item_id=call_id,
            more=output.parts,
        )
        return whole(item, raw, failed=failed)

    def asking(self, tool: str, tool_use_id: str, arguments: Any) -> str:
        """The open call that a permission is asked for, by its id or else by what it is about.

        Without an id it is the oldest call of that tool with those arguments for which nothing was
        asked. Empty where there is none, which is how the calls of sub-agents look.
        """
        if tool_use_id:
            return tool_use_id if tool_use_id in self.calls else ""
        for call_id, call in self.calls.items():
            if call.name == tool and not call.asked and call.arguments == arguments:
                return call_id
        return ""

    def sub_agent(self) -> str:
        """The call whose sub-agent must be at work; empty where that is not certain."""
        running = [key for key, call in self.calls.items() if call.name in SUB_AGENT_TOOLS]
        return running[0] if len(running) == 1 else ""


def read_output(content: Raw | None, tool: str) -> Output:
    """Read a result's content: text, text that is JSON of a known shape, or blocks."""
    value = native.plain(content)
    if isinstance(value, str):
        return _text_output(value, tool)
    if isinstance(value, list):
        return _blocks_output(value)
    return Output("" if value is None else native.verbatim(content))


def _text_output(text: str, tool: str) -> Output:
    if tool in SUB_AGENT_TOOLS or not text.startswith(("{", "[")):
        return Output(text)
    try:
        said = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Output(text)
    if isinstance(said, list):
        blocks = bool(said) and all(isinstance(b, dict) and "type" in b for b in said)
        return _blocks_output(said) if blocks else Output(text)
    if not isinstance(said, dict):
        return Output(text)
    output, exit_code = said.get("output"), said.get("exitCode")
    if isinstance(output, str) and isinstance(exit_code, int):
        known = -(2**31) <= exit_code < 2**31
        return _with_rest(Output(output, exit_code if known else None), said, text, 2)
    if isinstance(diff := said.get("diff"), str):
        change = unfenced(diff)
        return _with_rest(Output(change, diff=change), said, text, 1)
    if isinstance(read := said.get("content"), str) and "absolutePath" in said:
        return _with_rest(Output(read), said, text, 2)
    return Output(text)


def _with_rest(output: Output, said: Mapping[str, Any], text: str, known: int) -> Output:
    """The output, and the whole result as JSON where it says more than that."""
    if len(said) > known:
        output.parts.append(json_part("tool_result", text))
    return output


def _blocks_output(blocks: list[Any]) -> Output:
    output = Output()
    texts = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "image" and (image := _image(block)) is not None:
            output.parts.append(image)
        else:
            output.parts.append(json_part(str(kind or "content"), native.dump(block).decode()))
    output.text = "\n".join(texts)
    return output


def _image(block: Mapping[str, Any]) -> item_pb2.ContentPart | None:
    """A picture, as MCP or as the model API writes it."""
    source = block.get("source")
    said = source if isinstance(source, dict) else block
    media_type = said.get("mimeType") or said.get("media_type")
    data = said.get("data")
    if not isinstance(media_type, str) or not isinstance(data, str):
        return None
    try:
        return image_part(media_type, base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return None


def _arguments(raw: Raw | None) -> tuple[str, Any]:
    """Arguments as JSON text and as plain values."""
    value = native.plain(raw)
    if not isinstance(value, str):
        return (native.verbatim(raw) or "{}", value)
    try:
        return value, json.loads(value)
    except (ValueError, RecursionError):
        return native.verbatim(raw), value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
