"""A scripted Amp server: what the CLI of Amp asks its server for, with a scripted model behind it.

    async with AmpServer() as amp:
        amp.script(reply(text("Hello.")))

It suffices for the CLIs that were published as JavaScript, whose agent loop runs in the CLI: they
ask for the user, keep their threads there, and reach the model through it, in the dialect of the
Anthropic Messages API. The vocabulary of scripts is that of `anthropic_script`. Requests for a
thread's title are answered without a script, and not counted.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import DEADLINE, Json

TITLE = "A scripted thread"

_USER: Json = {
    "id": "user_test",
    "email": "test@example.com",
    "username": "test",
    "firstName": "Test",
    "lastName": "User",
    "emailVerified": True,
    "admin": False,
    "profilePictureUrl": None,
    "lastSignInAt": "2026-01-01T00:00:00.000Z",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "updatedAt": "2026-01-01T00:00:00.000Z",
    "externalId": None,
    "metadata": {},
    "features": [],
    "team": None,
    "siteAdmin": False,
    "mysteriousMessage": None,
}


class AmpServer(AnthropicServer):
    """The server.

    Attributes:
        threads: The threads that were uploaded, by id; `threads continue` needs them.
        key: The only API key that is taken; empty for any.
        calls: Names of the internal methods that were called.
    """

    def __init__(self, *, pace: float = 0.0, key: str = "") -> None:
        super().__init__(pace=pace)
        self.threads: dict[str, Json] = {}
        self.key = key
        self.calls: list[str] = []
        self._stored = asyncio.Condition()

    async def stored(self, part: str) -> None:
        """Wait until a thread was uploaded whose JSON has `part` in it."""
        async with asyncio.timeout(DEADLINE), self._stored:
            await self._stored.wait_for(
                lambda: any(part in json.dumps(thread) for thread in self.threads.values())
            )

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The internal API, the model; everything else is not found, and no fault."""
        return [
            web.post("/api/internal", self._internal),
            web.post("/api/provider/anthropic/v1/messages", self._model),
            web.route("*", "/{path:.*}", self._not_found),
        ]

    async def _not_found(self, http: web.Request) -> web.Response:
        return web.json_response({"error": "not found"}, status=404)

    async def _internal(self, http: web.Request) -> web.Response:
        body: Json = await http.json()
        method = str(body.get("method", ""))
        self.calls.append(method)
        if self.key and http.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response(_failure("auth-required", "Unauthorized"), status=401)
        answer = self._answer(method, body.get("params") or {})
        async with self._stored:
            self._stored.notify_all()
        return web.json_response(answer)

    def _answer(self, method: str, params: Json) -> Json:
        match method:
            case "getUserInfo":
                return _success(_USER)
            case "loadPlugins" | "loadSkills":
                return _success([])
            case "uploadThread":
                thread = params["thread"]
                self.threads[thread["id"]] = thread
                return _success({})
            case "getThread":
                return self._thread(str(params.get("thread") or params.get("id") or ""))
            case _:
                return _success({})

    def _thread(self, thread_id: str) -> Json:
        thread = self.threads.get(thread_id)
        if thread is None:
            return _failure("thread-not-found", f"Thread {thread_id} not found")
        return _success(
            {
                "thread": {
                    "id": thread_id,
                    "v": thread.get("v", 1),
                    "version": thread.get("v", 1),
                    "data": thread,
                    "meta": {"visibility": "private"},
                    "creatorUserID": _USER["id"],
                }
            }
        )

    async def _model(self, http: web.Request) -> web.StreamResponse:
        body: Json = await http.json()
        if (body.get("tool_choice") or {}).get("name") == "set_title":
            return web.json_response(_title(body))
        return await self._messages(http)


def _success(result: Any) -> Json:
    return {"ok": True, "result": result}


def _failure(code: str, message: str) -> Json:
    return {"ok": False, "error": {"code": code, "message": message}}


def _title(body: Json) -> Json:
    call = {"type": "tool_use", "id": "toolu_title", "name": "set_title", "input": {"title": TITLE}}
    return {
        "id": "msg_title",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [call],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
