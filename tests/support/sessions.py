"""A session manager for tests of the service: sessions on a real log, and answers as told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from agentstream.v1 import agent_pb2, blob_pb2, error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.events import EventLog, EventLogConfig, Record, SqliteEventLog
from agentstreamd.model import Kind
from agentstreamd.sessions.errors import SessionError, session_not_found


class FakeSessions:
    """Implements what the service needs of a session manager; `fail` is raised by unary calls."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.fail: BaseException | None = None
        self.states: dict[str, session_pb2.SessionState.ValueType] = {}
        self.followers: dict[str, int] = {}
        self.calls: list[object] = []
        self.blobs: dict[str, blob_pb2.BlobRef] = {}
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._followers_changed = asyncio.Event()

    async def add(self, session_id: str, uid: str = "") -> None:
        """Create a session without events."""
        await self.log.create_session(session_id, uid or f"uid-{session_id}")
        self.states[session_id] = session_pb2.SESSION_STATE_IDLE

    async def write(
        self,
        session_id: str,
        *kinds: Kind,
        raw: bytes = b"",
        label: str = "",
    ) -> int:
        """Append an event for each kind; the last sequence."""
        sequence = (await self.log.info(session_id)).latest
        records = []
        for number, kind in enumerate(kinds, sequence + 1):
            event = event_pb2.Event(
                event_id=f"{session_id}-{number}", sequence=number, session_id=session_id
            )
            if kind is Kind.SESSION_ENDED:
                event.session_ended.SetInParent()
                self.states[session_id] = session_pb2.SESSION_STATE_ENDED
            elif kind is Kind.ITEM_DELTA:
                event.item_delta.text = label
            else:
                getattr(event, kind.name.lower()).SetInParent()
            encoded = b""
            if raw:
                carrier = event_pb2.Event()
                carrier.raw.add(data=raw)
                encoded = carrier.SerializeToString()
            records.append(Record(event.SerializeToString(), encoded, int(kind)))
        return await self.log.append(session_id, sequence, records)

    async def _call(self, request: object) -> None:
        self.calls.append(request)
        self.entered.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if self.fail is not None:
            raise self.fail

    async def create(self, request: service_pb2.CreateSessionRequest) -> session_pb2.Session:
        await self._call(request)
        await self.add(request.session_id)
        return await self.get(request.session_id)

    async def get(self, session_id: str) -> session_pb2.Session:
        if self.fail is not None:
            raise self.fail
        if session_id not in self.states:
            raise session_not_found(session_id)
        info = await self.log.info(session_id)
        return session_pb2.Session(
            session_id=session_id,
            uid=info.uid,
            state=self.states[session_id],
            earliest_sequence=info.earliest,
            latest_sequence=info.latest,
        )

    async def list(
        self, request: service_pb2.ListSessionsRequest
    ) -> service_pb2.ListSessionsResponse:
        await self._call(request)
        return service_pb2.ListSessionsResponse(
            sessions=[await self.get(name) for name in self.states]
        )

    async def send(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        await self._call(request)
        return service_pb2.SendMessageResponse(turn_id="turn-1", sequence=7)

    async def update(self, request: service_pb2.UpdateSessionRequest) -> session_pb2.Session:
        await self._call(request)
        return await self.get(request.session_id)

    async def interrupt(
        self, request: service_pb2.InterruptTurnRequest
    ) -> service_pb2.InterruptTurnResponse:
        await self._call(request)
        return service_pb2.InterruptTurnResponse(turn_id="turn-1", sequence=9)

    async def end(self, session_id: str) -> session_pb2.Session:
        await self._call(session_id)
        return await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        await self._call(session_id)
        await self.log.delete_session(session_id)
        del self.states[session_id]

    async def respond(self, request: service_pb2.RespondRequest) -> service_pb2.RespondResponse:
        await self._call(request)
        return service_pb2.RespondResponse(sequence=11)

    async def blob(self, session_id: str, blob_id: str) -> blob_pb2.BlobRef:
        await self.log.blob_size(session_id, blob_id)
        return self.blobs[blob_id]

    @contextlib.contextmanager
    def following(self, session_id: str) -> Iterator[None]:
        self.followers[session_id] = self.followers.get(session_id, 0) + 1
        try:
            yield
        finally:
            self.followers[session_id] -= 1
            self._followers_changed.set()

    async def until_unfollowed(self, session_id: str) -> None:
        """Wait until nobody follows the session."""
        while self.followers.get(session_id):
            self._followers_changed.clear()
            await self._followers_changed.wait()

    async def list_agents(
        self, request: service_pb2.ListAgentsRequest
    ) -> service_pb2.ListAgentsResponse:
        await self._call(request)
        return service_pb2.ListAgentsResponse(agents=[agent_pb2.Agent(name="mock")])

    async def get_agent(self, name: str, *, include_login: bool = False) -> agent_pb2.Agent:
        await self._call(name)
        if name != "mock":
            raise SessionError(
                error_pb2.ERROR_REASON_AGENT_NOT_FOUND, f"no agent {name}", {"agent": name}
            )
        return agent_pb2.Agent(name=name)


@contextlib.asynccontextmanager
async def fake_sessions(directory: Path) -> AsyncIterator[FakeSessions]:
    """A fake manager over an event log in this directory."""
    log = await SqliteEventLog.open(EventLogConfig(directory=directory))
    try:
        yield FakeSessions(log)
    finally:
        await log.close()
