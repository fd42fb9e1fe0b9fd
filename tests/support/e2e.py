"""Real agents end to end: a real daemon, its sessions over gRPC, the laws at the end of each.

    async def test_it_answers(bench: Bench, model: AnthropicServer) -> None:
        model.script(reply(text("Hello.")))
        session = await bench.session()
        await session.turn("Hi")
        assert session.texts == ["Hello."]

A `Lab` is a daemon that several tests share; a `Bench` is one test's part of it. When a bench is
left, its sessions are ended, their streams are held to the laws, and none of their processes may
live on. Nothing waits for a time: every wait is for an event, bounded by `DEADLINE`.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import field_mask_pb2
from grpc import aio

from agentstream.v1 import (
    blob_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
    service_pb2_grpc,
    session_pb2,
)
from agentstreamd.laws import MAX_EVENT_BYTES, ResponseChecker, check
from agentstreamd.process.leftovers import ProcessIdentity, find_marked
from tests.support import daemon as daemons
from tests.support.grpc_edge import details
from tests.support.model_server import DEADLINE

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

QUEUE = service_pb2.WHEN_BUSY_QUEUE

Where = Callable[[event_pb2.Event], bool]


class Lab:
    """A daemon that can be killed and started again on its data directory.

    Attributes:
        daemon: The one that runs now.
        stub: Its service.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self._directory = directory
        self._environment = environment
        self._arguments = arguments
        self._channel: aio.Channel | None = None
        self._numbers = itertools.count(1)
        self.daemon: daemons.Daemon
        self.stub: Any

    async def start(self) -> None:
        """Start the daemon, again after its end."""
        self.daemon = await daemons.start(
            self._directory / "data", *self._arguments, environment=self._environment
        )
        self._channel = self.daemon.aio_channel()
        self.stub = service_pb2_grpc.AgentServiceStub(self._channel)

    async def kill(self) -> None:
        """End the daemon with SIGKILL."""
        await self.daemon.kill()
        await self._hang_up()

    async def stop(self) -> None:
        """Stop the daemon in order: it exits with 0 and leaves no process."""
        code = await self.daemon.stop()
        await self._hang_up()
        assert code == 0, self.daemon.stderr
        assert "Traceback" not in self.daemon.stderr, self.daemon.stderr
        assert self.processes() == []

    async def _hang_up(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def processes(self) -> list[ProcessIdentity]:
        """What the daemon's agents and their tools have running now."""
        instance = (self._directory / "data" / "instance-id").read_text().strip()
        return find_marked(f"{instance}/")

    async def no_processes(self, seconds: float) -> None:
        """Wait until no agent process is left; fails when some live on after `seconds`."""
        async with asyncio.timeout(seconds):
            while self.processes():  # noqa: ASYNC110 - processes that are not ours announce nothing
                await asyncio.sleep(0.02)

    def new_id(self) -> str:
        """An id for a session."""
        return f"session-{next(self._numbers)}"


@asynccontextmanager
async def lab(
    directory: Path, environment: Mapping[str, str], *arguments: str
) -> AsyncIterator[Lab]:
    """A lab whose daemon runs with `arguments`, in `environment`; stopped in order at the end."""
    made = Lab(directory, environment, *arguments)
    await made.start()
    try:
        yield made
    except BaseException:
        await made.kill()
        raise
    await made.stop()


class Bench:
    """One test's place in a lab.

    Attributes:
        lab: The lab.
        workspace: Where its sessions work.
        env: Variables of its sessions.
        sessions: The sessions so far.
    """

    def __init__(self, lab: Lab, agent: str, workspace: Path, env: Mapping[str, str]) -> None:
        self.lab = lab
        self.workspace = workspace
        self.env = dict(env)
        self._agent = agent
        self.sessions: list[Session] = []

    async def session(
        self,
        *,
        follow: bool = True,
        env: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
        **config: Any,
    ) -> "Session":
        """Create a session; `env` adds to the bench's, `config` are fields of SessionConfig."""
        settings = session_pb2.SessionConfig(
            agent=self._agent,
            working_directory=str(working_directory or self.workspace),
            env={**self.env, **(env or {})},
            **config,
        )
        request = service_pb2.CreateSessionRequest(session_id=self.lab.new_id(), config=settings)
        made = Session(self.lab, (await self.lab.stub.CreateSession(request)).session)
        self.sessions.append(made)
        if follow:
            await made.follow()
        return made

    async def finish(self) -> None:
        """End all sessions, hold their streams to the laws; no process of them lives on."""
        for session in self.sessions:
            await session.end()
        for session in self.sessions:
            await session.verify()
        assert self.lab.processes() == []


class Session:
    """A session, and its stream as far as it was read.

    Attributes:
        lab: The lab it runs in.
        created: What CreateSession answered.
        events: The events so far.
    """

    def __init__(self, lab: Lab, created: session_pb2.Session) -> None:
        self.lab = lab
        self.created = created
        self.id = created.session_id
        self.events: list[event_pb2.Event] = []
        self.stream_error: aio.AioRpcError | None = None
        self.opened: session_pb2.Session = session_pb2.Session()
        self._cursor = 0
        self._arrival = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._checkers: list[ResponseChecker] = []

    # --- the stream ------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the stream from where it was left; returns when it is open."""
        after = self.events[-1].sequence if self.events else 0
        request = service_pb2.StreamEventsRequest(
            session_id=self.id,
            after_sequence=after,
            follow=True,
            expected_session_uid=self.created.uid,
        )
        checker = ResponseChecker(after_sequence=after)
        self._checkers.append(checker)
        self.stream_error = None
        is_open = asyncio.Event()
        self._reader = asyncio.create_task(self._follow(request, checker, is_open))
        opening = asyncio.create_task(is_open.wait())
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait({self._reader, opening}, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if self._reader.done():
            self._reader.result()

    async def _follow(
        self,
        request: service_pb2.StreamEventsRequest,
        checker: ResponseChecker,
        is_open: asyncio.Event,
    ) -> None:
        try:
            async for response in self.lab.stub.StreamEvents(request):
                checker.feed(response)
                if response.HasField("opened"):
                    self.opened = response.opened.session
                    is_open.set()
                self.events += response.batch.events
                self._arrival.set()
        except aio.AioRpcError as error:
            self.stream_error = error
        finally:
            self._arrival.set()

    @property
    def _following(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def stream_ended(self) -> aio.AioRpcError | None:
        """Wait for the end of the stream; its error, if it is not OK."""
        assert self._reader is not None
        async with asyncio.timeout(DEADLINE):
            await self._reader
        return self.stream_error

    async def find(self, kind: str, where: Where = lambda event: True) -> event_pb2.Event:
        """The first event of this payload, from the beginning on, waited for."""
        return self.events[await self._index(0, kind, where)]

    async def next(self, kind: str, where: Where = lambda event: True) -> event_pb2.Event:
        """The next event of this payload after the one that `next` gave before, waited for."""
        index = await self._index(self._cursor, kind, where)
        self._cursor = index + 1
        return self.events[index]

    async def _index(self, start: int, kind: str, where: Where) -> int:
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._seek(start, kind, where)
        except TimeoutError:
            raise TimeoutError(f"no {kind} came:\n{self.tell()}") from None

    async def _seek(self, start: int, kind: str, where: Where) -> int:
        while True:
            for index, event in enumerate(self.events[start:], start):
                if event.WhichOneof("payload") == kind and where(event):
                    return index
            start = len(self.events)
            assert self._following, f"the stream ended before {kind}:\n{self.tell()}"
            self._arrival.clear()
            await self._arrival.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was read of the stream makes `condition` true."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                assert self._following, f"the stream ended too early:\n{self.tell()}"
                self._arrival.clear()
                await self._arrival.wait()

    def tell(self) -> str:
        """The last events, for messages of failures."""
        return "\n".join(str(event)[:400] for event in self.events[-12:])

    # --- calls -----------------------------------------------------------------------------------

    async def send(
        self, *parts: str | service_pb2.InputPart, **fields: Any
    ) -> service_pb2.SendMessageResponse:
        """SendMessage; `fields` are further ones of its request."""
        request = service_pb2.SendMessageRequest(
            session_id=self.id,
            parts=[
                service_pb2.InputPart(text=part) if isinstance(part, str) else part
                for part in parts
            ],
            **fields,
        )
        response: service_pb2.SendMessageResponse = await self.lab.stub.SendMessage(request)
        return response

    async def turn(self, *parts: str | service_pb2.InputPart, **fields: Any) -> event_pb2.TurnEnded:
        """Send a message and wait for the end of the turn it started."""
        return await self.turn_ended((await self.send(*parts, **fields)).turn_id)

    async def turn_ended(self, turn_id: str = "") -> event_pb2.TurnEnded:
        """The end of this turn (of the next one, by default)."""
        if turn_id:
            return (await self.find("turn_ended", lambda e: e.turn_id == turn_id)).turn_ended
        return (await self.next("turn_ended")).turn_ended

    async def permission(self) -> interaction_pb2.PermissionRequest:
        """The next permission request."""
        return (await self.next("permission_requested")).permission_requested

    async def question(self) -> interaction_pb2.QuestionRequest:
        """The next question request."""
        return (await self.next("question_requested")).question_requested

    async def decide(
        self,
        request: interaction_pb2.PermissionRequest,
        decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT,
        **more: Any,
    ) -> interaction_pb2.PermissionResolved:
        """Answer a permission request; what the resolution says."""
        answer = interaction_pb2.PermissionAnswer(decision=decision, **more)
        return (await self.respond(request.request_id, permission=answer)).permission

    async def respond(self, request_id: str, **answer: Any) -> service_pb2.RespondResponse:
        """Respond."""
        request = service_pb2.RespondRequest(session_id=self.id, request_id=request_id, **answer)
        response: service_pb2.RespondResponse = await self.lab.stub.Respond(request)
        return response

    async def interrupt(self) -> service_pb2.InterruptTurnResponse:
        """InterruptTurn, of whichever runs."""
        request = service_pb2.InterruptTurnRequest(session_id=self.id)
        response: service_pb2.InterruptTurnResponse = await self.lab.stub.InterruptTurn(request)
        return response

    async def update(self, **config: Any) -> session_pb2.Session:
        """UpdateSession of these fields."""
        request = service_pb2.UpdateSessionRequest(
            session_id=self.id,
            config=session_pb2.SessionConfig(**config),
            update_mask=field_mask_pb2.FieldMask(paths=list(config)),
        )
        updated: session_pb2.Session = (await self.lab.stub.UpdateSession(request)).session
        return updated

    async def get(self) -> session_pb2.Session:
        """GetSession."""
        request = service_pb2.GetSessionRequest(session_id=self.id)
        session: session_pb2.Session = (await self.lab.stub.GetSession(request)).session
        return session

    async def end(self) -> None:
        """EndSession."""
        await self.lab.stub.EndSession(service_pb2.EndSessionRequest(session_id=self.id))

    async def blob(self, ref: blob_pb2.BlobRef) -> bytes:
        """ReadBlob, whole."""
        request = service_pb2.ReadBlobRequest(session_id=self.id, blob_id=ref.blob_id)
        return b"".join([piece.data async for piece in self.lab.stub.ReadBlob(request)])

    # --- what was said ---------------------------------------------------------------------------

    def of(self, kind: str) -> list[event_pb2.Event]:
        """The events of this payload so far."""
        return [event for event in self.events if event.WhichOneof("payload") == kind]

    @property
    def items(self) -> list[item_pb2.Item]:
        """The completed items so far."""
        return [event.item_completed.item for event in self.of("item_completed")]

    @property
    def texts(self) -> list[str]:
        """The text of each of the assistant's messages that are whole."""
        return [
            "".join(part.text.text for part in item.content)
            for item in self.items
            if item.role == item_pb2.ITEM_ROLE_ASSISTANT
            and item.kind == item_pb2.ITEM_KIND_MESSAGE
            and item.status == item_pb2.ITEM_STATUS_COMPLETED
            and any(part.HasField("text") for part in item.content)
        ]

    @property
    def deltas(self) -> list[str]:
        """The pieces of text so far, as they came."""
        return [
            event.item_delta.text
            for event in self.of("item_delta")
            if event.item_delta.kind == event_pb2.DELTA_KIND_TEXT
        ]

    def call(self, call_id: str) -> item_pb2.Item:
        """The call of this id."""
        return self._with_part("tool_call", call_id)

    def result(self, call_id: str) -> item_pb2.Item:
        """The result of the call of this id; its first part is the `tool_result`."""
        return self._with_part("tool_result", call_id)

    def _with_part(self, part: str, call_id: str) -> item_pb2.Item:
        found = [
            item
            for item in self.items
            if item.content
            and item.content[0].HasField(part)  # type: ignore[arg-type]
            and getattr(item.content[0], part).call_id == call_id
        ]
        assert len(found) == 1, f"{len(found)} {part} of {call_id}:\n{self.tell()}"
        return found[0]

    def statuses(self, label: str) -> list[item_pb2.Item]:
        """The status items of this label."""
        return [i for i in self.items if i.content and i.content[0].status.label == label]

    async def delta(self, text: str) -> event_pb2.Event:
        """The first delta of this text, waited for."""
        return await self.find("item_delta", lambda event: event.item_delta.text == text)

    # --- the laws --------------------------------------------------------------------------------

    async def verify(self, *, unparsed: bool = False) -> None:
        """Hold the stream of the session, which has ended, to the laws, and to what is stored.

        `unparsed`: its agent wrote on purpose what can't be read, or what is not known.
        """
        if not self._following and not self.of("session_ended"):
            await self.follow()
        assert await self.stream_ended() is None
        for checker in self._checkers:
            assert checker.violations == []
        stored = await self._stored()
        assert check(stored, raw=True, complete=True) == []
        for event in stored:
            del event.raw[:]
        # Not compared as lists: telling how long ones differ takes pytest minutes.
        differs = next((a for a, b in zip(self.events, stored, strict=False) if a != b), None)
        assert differs is None, f"stored otherwise: {differs}"
        assert len(self.events) == len(stored)
        assert check(self.events, raw=False, complete=True) == []
        assert all(event.ByteSize() <= MAX_EVENT_BYTES for event in self.events)
        if not unparsed:
            assert self.of("agent_unparsed") == []
            assert [i for i in self.items if i.kind == item_pb2.ITEM_KIND_UNKNOWN] == []

    async def _stored(self) -> list[event_pb2.Event]:
        request = service_pb2.StreamEventsRequest(session_id=self.id, include_raw=True)
        checker = ResponseChecker()
        events: list[event_pb2.Event] = []
        async for response in self.lab.stub.StreamEvents(request):
            checker.feed(response)
            events += response.batch.events
        assert checker.violations == []
        return events


def metadata(event: event_pb2.Event) -> dict[str, Any]:
    """What the event says beyond the model."""
    return json.loads(event.metadata_json) if event.metadata_json else {}


def refused(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The code and reason of a failed call."""
    assert isinstance(error, aio.AioRpcError)
    return error.code(), details(error).info.reason
