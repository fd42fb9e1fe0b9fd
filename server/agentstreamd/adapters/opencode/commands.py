"""Commands of OpenCode: `/NAME ARGUMENTS`, and `/compact`, which is a request of its own.

The server answers them only when their turn is over.
"""

import asyncio
from typing import Any

from agentstream.v1 import error_pb2
from agentstreamd.adapters.base import AgentFailed, Prompt
from agentstreamd.adapters.opencode import calls
from agentstreamd.adapters.opencode.api import Unreachable
from agentstreamd.adapters.opencode.native import dict_in, text_in
from agentstreamd.adapters.opencode.server import Server

TURN_SECONDS = 7 * 24 * 3600.0
"""Longer than any turn; requests have a limit."""

_COMPACT = "compact"


def parse(prompt: Prompt) -> tuple[str, str]:
    """The name of a command, without slash, and its arguments."""
    name, *arguments = prompt.parts[0].text.strip().removeprefix("/").split(None, 1) or [""]
    return name, "".join(arguments)


async def request_of(
    server: Server, session_id: str, directory: str, prompt: Prompt, settings: calls.TurnSettings
) -> calls.Call:
    """The request that carries out a command.

    Raises `AgentFailed` for one that OpenCode does not have, `Refused` and `Unreachable`.
    """
    name, arguments = parse(prompt)
    if name == _COMPACT:
        model = settings.model or await _model_of(server, session_id, directory)
        return calls.compact(session_id, model)
    listed = await server.api.get("/command", directory)
    known = [text_in(found, "name") for found in listed or () if isinstance(found, dict)]
    if name not in known:
        named = ", ".join(f"/{other}" for other in (_COMPACT, *known))
        raise AgentFailed(
            f"OpenCode has no command /{name}. It has: {named}.",
            error_pb2.ERROR_CODE_INVALID_REQUEST,
        )
    return calls.command(session_id, calls.new_message_id(), name, arguments, settings)


async def _model_of(server: Server, session_id: str, directory: str) -> str:
    info: Any = await server.api.get(f"/session/{session_id}", directory)
    model = dict_in(info, "model") if isinstance(info, dict) else {}
    if not text_in(model, "id"):
        raise AgentFailed("There is nothing to compact yet.", error_pb2.ERROR_CODE_INVALID_REQUEST)
    return f"{text_in(model, 'providerID')}/{text_in(model, 'id')}"


async def begin(
    server: Server, call: calls.Call, directory: str, taken: asyncio.Event, seconds: float
) -> "asyncio.Task[Any]":
    """Make a request that is answered when its turn is over. Returns once its turn was taken up,
    what is left of it.

    Raises `Refused`, and `Unreachable` where nothing happens for `seconds`.
    """
    work = asyncio.create_task(server.call(call, directory, seconds=TURN_SECONDS))
    waiting = asyncio.create_task(taken.wait())
    try:
        await asyncio.wait({work, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        elif not waiting.done():
            raise Unreachable(f"OpenCode did not take up {call.path} in time")
    except BaseException:
        work.cancel()
        raise
    finally:
        waiting.cancel()
    return work
