"""The vocabulary to script a model of the OpenAI Responses API: replies, and what they match.

Every argument of `text` and `reasoning` is one delta. A `Gate`, `cut()` or `hang()` may stand among
them, or between items, and takes effect exactly there.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.model_server import (
    Cut,
    Flow,
    Hang,
    Json,
    ModelRequest,
)


class ResponsesRequest(ModelRequest):
    """A request to /responses. Codex sends the whole conversation in each."""

    @property
    def input(self) -> list[Json]:
        """The conversation."""
        said: list[Json] = self.body.get("input", [])
        return said

    @property
    def news(self) -> list[Json]:
        """What is new to the model: the input after its last item."""
        made = ("function_call", "custom_tool_call", "reasoning", "web_search_call")
        items: list[Json] = []
        for item in reversed(self.input):
            if item.get("role") == "assistant" or item.get("type") in made:
                break
            items.insert(0, item)
        return items

    @property
    def prompt(self) -> str:
        """The last user text of the input."""
        for item in reversed(self.input):
            if item.get("role") == "user":
                return "\n".join(p.get("text", "") for p in item["content"])
        return ""

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of tools in the input, as text, by call id."""
        kinds = ("function_call_output", "custom_tool_call_output")
        return {
            item["call_id"]: _output(item["output"])
            for item in self.input
            if item.get("type") in kinds
        }

    @property
    def new_outputs(self) -> set[str]:
        """Call ids of the outputs in `news`."""
        return {item["call_id"] for item in self.news if "call_id" in item}

    @property
    def tools(self) -> dict[str, Json]:
        """The tools the model may use, by name."""
        return {tool.get("name", tool.get("type", "")): tool for tool in self.body["tools"]}

    @property
    def instructions(self) -> str:
        """All that is neither the user's nor the model's: instructions and developer messages."""
        texts = [
            part.get("text", "")
            for item in self.input
            if item.get("role") == "developer"
            for part in item["content"]
        ]
        return "\n".join([self.body.get("instructions") or "", *texts])


Matcher = Callable[[ResponsesRequest], bool]


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    data: Json


@dataclass(frozen=True)
class Part:
    """An output item: its events, and what it is when done. Ids are filled in by the server."""

    events: tuple[Event | Flow, ...]
    item: Json


Step = Part | Event | Flow


@dataclass(frozen=True)
class ResponsesReply:
    """One answer of the model; made by `reply`, `error` or `failed`."""

    steps: tuple[Step, ...] = ()
    when: Matcher | None = field(default=None, kw_only=True)
    repeat: bool = field(default=False, kw_only=True)
    input_tokens: int = field(default=100, kw_only=True)
    output_tokens: int = field(default=20, kw_only=True)
    status: int = field(default=200, kw_only=True)
    failure: Json | None = field(default=None, kw_only=True)
    ending: Json | None = field(default=None, kw_only=True)


def reply(
    *steps: Step,
    when: Matcher | None = None,
    repeat: bool = False,
    input_tokens: int = 100,
    output_tokens: int = 20,
) -> ResponsesReply:
    """An answer of these items. `when` restricts the requests it is for, `repeat` keeps it."""
    return ResponsesReply(
        steps, when=when, repeat=repeat, input_tokens=input_tokens, output_tokens=output_tokens
    )


def text(*chunks: str | Flow, phase: str | None = None) -> Part:
    """A message, one delta a chunk."""
    whole = "".join(chunk for chunk in chunks if isinstance(chunk, str))
    item: Json = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": whole, "annotations": []}],
    }
    if phase is not None:
        item["phase"] = phase
    deltas = (
        Event({"type": "response.output_text.delta", "content_index": 0, "delta": chunk})
        if isinstance(chunk, str)
        else chunk
        for chunk in chunks
    )
    return Part((Event({"type": "added", "item": {**item, "content": []}}), *deltas), item)


def reasoning(*chunks: str | Flow, raw: Sequence[str] = ()) -> Part:
    """Reasoning: a summary part a chunk, then raw text in deltas."""
    parts = [chunk for chunk in chunks if isinstance(chunk, str)]
    item: Json = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": part} for part in parts],
        "content": [{"type": "reasoning_text", "text": "".join(raw)}] if raw else None,
        "encrypted_content": None,
    }
    events: list[Event | Flow] = [Event({"type": "added", "item": {**item, "summary": []}})]
    index = 0
    for chunk in chunks:
        if not isinstance(chunk, str):
            events.append(chunk)
            continue
        kind = "response.reasoning_summary"
        events.append(Event({"type": f"{kind}_part.added", "summary_index": index}))
        for piece in (chunk[:6], chunk[6:]):
            if piece:
                said = {"type": f"{kind}_text.delta", "summary_index": index, "delta": piece}
                events.append(Event(said))
        index += 1
    for piece in raw:
        said = {"type": "response.reasoning_text.delta", "content_index": 0, "delta": piece}
        events.append(Event(said))
    return Part(tuple(events), item)


def call(
    name: str, arguments: Mapping[str, Any] | str, *, id: str, namespace: str | None = None
) -> Part:
    """A call of a function; a string as `arguments` is the JSON text itself, perhaps broken."""
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    item: Json = {"type": "function_call", "name": name, "arguments": given, "call_id": id}
    if namespace is not None:
        item["namespace"] = namespace
    return Part((Event({"type": "added", "item": {**item, "arguments": ""}}),), item)


def custom_call(name: str, input: str, *, id: str) -> Part:
    """A call of a tool that takes text."""
    item: Json = {"type": "custom_tool_call", "name": name, "input": input, "call_id": id}
    return Part((Event({"type": "added", "item": {**item, "input": ""}}),), item)


def patch(body: str, *, id: str) -> Part:
    """A call of apply_patch; `body` stands between its begin and end lines."""
    return custom_call("apply_patch", f"*** Begin Patch\n{body}\n*** End Patch", id=id)


def web_search(query: str, *, id: str = "ws_1") -> Part:
    """A search that the provider makes."""
    item: Json = {
        "type": "web_search_call",
        "id": id,
        "status": "completed",
        "action": {"type": "search", "query": query},
    }
    begun = {"type": "web_search_call", "id": id, "status": "in_progress"}
    return Part((Event({"type": "added", "item": begun}),), item)


def cut() -> Flow:
    """Drop the TCP connection here."""
    return Cut()


def hang() -> Flow:
    """Say nothing more here and keep the connection open."""
    return Hang()


def error(
    status: int,
    message: str = "scripted failure",
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    when: Matcher | None = None,
    repeat: bool = False,
) -> ResponsesReply:
    """An HTTP error instead of an answer."""
    failure = {"error": {"message": message, "type": type, "code": code, "param": None}}
    return ResponsesReply(status=status, failure=failure, when=when, repeat=repeat)


def failed(
    code: str, message: str = "scripted failure", *, when: Matcher | None = None
) -> ResponsesReply:
    """An answer that says that it failed (`response.failed`)."""
    return ResponsesReply(ending={"code": code, "message": message}, when=when)


def says(part: str) -> Matcher:
    """Matches requests whose last user text contains `part`, and that bring no tool's output."""
    return lambda request: part in request.prompt and not request.new_outputs


def output_of(call_id: str) -> Matcher:
    """Matches requests that bring the output of that call."""
    return lambda request: call_id in request.new_outputs


def _output(output: object) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "\n".join(part.get("text", "") for part in output if isinstance(part, dict))
    return json.dumps(output)
