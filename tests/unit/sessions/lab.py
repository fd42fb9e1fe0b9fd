"""A session manager on a real log, with an agent that the test scripts."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

from agentstream.v1 import (
    error_pb2,
    event_pb2,
    interaction_pb2,
    service_pb2,
    session_pb2,
)
from agentstreamd.events import EventLogConfig, SqliteEventLog
from agentstreamd.laws import check
from agentstreamd.process import ProcessHost
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.errors import SessionError
from agentstreamd.sessions.manager import SessionManager
from tests.support.scripted_adapter import Script, ScriptedAdapter
from tests.unit.events.helpers import Gate

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS

ACCEPT = interaction_pb2.PermissionAnswer(decision=interaction_pb2.PERMISSION_DECISION_ACCEPT)
REJECT = interaction_pb2.PermissionAnswer(decision=interaction_pb2.PERMISSION_DECISION_REJECT)


class CrashGate(Gate):
    """Shuts by itself before a given commit, and so leaves the log as a kill there would."""

    def __init__(self, commit: int = 0) -> None:
        super().__init__()
        self.commit = commit
        self.hit = threading.Event()

    def __call__(self) -> None:
        if self.commit and self.commits + 1 == self.commit:
            self.shut()
            self.hit.set()
        super().__call__()


class Lab:
    """One daemon's sessions layer after another, on one directory.

    Attributes:
        manager: The one that runs now.
        script: What the agent does.
        now: The time, Unix nanoseconds, each time it is looked at.
        seen: Events read so far, by session id; a later read must begin with them.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.script = Script()
        self.adapter = ScriptedAdapter(self.script)
        self.gate = CrashGate()
        self.seen: dict[str, list[event_pb2.Event]] = {}
        self.settings = {"interrupt_grace_seconds": 5.0, "idle_agent_seconds": 0.0} | settings
        self.log: SqliteEventLog
        self.manager: SessionManager
        self.now: Iterator[int] = count(START_NS, 1_000_000)
        self._ids = count(1)
        self._generation = 0

    # Daemons

    async def start(self, error: Exception | None = None, *, crash_at: int = 0) -> None:
        self.gate = CrashGate(crash_at)
        self.gate.error = error
        config = EventLogConfig(directory=self._log_directory)
        self.log = await SqliteEventLog.open(config, before_commit=self.gate)
        self.manager = SessionManager(
            log=self.log,
            adapters={"scripted": self.adapter},
            processes=cast(ProcessHost, None),
            config=SessionsConfig(state_directory=self.directory / "state", **self.settings),
            now_ns=lambda: next(self.now),
            new_id=lambda: f"id{next(self._ids)}",
        )
        await self.manager.start()

    @property
    def _log_directory(self) -> Path:
        return self.directory / f"log{self._generation}"

    async def stop(self) -> None:
        """End the daemon in order."""
        self.gate.open()
        self.gate.error = None
        await self.manager.drain()
        await self.log.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def crash(self, crash_at: int = 0) -> None:
        """Kill the daemon as it is now, and start the next: nothing more gets into its log.

        What it was about to commit is lost.
        """
        self.gate.shut()
        async for info in self.log.scan("session"):
            self.seen[info.uid] = await self.durable(info.session_id)
        before = self._log_directory
        self._generation += 1
        shutil.copytree(before, self._log_directory)
        await self.stop()
        await self.start(crash_at=crash_at)

    # Calls

    async def create(self, session_id: str = "s", **config: Any) -> session_pb2.Session:
        return await self.manager.create(self.create_request(session_id, **config))

    def create_request(self, session_id: str = "s", **config: Any) -> Any:
        wanted = {"agent": "scripted", "working_directory": str(self.directory)} | config
        return service_pb2.CreateSessionRequest(
            session_id=session_id, config=session_pb2.SessionConfig(**wanted)
        )

    async def send(
        self, text: str = "hello", session_id: str = "s", **fields: Any
    ) -> service_pb2.SendMessageResponse:
        return await self.manager.send(
            service_pb2.SendMessageRequest(
                session_id=session_id, parts=[service_pb2.InputPart(text=text)], **fields
            )
        )

    async def respond(
        self, request_id: str, answer: Any, session_id: str = "s"
    ) -> service_pb2.RespondResponse:
        request = service_pb2.RespondRequest(session_id=session_id, request_id=request_id)
        match answer:
            case interaction_pb2.PermissionAnswer():
                request.permission.CopyFrom(answer)
            case interaction_pb2.QuestionAnswer():
                request.question.CopyFrom(answer)
            case _:
                request.form.CopyFrom(answer)
        return await self.manager.respond(request)

    async def interrupt(self, **fields: Any) -> service_pb2.InterruptTurnResponse:
        return await self.manager.interrupt(
            service_pb2.InterruptTurnRequest(session_id="s", **fields)
        )

    async def update(self, *paths: str, **config: Any) -> session_pb2.Session:
        request = service_pb2.UpdateSessionRequest(
            session_id="s", config=session_pb2.SessionConfig(**config)
        )
        request.update_mask.paths.extend(paths)
        return await self.manager.update(request)

    async def get(self, session_id: str = "s") -> session_pb2.Session:
        return await self.manager.get(session_id)

    # The log

    async def events(self, session_id: str = "s") -> list[event_pb2.Event]:
        """All events that there are now, once they are durable."""
        await self.manager.get(session_id)
        return await self.durable(session_id)

    async def durable(self, session_id: str = "s") -> list[event_pb2.Event]:
        """All events that are durable now, and kept."""
        found: list[event_pb2.Event] = []
        with await self.log.open_reader(session_id) as reader:
            cursor = reader.earliest - 1
            while cursor < reader.latest:
                batch = await reader.read(cursor, include_raw=True)
                found.extend(service_pb2.EventBatch.FromString(batch.data).events)
                cursor = batch.last_sequence
        return found

    async def kinds(self, session_id: str = "s") -> list[str]:
        return [event.WhichOneof("payload") or "" for event in await self.events(session_id)]

    async def only(self, kind: str, session_id: str = "s") -> list[Any]:
        """Payloads of a kind."""
        return [
            getattr(event, kind)
            for event in await self.events(session_id)
            if event.WhichOneof("payload") == kind
        ]

    async def until(
        self, kind: str, times: int = 1, session_id: str = "s"
    ) -> list[event_pb2.Event]:
        """Waits until so many events of a kind are durable; gives all events."""
        async with asyncio.timeout(20):
            with await self.log.open_reader(session_id) as reader:
                while True:
                    events = await self.durable(session_id)
                    if sum(event.WhichOneof("payload") == kind for event in events) >= times:
                        return events
                    await reader.wait_beyond(events[-1].sequence if events else 0)

    async def check_laws(self) -> None:
        """Every session keeps the laws, and begins with what was seen of it before."""
        async for info in self.log.scan("session"):
            events = await self.events(info.session_id)
            shown = await self.manager.get(info.session_id)
            complete = shown.state in (
                session_pb2.SESSION_STATE_IDLE,
                session_pb2.SESSION_STATE_ENDED,
            )
            assert check(events, complete=complete, raw=True) == []
            seen = self.seen.get(info.uid, [])
            assert events[: len(seen)] == seen
            self.seen[info.uid] = events


@asynccontextmanager
async def laboratory(directory: Path, **settings: Any) -> AsyncIterator[Lab]:
    lab = Lab(directory, **settings)
    await lab.start()
    try:
        yield lab
        await lab.check_laws()
    finally:
        await lab.stop()


async def until(condition: Callable[[], object]) -> None:
    """Let others run until something is so that has no event to wait for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Refused:
    """Expects a call to be refused for a reason, with metadata that has these entries."""

    def __init__(self, reason: error_pb2.ErrorReason.ValueType, **metadata: str) -> None:
        self._reason = reason
        self._metadata = metadata
        self.error: SessionError

    def __enter__(self) -> "Refused":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert error is not None, "the call was not refused"
        if not isinstance(error, SessionError):
            return False
        got = error_pb2.ErrorReason.Name(error.reason), str(error)
        assert error.reason == self._reason, got
        assert self._metadata.items() <= error.metadata.items(), error.metadata
        self.error = error
        return True

    @property
    def fields(self) -> list[str]:
        return [field for field, _ in self.error.violations]
