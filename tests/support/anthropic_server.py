"""A scripted model that speaks the Anthropic Messages API.

    async with AnthropicServer() as model:
        model.script(
            reply(text("Let me ", "look."), tool_use("Bash", {"command": "ls"})),
            reply(text("Two files.")),
        )

The vocabulary is explained in `anthropic_script` and can be imported from here.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from tests.support.anthropic_script import (
    AnthropicReply,
    AnthropicRequest,
    Block,
    Event,
    after,
    cut,
    error,
    error_event,
    failure_body,
    hang,
    main_thread,
    redacted_thinking,
    refusal,
    reply,
    reset,
    result_of,
    says,
    sub_agent,
    task_notification,
    text,
    thinking,
    tool_use,
)
from tests.support.model_server import Cut, Flow, Gate, Json, ModelServer, flow

__all__ = [
    "AnthropicReply",
    "AnthropicRequest",
    "AnthropicServer",
    "Gate",
    "after",
    "cut",
    "error",
    "error_event",
    "hang",
    "main_thread",
    "redacted_thinking",
    "refusal",
    "reply",
    "reset",
    "result_of",
    "says",
    "sub_agent",
    "task_notification",
    "text",
    "thinking",
    "tool_use",
]


class AnthropicServer(ModelServer[AnthropicRequest, AnthropicReply]):
    """The server. `pace`: seconds before each delta, for demonstrations (tests use gates)."""

    def __init__(self, *, pace: float = 0.0) -> None:
        super().__init__()
        self._pace = pace

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """HEAD / (a liveness probe), messages, count_tokens."""
        return [
            web.route("HEAD", "/", self._alive),
            web.post("/v1/messages", self._messages),
            web.post("/v1/messages/count_tokens", self._count_tokens),
            web.route("*", "/{path:.*}", self._unknown),
        ]

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _count_tokens(self, http: web.Request) -> web.Response:
        return web.json_response({"input_tokens": len(await http.read()) // 4})

    async def _unknown(self, http: web.Request) -> web.Response:
        self.errors.append(f"no such endpoint: {http.method} {http.path_qs}")
        return web.json_response(failure_body("not_found_error", self.errors[-1]), status=404)

    async def _messages(self, http: web.Request) -> web.StreamResponse:
        body: Json = await http.json()
        request = AnthropicRequest(len(self.requests), body, dict(http.headers))
        scripted = await self.note(request)
        if scripted is None:
            return self._unexpected(request)
        response = web.StreamResponse()
        async with self.answering(http, request):
            if scripted.failure is not None:
                return _json(scripted.failure, scripted.status, scripted.headers)
            if not body.get("stream"):
                return await self._answer_whole(scripted, request)
            response.content_type = "text/event-stream"
            await self._stream(http, response, scripted, request)
        return response

    def _unexpected(self, request: AnthropicRequest) -> web.Response:
        who = "a sub-agent" if request.is_sub_agent else "the main thread"
        news = request.prompt or json.dumps(list(request.tool_results.values()))
        self.errors.append(f"no reply for request {request.number} of {who}: {news[:500]!r}")
        request.ended.set()
        # 400 because agents retry a 500 for minutes, and the test would seem to hang.
        return _json(failure_body("invalid_request_error", self.errors[-1]), 400, {})

    async def _stream(
        self,
        http: web.Request,
        response: web.StreamResponse,
        scripted: AnthropicReply,
        request: AnthropicRequest,
    ) -> None:
        items = _stream_items(scripted, request)
        if scripted.cut_after is not None:
            items = _cut(items, scripted.cut_after)
        if isinstance(items[0], Cut):
            await flow(items[0])
        await response.prepare(http)
        for item in items:
            if not isinstance(item, Event):
                await flow(item)
                continue
            if self._pace and item.name == "content_block_delta":
                await asyncio.sleep(self._pace)
            data = self.encode(item.data)
            await response.write(b"event: %s\ndata: %s\n\n" % (item.name.encode(), data))
        await response.write_eof()

    async def _answer_whole(
        self, scripted: AnthropicReply, request: AnthropicRequest
    ) -> web.Response:
        content: list[Json] = []
        for step in scripted.steps:
            if isinstance(step, Block):
                for delta in step.deltas:
                    if not isinstance(delta, dict):
                        await flow(delta)
                content.append(step.with_id(_tool_use_id(request, len(content))).whole)
            elif not isinstance(step, Event):
                await flow(step)
        message = _message(scripted, request)
        return _json({**message, "content": content, "stop_reason": scripted.stop_reason}, 200, {})


def _stream_items(scripted: AnthropicReply, request: AnthropicRequest) -> list[Event | Flow]:
    items: list[Event | Flow] = []

    def event(type: str, **fields: Any) -> None:
        items.append(Event(type, {"type": type, **fields}))

    event("message_start", message=_message(scripted, request))
    event("ping")
    index = 0
    for step in scripted.steps:
        if not isinstance(step, Block):
            items.append(step)
            if isinstance(step, Event):
                return items
            continue
        step = step.with_id(_tool_use_id(request, index))
        event("content_block_start", index=index, content_block=step.start)
        for delta in step.deltas:
            if isinstance(delta, dict):
                event("content_block_delta", index=index, delta=delta)
            else:
                items.append(delta)
        event("content_block_stop", index=index)
        index += 1
    event(
        "message_delta",
        delta={"stop_reason": scripted.stop_reason, "stop_sequence": None},
        usage={"output_tokens": scripted.output_tokens},
    )
    event("message_stop")
    return items


def _tool_use_id(request: AnthropicRequest, index: int) -> str:
    return f"toolu_{request.number:020}_{index}"


def _cut(items: Sequence[Event | Flow], after: int) -> list[Event | Flow]:
    events = 0
    kept: list[Event | Flow] = []
    for item in items:
        if events == after:
            break
        kept.append(item)
        events += isinstance(item, Event)
    return [*kept, Cut()]


def _message(scripted: AnthropicReply, request: AnthropicRequest) -> Json:
    return {
        "id": f"msg_{request.number:024}",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": scripted.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": scripted.output_tokens if not request.body.get("stream") else 1,
        },
    }


def _json(body: Json, status: int, headers: Mapping[str, str]) -> web.Response:
    return web.json_response(body, status=status, headers=dict(headers))


async def _serve(pace: float) -> None:
    from tests.support.demo_script import demo_script

    async with AnthropicServer(pace=pace) as model:
        model.script(*demo_script())
        print(model.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve the demonstration script and print the base URL on the first line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pace", type=float, default=0.03, help="seconds before each delta")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args().pace))


if __name__ == "__main__":
    main()
