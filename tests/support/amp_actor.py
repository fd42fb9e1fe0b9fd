"""A scripted Amp server for the CLIs whose agent loop runs on the server.

    async with AmpActorServer() as amp:
        amp.script(reply(tool_use("shell_command", {"command": "ls"})), reply(text("Listed.")))

Since the middle of 2026 the CLI is an executor: it opens a websocket to the actor of its thread,
registers its tools there, gets them leased and sends their results back; the model is asked by the
server alone. This is such an actor, as far as the CLI needs one for whole turns. Its model is the
script, in the vocabulary of `anthropic_script`, whose matchers see the conversation so far.

The CLI prints nothing before the first `inference_tools` of a turn, and an assistant's message only
when an `agent_state` has named it before.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.amp_server import AmpServer
from tests.support.anthropic_script import AnthropicReply, AnthropicRequest, Block
from tests.support.model_server import DEADLINE, ConnectionCut, Json, flow

_GATEWAY = "/actors/gateway/threadActor"
_MODE = "medium"


class Thread:
    """A thread and its actor.

    Attributes:
        id: The thread's id.
        messages: What was said, as the actor says it.
        sockets: Connections of the CLI.
        executor: The connection that takes leases.
        turn: The turn that runs.
        results: What leases that are out come to, by tool call id.
    """

    def __init__(self, thread_id: str) -> None:
        self.id = thread_id
        self.messages: list[Json] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self.executor: web.WebSocketResponse | None = None
        self.turn: asyncio.Task[None] | None = None
        self.results: dict[str, asyncio.Future[Json]] = {}
        self.sequence = 0
        self._ids = 0

    def new_id(self, prefix: str) -> str:
        """An id as Amp makes them: a prefix and 22 letters and digits."""
        self._ids += 1
        return f"{prefix}-{self.id.replace('-', '')[-14:]}{self._ids:08}"

    async def notify(self, method: str, **params: Any) -> None:
        """Tell all connections."""
        for socket in list(self.sockets):
            await _send(socket, {"jsonrpc": "2.0", "method": method, "params": params})

    async def state(self, state: str, **more: Any) -> None:
        """Say what the agent does."""
        await self.notify("agent_state", state=state, agentMode=_MODE, **more)

    async def add(self, role: str, content: list[Json], message_id: str, **more: Any) -> None:
        """Add a message."""
        self.sequence += 1
        message = {
            "threadId": self.id,
            "messageId": message_id,
            "role": role,
            "content": content,
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "readAt": None,
            **more,
        }
        self.messages.append(message)
        await self.notify("message_added", message=message, seq=self.sequence)

    def data(self) -> Json:
        """The thread as the internal API gives it."""
        meta = {
            "agentMode": _MODE,
            "executorType": "local-client",
            "usesDtw": True,
            "usesThreadActors": True,
            "visibility": "private",
        }
        created = int(time.time() * 1000)
        return {"id": self.id, "v": self.sequence, "created": created, "agentMode": _MODE} | {
            "meta": meta
        }


class AmpActorServer(AmpServer):
    """The server.

    Attributes:
        actors: The threads, by id.
        runs: What the executor made of leases, by tool call id.
    """

    def __init__(self, *, key: str = "") -> None:
        super().__init__(key=key)
        self.actors: dict[str, Thread] = {}
        self.runs: dict[str, Json] = {}
        self._news = asyncio.Condition()

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The internal API, the actors, their websockets; all else is taken, and no fault."""
        return [
            web.post("/api/internal", self._internal),
            web.post("/api/thread-actors", self._create),
            web.get(f"{_GATEWAY}/websocket/", self._connect),
            web.route("*", "/{path:.*}", self._anything),
        ]

    async def ran(self, tool_call_id: str) -> Json:
        """Wait for what the executor made of a lease."""
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: tool_call_id in self.runs)
        return self.runs[tool_call_id]

    async def _anything(self, http: web.Request) -> web.Response:
        return web.json_response({})

    def _answer(self, method: str, params: Json) -> Json:
        if method == "getThreadTail":
            thread = self.actors.get(str(params.get("thread")))
            if thread is None:
                message = f"Thread {params.get('thread')} not found"
                return {"ok": False, "error": {"code": "thread-not-found", "message": message}}
            result = {
                "thread": {"data": thread.data()},
                "messages": thread.messages,
                "hasMoreBefore": False,
            }
            return {"ok": True, "result": result}
        return super()._answer(method, params)

    async def _create(self, http: web.Request) -> web.Response:
        body: Json = await http.json()
        number = len(self.actors) + 1
        thread_id = body.get("threadId") or f"T-01a22f72-2e8a-772b-a258-{number:012}"
        if body.get("threadId") and thread_id not in self.actors:
            return web.json_response({"error": "thread not found"}, status=404)
        thread = self.actors.setdefault(thread_id, Thread(thread_id))
        return web.json_response(
            {
                "threadId": thread.id,
                "wsToken": "token",
                "ownerUserId": "user_test",
                "threadVersion": thread.sequence,
                "usesDtw": True,
                "usesThreadActors": True,
                "executorType": "local-client",
                "agentMode": _MODE,
            }
        )

    # --- the actor -------------------------------------------------------------------------------

    async def _connect(self, http: web.Request) -> web.StreamResponse:
        thread = self.actors.get(http.query.get("rvt-key", ""))
        if thread is None:
            return web.json_response({"error": "no such actor"}, status=404)
        socket = web.WebSocketResponse(protocols=("rivet",))
        await socket.prepare(http)
        thread.sockets.add(socket)
        try:
            await socket.send_str("pong")  # the CLI says nothing before the actor does
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    await self._take(thread, socket, frame.data)
        finally:
            thread.sockets.discard(socket)
            if thread.executor is socket:
                thread.executor = None
            if not thread.sockets and thread.turn is not None:
                thread.turn.cancel()  # nobody is there to run its tools
        return socket

    async def _take(self, thread: Thread, socket: web.WebSocketResponse, text: str) -> None:
        if text == "ping":
            await socket.send_str("pong")
            return
        taken = json.loads(text)
        for message in taken if isinstance(taken, list) else [taken]:
            method, params = str(message.get("method", "")), message.get("params") or {}
            if "id" in message:
                result = {"ok": True}
                await _send(socket, {"jsonrpc": "2.0", "id": message["id"], "result": result})
            await self._obey(thread, socket, method, params)

    async def _obey(
        self, thread: Thread, socket: web.WebSocketResponse, method: str, params: Json
    ) -> None:
        match method:
            case "executor_connect":
                thread.executor = socket
                await thread.notify(
                    "executor_connected",
                    executorId=params.get("clientId"),
                    registeredToolCount=0,
                    guidanceInventory=[],
                    resumeBootstrap=False,
                    executorSystemInfo=True,
                )
            case "client_append_user_msg":
                message_id = str(params.get("messageId") or thread.new_id("M"))
                await thread.add("user", params.get("content") or [], message_id)
                if thread.turn is None or thread.turn.done():
                    thread.turn = asyncio.create_task(self._turn(thread))
            case "executor_tool_result":
                call_id = str(params.get("toolCallId"))
                await thread.notify("executor_tool_result_ack", toolCallId=call_id)
                async with self._news:
                    self.runs[call_id] = params.get("run") or {}
                    self._news.notify_all()
                if (waiting := thread.results.pop(call_id, None)) and not waiting.done():
                    waiting.set_result(params.get("run") or {})
            case "client_cancel":
                if thread.turn is not None and not thread.turn.done():
                    thread.turn.cancel()
                    await asyncio.wait([thread.turn])
                await thread.state("idle")

    async def _turn(self, thread: Thread) -> None:
        await thread.state("working")
        while True:
            request = AnthropicRequest(len(self.requests), _conversation(thread), {})
            scripted = await self.note(request)
            try:
                if scripted is None:
                    self.errors.append(f"no reply for request {request.number}: {request.prompt!r}")
                    await self._fail(thread, "unexpected", self.errors[-1])
                    return
                if not await self._answer_with(thread, scripted):
                    return
            except ConnectionCut:
                request.outcome = "cut"
                for socket in list(thread.sockets):
                    await socket.close()
                return
            finally:
                if request.outcome == "open":
                    request.outcome = "answered"
                request.ended.set()

    async def _fail(self, thread: Thread, code: str, message: str) -> None:
        thread.sequence += 1
        error = {"message": message, "code": code}
        await thread.notify("error_set", seq=thread.sequence, error=error)
        await thread.state("idle")

    async def _answer_with(self, thread: Thread, scripted: AnthropicReply) -> bool:
        """Say what the model says; whether it is asked again, for tools were run."""
        if scripted.failure is not None:
            error = scripted.failure["error"]
            await self._fail(thread, error["type"], error["message"])
            return False
        message_id = thread.new_id("M")
        await thread.notify("inference_tools", messageId=message_id, agentMode=_MODE, tools=[])
        await thread.state("streaming", messageId=message_id)
        content: list[Json] = []
        for step in scripted.steps:
            if isinstance(step, Block):
                for delta in step.deltas:
                    if not isinstance(delta, dict):
                        await flow(delta)
                content.append(_block(step.with_id(thread.new_id("TU")).whole))
            elif not hasattr(step, "name"):
                await flow(step)
        await thread.add(
            "assistant",
            content,
            message_id,
            state={"type": "complete"},
            usage=_usage(scripted),
        )
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            await thread.state("idle", messageId=message_id)
            return False
        await thread.state("running_tools", messageId=message_id)
        runs = await asyncio.gather(*(_lease(thread, call, message_id) for call in calls))
        results: list[Json] = [
            {"type": "tool_result", "toolUseID": call["id"], "run": run}
            for call, run in zip(calls, runs, strict=True)
        ]
        await thread.add("user", results, thread.new_id("M"))
        return True


async def _send(socket: web.WebSocketResponse, message: Json) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_str(json.dumps(message))


async def _lease(thread: Thread, call: Json, message_id: str) -> Json:
    """Have the executor run a tool; what came of it."""
    assert thread.executor is not None, "no executor is connected"
    result = asyncio.get_running_loop().create_future()
    thread.results[call["id"]] = result
    params = {
        "toolCallId": call["id"],
        "toolName": call["name"],
        "args": call["input"],
        "messageId": message_id,
    }
    await _send(thread.executor, {"jsonrpc": "2.0", "method": "tool_lease", "params": params})
    run: Json = await result
    return run


def _block(whole: Json) -> Json:
    if whole["type"] == "tool_use":
        return {**whole, "complete": True, "blockState": "complete"}
    return {**whole, "blockState": "complete"}


def _usage(scripted: AnthropicReply) -> Json:
    return {
        "model": "scripted",
        "maxInputTokens": 200_000,
        "inputTokens": scripted.input_tokens,
        "outputTokens": scripted.output_tokens,
        "cacheCreationInputTokens": 0,
        "cacheReadInputTokens": 0,
        "totalInputTokens": scripted.input_tokens,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
    }


def _conversation(thread: Thread) -> Json:
    """The conversation as a request of the Anthropic Messages API, for matchers."""
    messages = [
        {"role": message["role"], "content": list(_anthropic(message["content"]))}
        for message in thread.messages
    ]
    return {"model": "scripted", "messages": messages}


def _anthropic(content: list[Json]) -> Iterator[Json]:
    for block in content:
        if block["type"] == "tool_result":
            run = json.dumps(block["run"])
            yield {"type": "tool_result", "tool_use_id": block["toolUseID"], "content": run}
        else:
            yield block
