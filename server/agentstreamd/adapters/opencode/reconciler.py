"""Finds out what the event stream did not say: after it broke, and where a turn does not end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentstreamd.adapters.opencode import recovery
from agentstreamd.adapters.opencode.api import Refused, Unreachable
from agentstreamd.adapters.opencode.inbox import Item
from agentstreamd.adapters.opencode.native import compose, dict_in, list_in, text_in
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.adapters.opencode.server import Limits, Listener, Server


class Reconciler:
    """Asks the server and has the normalizer fed with what it says, through `put`."""

    def __init__(
        self,
        normalizer: OpenCodeNormalizer,
        put: Callable[[Item], Awaitable[None]],
        limits: Limits,
    ) -> None:
        self._normalizer = normalizer
        self._put = put
        self._limits = limits

    async def begin(self) -> None:
        """Events may be missing from here on."""
        await self._put(compose("agentstream.reconnected", {}))

    async def run(
        self, server: Server, session_id: str, directory: str, listener: Listener
    ) -> None:
        """Make up for what was missed of the running turn. Raises `Unreachable`, `Refused`."""
        turns = self._normalizer.turns
        since = turns.native_id
        # The status comes first: when it says idle, the messages are final.
        idle = await self._is_idle(server, session_id, directory)
        history = await server.api.get(f"/session/{session_id}/message", directory)
        children = _children(history, since) if since else []
        told: dict[str, Any] = {}
        for child in children:  # grows: a sub-agent may have some of its own
            server.attach(child, listener)
            told[child] = await server.api.get(f"/session/{child}/message", directory)
            children += [found for found in _children(told[child]) if found not in children]
        if since:
            await self._feed(recovery.message_events(session_id, history, since))
        for child in children:
            await self._feed(recovery.message_events(child, told[child], ""))
        permissions = await server.api.get("/permission", directory)
        questions = await server.api.get("/question", directory)
        sessions = {session_id, *children}
        pending = set(self._normalizer.requests.pending)
        await self._feed(recovery.gone_events(pending, permissions, questions))
        if idle and turns.taken and turns.native_id == since:
            await self._put(compose("agentstream.settled", {"turn": since}))
            return
        for kind, listed in (("permission", permissions), ("question", questions)):
            await self._feed(recovery.request_events(kind, listed, sessions, directory))

    async def watch(
        self, server: Server, session_id: str, directory: str, over: asyncio.Event
    ) -> None:
        """Wait for the end of the turn that was just begun; help it where the server does not.

        A turn whose message the server never took up, or whose last message it never completed,
        would run for ever.
        """
        turns = self._normalizer.turns
        mine = turns.native_id
        waited = 0.0
        while turns.open and turns.native_id == mine:
            try:
                async with asyncio.timeout(self._limits.settle_seconds):
                    await over.wait()
                    return
            except TimeoutError:
                waited += self._limits.settle_seconds
            if turns.taken and not turns.waits_for_message:
                continue
            try:
                idle = await self._is_idle(server, session_id, directory)
                if idle:
                    await self._settle(server, session_id, directory, mine, waited)
            except (Refused, Unreachable):
                continue  # a server that is gone ends the turn another way

    async def _settle(
        self, server: Server, session_id: str, directory: str, mine: str, waited: float
    ) -> None:
        """The server does nothing, and the turn is open."""
        turns = self._normalizer.turns
        history = await server.api.get(f"/session/{session_id}/message", directory)
        answered = any(
            text_in(dict_in(entry, "info"), "parentID") == mine
            for entry in history or ()
            if isinstance(entry, dict)
        )
        if not turns.open or turns.native_id != mine:
            return
        lost = not answered and not turns.has_error
        if lost and waited < self._limits.taken_seconds:
            return  # it may not have begun yet
        await self._feed(recovery.message_events(session_id, history, mine))
        if lost:
            failed = {
                "message": "OpenCode accepted the message and did not work on it.",
                "code": "ERROR_CODE_AGENT_PROTOCOL",
            }
            await self._put(compose("agentstream.failed", failed))
        await self._put(compose("agentstream.settled", {"turn": mine}))

    async def _is_idle(self, server: Server, session_id: str, directory: str) -> bool:
        status = await server.api.get("/session/status", directory)
        return isinstance(status, dict) and session_id not in status

    async def _feed(self, events: Any) -> None:
        for native in events:
            await self._put(native)


def _children(history: Any, since: str = "") -> list[str]:
    """The native sessions of the sub-agents that ran since a message, by default since ever."""
    found: dict[str, None] = {}
    seen = not since
    for entry in history if isinstance(history, list) else []:
        if not isinstance(entry, dict):
            continue
        seen = seen or text_in(dict_in(entry, "info"), "id") == since
        for part in list_in(entry, "parts") if seen else []:
            state = dict_in(part, "state") if isinstance(part, dict) else {}
            child = text_in(dict_in(state, "metadata"), "sessionId")
            if child:
                found[child] = None
    return list(found)
