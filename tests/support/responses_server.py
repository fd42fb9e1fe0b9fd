"""A scripted model that speaks the OpenAI Responses API, as Codex uses it.

    async with ResponsesServer() as model:
        model.script(
            reply(text("Let me ", "look."), call("exec_command", {"cmd": "ls"}, id="call_1")),
            reply(text("Two files."), when=output_of("call_1")),
        )

The vocabulary is explained in `responses_script` and can be imported from here.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace

from aiohttp import web

from tests.support.model_server import (
    Flow,
    Gate,
    Json,
    ModelServer,
    flow,
)
from tests.support.responses_script import (
    Event,
    Part,
    ResponsesReply,
    ResponsesRequest,
    call,
    custom_call,
    cut,
    error,
    failed,
    hang,
    output_of,
    patch,
    reasoning,
    reply,
    says,
    text,
    web_search,
)

__all__ = [
    "Gate",
    "ResponsesReply",
    "ResponsesRequest",
    "ResponsesServer",
    "call",
    "custom_call",
    "cut",
    "error",
    "failed",
    "hang",
    "output_of",
    "patch",
    "reasoning",
    "reply",
    "says",
    "text",
    "web_search",
]


class ResponsesServer(ModelServer[ResponsesRequest, ResponsesReply]):
    """The server. `pace`: seconds before each delta, for demonstrations (tests use gates)."""

    def __init__(self, *, pace: float = 0.0) -> None:
        super().__init__()
        self._pace = pace
        self._items = 0

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The one endpoint."""
        return [
            web.post("/v1/responses", self._responses),
            web.route("*", "/{path:.*}", self._unknown),
        ]

    async def _unknown(self, http: web.Request) -> web.Response:
        self.errors.append(f"no such endpoint: {http.method} {http.path_qs}")
        return web.json_response({"error": {"message": self.errors[-1]}}, status=404)

    async def _responses(self, http: web.Request) -> web.StreamResponse:
        body: Json = await http.json()
        request = ResponsesRequest(len(self.requests), body, dict(http.headers))
        scripted = await self.note(request)
        if scripted is None:
            news = request.prompt if not request.new_outputs else sorted(request.new_outputs)
            self.errors.append(f"no reply for request {request.number}: {news!r:.500}")
            request.ended.set()
            return web.json_response({"error": {"message": self.errors[-1]}}, status=400)
        response = web.StreamResponse()
        async with self.answering(http, request):
            if scripted.failure is not None:
                return web.json_response(scripted.failure, status=scripted.status)
            response.content_type = "text/event-stream"
            await self._stream(http, response, scripted, request)
        return response

    async def _stream(
        self,
        http: web.Request,
        response: web.StreamResponse,
        scripted: ResponsesReply,
        request: ResponsesRequest,
    ) -> None:
        await response.prepare(http)
        for entry in self._entries(scripted, request):
            if not isinstance(entry, Event):
                await flow(entry)
                continue
            if self._pace and entry.data["type"].endswith(".delta"):
                await asyncio.sleep(self._pace)
            data = json.dumps(entry.data, ensure_ascii=False)
            await response.write(f"event: {entry.data['type']}\ndata: {data}\n\n".encode())
        await response.write_eof()

    def _entries(self, scripted: ResponsesReply, request: ResponsesRequest) -> list[Event | Flow]:
        head: Json = {"id": f"resp_{request.number:04}", "object": "response", "output": []}
        created = {**head, "status": "in_progress"}
        entries: list[Event | Flow] = [Event({"type": "response.created", "response": created})]
        for index, step in enumerate(scripted.steps):
            if not isinstance(step, Part):
                entries.append(step)
                continue
            entries += self._part(step, index)
        if scripted.ending is not None:
            broken = {**head, "status": "failed", "error": scripted.ending}
            return [*entries, Event({"type": "response.failed", "response": broken})]
        usage = {
            "input_tokens": scripted.input_tokens,
            "input_tokens_details": {"cached_tokens": scripted.input_tokens // 5},
            "output_tokens": scripted.output_tokens,
            "output_tokens_details": {"reasoning_tokens": scripted.output_tokens // 5},
            "total_tokens": scripted.input_tokens + scripted.output_tokens,
        }
        done = {**head, "status": "completed", "usage": usage}
        return [*entries, Event({"type": "response.completed", "response": done})]

    def _part(self, part: Part, index: int) -> list[Event | Flow]:
        self._items += 1
        kind = {"message": "msg", "reasoning": "rs"}.get(part.item["type"], "fc")
        item_id = part.item.get("id") or f"{kind}_{self._items:04}"
        entries: list[Event | Flow] = []
        for entry in part.events:
            if not isinstance(entry, Event):
                entries.append(entry)
            elif entry.data["type"] == "added":
                item = {**entry.data["item"], "id": item_id}
                said = {"type": "response.output_item.added", "output_index": index, "item": item}
                entries.append(Event(said))
            else:
                entries.append(
                    replace(entry, data={**entry.data, "item_id": item_id, "output_index": index})
                )
        item = {**part.item, "id": item_id}
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        return [*entries, Event(done)]


async def _serve(pace: float) -> None:
    from tests.support.codex_demo_script import demo_script

    async with ResponsesServer(pace=pace) as model:
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
