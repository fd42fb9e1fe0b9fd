"""The vocabulary to script a model of the Anthropic Messages API: replies, and what they match.

Every argument of `text` and `thinking` is one delta. A `Gate`, `cut()` or `hang()` may stand among
them, or between blocks, and takes effect exactly there.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.support.model_server import Cut, Flow, Hang, Json, ModelRequest


class AnthropicRequest(ModelRequest):
    """A request to /v1/messages."""

    @property
    def system(self) -> str:
        """The system prompt."""
        return _texts(self.body.get("system", ""))

    @property
    def news(self) -> list[Json]:
        """The user's content blocks that are new to the model: those after its last message."""
        blocks: list[Json] = []
        for message in reversed(self.body["messages"]):
            if message["role"] == "assistant":
                break
            if message["role"] == "user":  # newer agents put what they add under "system"
                blocks = [*_blocks(message["content"]), *blocks]
        return blocks

    @property
    def prompt(self) -> str:
        """The text of `news`, without system reminders that the agent wraps around it."""
        texts = [block["text"] for block in self.news if block["type"] == "text"]
        return "\n".join(part for part in texts if not part.startswith("<system-reminder>"))

    @property
    def tool_results(self) -> dict[str, Json]:
        """The tool results in `news`, by tool use id."""
        return {b["tool_use_id"]: b for b in self.news if b["type"] == "tool_result"}

    @property
    def tools_answered(self) -> list[str]:
        """Names of the tools whose results are in `news`."""
        messages = self.body["messages"]
        calls = {
            block["id"]: block["name"]
            for message in messages
            for block in _blocks(message["content"])
            if block["type"] == "tool_use"
        }
        return [calls[id] for id in self.tool_results]

    @property
    def tools(self) -> set[str]:
        """Names of the tools the model may use."""
        return {tool["name"] for tool in self.body.get("tools", [])}

    @property
    def is_sub_agent(self) -> bool:
        """Whether a sub-agent of Claude Code asks, not its main thread."""
        return any(name.lower() == "x-claude-code-agent-id" for name in self.headers)


Matcher = Callable[[AnthropicRequest], bool]


@dataclass(frozen=True)
class Block:
    start: Json
    deltas: tuple[Json | Flow, ...]
    whole: Json

    def with_id(self, id: str) -> "Block":
        """The same block, with this id if it is a tool call that has none."""
        if self.start.get("id", id) is not None:
            return self
        return replace(self, start={**self.start, "id": id}, whole={**self.whole, "id": id})


@dataclass(frozen=True)
class Event:
    """An event that is no content: the mid-stream error."""

    name: str
    data: Json


Step = Block | Event | Flow


@dataclass(frozen=True)
class AnthropicReply:
    """One answer of the model; made by `reply`, `error`, `refusal` or `reset`."""

    steps: tuple[Step, ...] = ()
    when: Matcher | None = field(default=None, kw_only=True)
    repeat: bool = field(default=False, kw_only=True)
    stop_reason: str = field(default="end_turn", kw_only=True)
    input_tokens: int = field(default=100, kw_only=True)
    output_tokens: int = field(default=20, kw_only=True)
    cut_after: int | None = field(default=None, kw_only=True)
    status: int = field(default=200, kw_only=True)
    failure: Json | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)


def reply(
    *steps: Step,
    when: Matcher | None = None,
    repeat: bool = False,
    stop_reason: str | None = None,
    input_tokens: int = 100,
    output_tokens: int = 20,
    cut_after: int | None = None,
) -> AnthropicReply:
    """An answer of these blocks. The stop reason follows from them unless given.

    `when` restricts the requests it is for, `repeat` keeps it in the script, `cut_after` drops the
    connection after that many server-sent events (message_start is the first, a ping the second).
    """
    uses_tool = any(isinstance(step, Block) and step.whole["type"] == "tool_use" for step in steps)
    return AnthropicReply(
        steps,
        when=when,
        repeat=repeat,
        stop_reason=stop_reason or ("tool_use" if uses_tool else "end_turn"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cut_after=cut_after,
    )


def text(*chunks: str | Flow) -> Step:
    """A text block, one delta a chunk."""
    return _block({"type": "text", "text": ""}, "text", "text_delta", chunks)


def thinking(*chunks: str | Flow, signature: str = "c2lnbmF0dXJl") -> Step:
    """A thinking block, one delta a chunk, then its signature."""
    start: Json = {"type": "thinking", "thinking": "", "signature": ""}
    block = _block(start, "thinking", "thinking_delta", chunks)
    signed: Json = {"type": "signature_delta", "signature": signature}
    return replace(
        block, deltas=(*block.deltas, signed), whole={**block.whole, "signature": signature}
    )


def redacted_thinking(data: str = "cmVkYWN0ZWQ=") -> Step:
    """A thinking block whose content is withheld."""
    whole = {"type": "redacted_thinking", "data": data}
    return Block(whole, (), whole)


def tool_use(name: str, input: Json | Sequence[str | Flow], *, id: str | None = None) -> Step:
    """A tool call, its input streamed in small pieces.

    A sequence as `input` is the JSON text itself, one delta an element: for input that is broken,
    or held in the middle. Without `id` the server makes one up.
    """
    if isinstance(input, Mapping):
        raw = json.dumps(input, ensure_ascii=False)
        pieces: Sequence[str | Flow] = [raw[i : i + 24] for i in range(0, len(raw), 24)]
    else:
        pieces = input
    start: Json = {
        "type": "tool_use",
        "id": id,
        "name": name,
        "input": {},
    }
    whole = {**start, "input": input if isinstance(input, Mapping) else {}}
    deltas = tuple(
        {"type": "input_json_delta", "partial_json": piece} if isinstance(piece, str) else piece
        for piece in pieces
    )
    return Block(start, deltas, whole)


def cut() -> Flow:
    """Drop the TCP connection here.

    An agent that has not yet read what was sent just before may never look at it: where the test
    needs that, put a `Gate` before the cut and open it when the agent has shown what came.
    """
    return Cut()


def hang() -> Flow:
    """Say nothing more here and keep the connection open."""
    return Hang()


def error_event(type: str = "overloaded_error", message: str = "Overloaded") -> Step:
    """An error inside the stream; it ends there."""
    return Event("error", failure_body(type, message))


def error(
    status: int,
    type: str = "api_error",
    message: str = "scripted failure",
    *,
    headers: Mapping[str, str] | None = None,
    when: Matcher | None = None,
    repeat: bool = False,
) -> AnthropicReply:
    """An HTTP error instead of an answer."""
    failure = failure_body(type, message)
    return AnthropicReply(
        status=status, failure=failure, headers=headers or {}, when=when, repeat=repeat
    )


def refusal(*chunks: str, when: Matcher | None = None) -> AnthropicReply:
    """The model refuses (stop reason `refusal`), after having said `chunks`."""
    return reply(*([text(*chunks)] if chunks else []), stop_reason="refusal", when=when)


def reset(*, when: Matcher | None = None, repeat: bool = False) -> AnthropicReply:
    """The connection is dropped before any answer."""
    return AnthropicReply((), cut_after=0, when=when, repeat=repeat)


def main_thread(request: AnthropicRequest) -> bool:
    """Matches requests of the agent itself."""
    return not request.is_sub_agent


def sub_agent(request: AnthropicRequest) -> bool:
    """Matches requests of its sub-agents."""
    return request.is_sub_agent


def says(part: str) -> Matcher:
    """Matches requests whose new text contains `part`."""
    return lambda request: part in request.prompt


def task_notification(request: AnthropicRequest) -> bool:
    """Matches requests by which Claude Code tells the model that a background task ended."""
    return any("<task-notification>" in block.get("text", "") for block in request.news)


def result_of(tool_use_id: str) -> Matcher:
    """Matches requests that bring the result of that tool call."""
    return lambda request: tool_use_id in request.tool_results


def after(tool: str) -> Matcher:
    """Matches requests that bring the result of a call of the tool named so."""
    return lambda request: tool in request.tools_answered


def _block(start: Json, key: str, delta_type: str, chunks: Sequence[str | Flow]) -> Block:
    deltas = tuple(
        {"type": delta_type, key: chunk} if isinstance(chunk, str) else chunk for chunk in chunks
    )
    return Block(start, deltas, {**start, key: "".join(c for c in chunks if isinstance(c, str))})


def failure_body(type: str, message: str) -> Json:
    """The body of an error response."""
    return {"type": "error", "error": {"type": type, "message": message}}


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(content: str | list[Json]) -> str:
    return "\n".join(block["text"] for block in _blocks(content) if block["type"] == "text")
