"""What goes on in a soak: places where sessions live one after the other, as clients use them."""

import asyncio
import hashlib
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from agentstream.client import Backoff, connect_aio
from agentstream.v1 import event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.laws import LawChecker
from tests.support.e2e import Lab, refused
from tests.support.fault_proxy import FaultProxy

SCRIPTS = (
    'say one two three four five six\ndelay 300ms\ntool Bash {"n":1} => done\ndelay 300ms\nsay ok',
    'think Let me see.\ndelay 200ms\nask permission command "make"\non accept edit a.txt a => b',
    "agent helper look\nsay six seven\ndelay 400ms\nend\nsay eight",
    "repeat 20\ndelta some of it \ndelay 40ms\nend",
    "text 64KB\nimage 2KB\ndelay 200ms\nsay done",
)
ENDLESS = "repeat 100000\ndelta more \ndelay 50ms\nend"

_LEAST_TURNS, _MOST_TURNS = 3, 8
_PATIENCE_SECONDS = 120.0  # for one step of a session, on a machine that is busy with much else
_TIRELESS = Backoff(initial=0.05, maximum=0.2, attempts=100_000)
_ONE_CONNECTION = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
)
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_DECISIONS = (
    interaction_pb2.PERMISSION_DECISION_ACCEPT,
    interaction_pb2.PERMISSION_DECISION_REJECT,
)


@dataclass
class Tally:
    """What was done so far."""

    sessions: int = 0
    turns: int = 0
    events: int = 0
    answers: int = 0
    interrupts: int = 0


@dataclass
class World:
    """The daemon as clients see it: now here, now gone, behind connections that break.

    Attributes:
        up: Set while the daemon takes calls.
        closing: Set when no further session is to begin.
    """

    lab: Lab
    proxy: FaultProxy
    workspace: str
    tally: Tally = field(default_factory=Tally)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def new_id(self) -> str:
        """An id that nothing has yet."""
        return f"soak-{next(self._numbers)}"

    async def call(self, method: str, request: object) -> Any:
        """Call until a daemon answers: all that is called here may be called again."""
        while True:
            await self.up.wait()
            try:
                return await getattr(self.lab.stub, method)(request)
            except aio.UsageError:
                pass  # the channel was closed together with the daemon
            except aio.AioRpcError as error:
                if error.code() not in _GONE:
                    raise


class Reader:
    """Follows a session over every cut, and holds it to the laws; it keeps no events.

    Attributes:
        asked: Permissions that were asked for, not taken from here yet.
    """

    def __init__(self, world: World, session_id: str) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self._world = world
        self._session_id = session_id
        self._laws = LawChecker(raw=False)
        self._digest = hashlib.sha256()
        self._ended: dict[str, asyncio.Event] = {}
        self._task = asyncio.create_task(self._follow())

    async def turn_ended(self, turn_id: str) -> None:
        """Wait for the end of a turn."""
        waiting = asyncio.create_task(self._end_of(turn_id).wait())
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        del self._ended[turn_id]

    async def finish(self) -> str:
        """Wait for the end of the stream; a digest of its events."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._task
        assert self._laws.finish(complete=True) == []
        return self._digest.hexdigest()

    def stop(self) -> None:
        """Follow no longer."""
        self._task.cancel()

    def _end_of(self, turn_id: str) -> asyncio.Event:
        return self._ended.setdefault(turn_id, asyncio.Event())

    async def _follow(self) -> None:
        async with (
            connect_aio(self._world.proxy.target, options=_ONE_CONNECTION) as client,
            client.follow(self._session_id, backoff=_TIRELESS) as events,
        ):
            async for event in events:
                assert self._laws.feed(event) == []
                self._digest.update(event.SerializeToString(deterministic=True))
                self._world.tally.events += 1
                if event.HasField("turn_ended"):
                    self._end_of(event.turn_id).set()
                elif event.HasField("permission_requested"):
                    self.asked.put_nowait(event.permission_requested.request_id)


class Place:
    """One session after the other, until the world is closing."""

    def __init__(
        self, world: World, chance: random.Random, agent_options: Mapping[str, str]
    ) -> None:
        self._world = world
        self._chance = chance
        self._agent_options = agent_options

    async def live(self) -> None:
        """Live through sessions; raises what is wrong with any."""
        while not self._world.closing.is_set():
            await self._session()

    async def _session(self) -> None:
        session_id = self._world.new_id()
        await self._create(session_id)
        reader = Reader(self._world, session_id)
        answering = asyncio.create_task(self._answer(session_id, reader))
        try:
            for _ in range(self._chance.randint(_LEAST_TURNS, _MOST_TURNS)):
                await self._turn(session_id, reader)
            await self._world.call(
                "EndSession", service_pb2.EndSessionRequest(session_id=session_id)
            )
            assert await reader.finish() == await self._stored(session_id)
        finally:
            reader.stop()
            answering.cancel()
            (result,) = await asyncio.gather(answering, return_exceptions=True)
        if isinstance(result, Exception):
            raise result
        await self._delete(session_id)
        self._world.tally.sessions += 1

    async def _create(self, session_id: str) -> None:
        config = session_pb2.SessionConfig(
            agent="mock",
            working_directory=self._world.workspace,
            agent_options=self._agent_options,
        )
        request = service_pb2.CreateSessionRequest(session_id=session_id, config=config)
        await self._world.call("CreateSession", request)

    async def _delete(self, session_id: str) -> None:
        request = service_pb2.DeleteSessionRequest(session_id=session_id)
        try:
            await self._world.call("DeleteSession", request)
        except aio.AioRpcError as error:
            # The call before may have done it, and its answer got lost with the daemon.
            if refused(error)[1] != "SESSION_NOT_FOUND":
                raise

    async def _turn(self, session_id: str, reader: Reader) -> None:
        endless = self._chance.random() < 0.1
        request = service_pb2.SendMessageRequest(
            session_id=session_id,
            client_message_id=self._world.new_id(),
            parts=[
                service_pb2.InputPart(text=ENDLESS if endless else self._chance.choice(SCRIPTS))
            ],
        )
        turn_id = (await self._world.call("SendMessage", request)).turn_id
        if endless:
            await asyncio.sleep(self._chance.uniform(0, 1))
            await self._interrupt(session_id)
        await reader.turn_ended(turn_id)
        self._world.tally.turns += 1
        await asyncio.sleep(self._chance.uniform(0, 1))  # as people do

    async def _interrupt(self, session_id: str) -> None:
        try:
            await self._world.call(
                "InterruptTurn", service_pb2.InterruptTurnRequest(session_id=session_id)
            )
        except aio.AioRpcError as error:
            if refused(error)[1] != "TURN_NOT_RUNNING":  # a restart has ended it
                raise
        self._world.tally.interrupts += 1

    async def _answer(self, session_id: str, reader: Reader) -> None:
        while True:
            request = service_pb2.RespondRequest(
                session_id=session_id,
                request_id=await reader.asked.get(),
                permission=interaction_pb2.PermissionAnswer(
                    decision=self._chance.choice(_DECISIONS)
                ),
            )
            try:
                await self._world.call("Respond", request)
            except aio.AioRpcError as error:
                if refused(error)[1] != "REQUEST_ALREADY_RESOLVED":  # so too
                    raise
            self._world.tally.answers += 1

    async def _stored(self, session_id: str) -> str:
        """A digest of the session's events as they are stored."""
        while True:
            digest = hashlib.sha256()
            await self._world.up.wait()
            try:
                async for response in self._world.lab.stub.StreamEvents(
                    service_pb2.StreamEventsRequest(session_id=session_id)
                ):
                    event: event_pb2.Event
                    for event in response.batch.events:
                        digest.update(event.SerializeToString(deterministic=True))
            except (aio.UsageError, aio.AioRpcError) as error:
                if isinstance(error, aio.AioRpcError) and error.code() not in _GONE:
                    raise
                continue
            return digest.hexdigest()
