"""A scripted model that speaks OpenAI's chat completions, as most providers do.

    async with ChatCompletionsServer() as model:
        model.script(
            reply(text("Let me ", "look."), tool_call("bash", {"command": "ls"})),
            reply(text("Two files.")),
        )

Every argument of `text` and `reasoning` is one delta. A `Gate`, `cut()` or `hang()` may stand among
them, or between the steps, and takes effect exactly there. Requests for a title, which OpenCode
makes of a model called `small`, are answered by themselves and not counted.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.model_server import Cut, Flow, Gate, Hang, Json, ModelRequest, ModelServer, flow

__all__ = [
    "ChatCompletionsServer",
    "ChatReply",
    "ChatRequest",
    "Gate",
    "after",
    "cut",
    "error",
    "hang",
    "reasoning",
    "reply",
    "result_of",
    "says",
    "text",
    "tool_call",
]

TITLE_MODEL = "small"


class ChatRequest(ModelRequest):
    """A request to /v1/chat/completions."""

    @property
    def messages(self) -> list[Json]:
        """The conversation."""
        messages: list[Json] = self.body["messages"]
        return messages

    @property
    def system(self) -> str:
        """The system prompt."""
        return "\n".join(_text(m) for m in self.messages if m["role"] == "system")

    @property
    def news(self) -> list[Json]:
        """The messages that are new to the model: those after its last one."""
        found: list[Json] = []
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                break
            found.insert(0, message)
        return found

    @property
    def prompt(self) -> str:
        """The user's text in `news`."""
        return "\n".join(_text(m) for m in self.news if m["role"] == "user")

    @property
    def tool_results(self) -> dict[str, str]:
        """The tool results in `news`, by call id."""
        return {m["tool_call_id"]: _text(m) for m in self.news if m["role"] == "tool"}

    @property
    def tools_answered(self) -> list[str]:
        """Names of the tools whose results are in `news`."""
        calls = {
            call["id"]: call["function"]["name"]
            for message in self.messages
            for call in message.get("tool_calls") or ()
        }
        return [calls[id] for id in self.tool_results]

    @property
    def tools(self) -> set[str]:
        """Names of the tools the model may use."""
        return {tool["function"]["name"] for tool in self.body.get("tools") or ()}


Matcher = Callable[[ChatRequest], bool]


@dataclass(frozen=True)
class Piece:
    """Deltas of one kind."""

    deltas: tuple[Json | Flow, ...]
    calls_tool: bool = False


Step = Piece | Flow


@dataclass(frozen=True)
class ChatReply:
    """One answer of the model; made by `reply` or `error`."""

    steps: tuple[Step, ...] = ()
    when: Matcher | None = field(default=None, kw_only=True)
    repeat: bool = field(default=False, kw_only=True)
    finish_reason: str = field(default="stop", kw_only=True)
    usage: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    status: int = field(default=200, kw_only=True)
    failure: Json | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)


def reply(
    *steps: Step,
    when: Matcher | None = None,
    repeat: bool = False,
    finish_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> ChatReply:
    """An answer of these steps. The finish reason follows from them unless given.

    With an empty one the answer ends without saying that it ends.
    """
    calls = any(isinstance(step, Piece) and step.calls_tool for step in steps)
    return ChatReply(
        steps,
        when=when,
        repeat=repeat,
        finish_reason=("tool_calls" if calls else "stop")
        if finish_reason is None
        else finish_reason,
        usage=usage or {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    )


def text(*chunks: str | Flow) -> Step:
    """Text, one delta a chunk."""
    return Piece(tuple({"content": c} if isinstance(c, str) else c for c in chunks))


def reasoning(*chunks: str | Flow) -> Step:
    """Reasoning, one delta a chunk."""
    return Piece(tuple({"reasoning_content": c} if isinstance(c, str) else c for c in chunks))


def tool_call(name: str, arguments: Json | str, *, id: str, index: int = 0) -> Step:
    """A tool call; `index` numbers the calls of a reply. Text as `arguments` goes out as is."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": raw}
    call = {"index": index, "id": id, "type": "function", "function": function}
    return Piece(({"tool_calls": [call]},), calls_tool=True)


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
    headers: Mapping[str, str] | None = None,
    when: Matcher | None = None,
    repeat: bool = False,
) -> ChatReply:
    """An HTTP error instead of an answer."""
    failure = {"error": {"message": message, "type": "scripted", "code": "scripted"}}
    return ChatReply(
        status=status, failure=failure, headers=headers or {}, when=when, repeat=repeat
    )


def says(part: str) -> Matcher:
    """Matches requests whose new text contains `part`."""
    return lambda request: part in request.prompt


def result_of(call_id: str) -> Matcher:
    """Matches requests that bring the result of that call."""
    return lambda request: call_id in request.tool_results


def after(tool: str) -> Matcher:
    """Matches requests that bring the result of a call of the tool named so."""
    return lambda request: tool in request.tools_answered


class ChatCompletionsServer(ModelServer[ChatRequest, ChatReply]):
    """The server. `pace`: seconds before each delta, for demonstrations (tests use gates)."""

    def __init__(self, *, pace: float = 0.0) -> None:
        super().__init__()
        self._pace = pace

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Chat completions, and nothing else."""
        return [
            web.post("/v1/chat/completions", self._complete),
            web.route("*", "/{path:.*}", self._unknown),
        ]

    async def _unknown(self, http: web.Request) -> web.Response:
        self.errors.append(f"no such endpoint: {http.method} {http.path_qs}")
        return web.json_response({"error": {"message": self.errors[-1]}}, status=404)

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        body: Json = await http.json()
        if body["model"] == TITLE_MODEL:
            return await self._title(http, body)
        request = ChatRequest(len(self.requests), body, dict(http.headers))
        scripted = await self.note(request)
        if scripted is None:
            return self._unexpected(request)
        response = web.StreamResponse()
        async with self.answering(http, request):
            if scripted.failure is not None:
                return web.json_response(
                    scripted.failure, status=scripted.status, headers=dict(scripted.headers)
                )
            await self._stream(http, response, scripted, body)
        return response

    def _unexpected(self, request: ChatRequest) -> web.Response:
        news = request.prompt or json.dumps(request.tool_results)
        self.errors.append(f"no reply for request {request.number}: {news[:500]!r}")
        request.ended.set()
        # 400 because a 500 would be tried again, and the test would seem to hang.
        return web.json_response({"error": {"message": self.errors[-1]}}, status=400)

    async def _title(self, http: web.Request, body: Json) -> web.StreamResponse:
        response = web.StreamResponse()
        await self._stream(http, response, reply(text("A title")), body)
        return response

    async def _stream(
        self, http: web.Request, response: web.StreamResponse, scripted: ChatReply, body: Json
    ) -> None:
        response.content_type = "text/event-stream"
        if scripted.steps and isinstance(scripted.steps[0], Cut):
            await flow(scripted.steps[0])
        await response.prepare(http)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": body["model"]}

        async def say(choices: list[Json], **more: Any) -> None:
            chunk = {**head, "created": 1, "choices": choices, **more}
            await response.write(b"data: %s\n\n" % self.encode(chunk))

        await say([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for step in scripted.steps:
            for delta in step.deltas if isinstance(step, Piece) else (step,):
                if not isinstance(delta, dict):
                    await flow(delta)
                    continue
                if self._pace:
                    await asyncio.sleep(self._pace)
                await say([{"index": 0, "delta": delta}])
        if not scripted.finish_reason:
            await response.write_eof()
            return
        await say([{"index": 0, "delta": {}, "finish_reason": scripted.finish_reason}])
        await say([], usage=dict(scripted.usage))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()


def _text(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
