"""A session that only notes what its driver tells it: for tests of drivers without a daemon."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentstream.v1 import event_pb2, item_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import Adapter, AgentExit, Driver, DriverContext, Prompt
from agentstreamd.model import Draft, Kind
from agentstreamd.process import ProcessHost
from tests.support.model_server import DEADLINE


@dataclass
class FakeSession:
    """A session and sink. `driver()` makes a driver that goes on where the last one was.

    The waiting methods go through the drafts once, in order, as they come.
    """

    adapter: Adapter
    processes: ProcessHost
    config: session_pb2.SessionConfig
    environment: dict[str, str]
    state_directory: Path
    uid: str = "uid-1"
    native_session_id: str = ""
    state: bytes = b""
    drafts: list[Draft] = field(default_factory=list)
    exits: list[AgentExit] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Closed, it holds back whatever is published: a log that is too slow."""

    def __post_init__(self) -> None:
        self._next = 0
        self._turns = 0
        self._news = asyncio.Condition()
        self._exit = asyncio.Event()
        self.gate.set()

    def driver(self) -> Driver:
        """A new driver, as after a restart of the daemon."""
        context = DriverContext(
            session_id="session",
            session_uid=self.uid,
            config=self.config,
            native_session_id=self.native_session_id,
            state=self.state,
            sink=self,
            processes=self.processes,
            environment=self.environment,
            state_directory=self.state_directory,
        )
        self.drivers.append(self.adapter.driver(context))
        return self.drivers[-1]

    def prompt(
        self, text: str, *, command: bool = False, model: str = "", effort: str = ""
    ) -> Prompt:
        """A message of text."""
        self._turns += 1
        return Prompt(
            turn_id=f"turn-{self._turns}",
            message_id=f"00000000-0000-4000-8000-{self._turns:012}",
            parts=(service_pb2.InputPart(text=text),),
            command=command,
            model=model,
            effort=effort,
        )

    # --- Sink

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """See `Sink.publish`."""
        await self.gate.wait()
        for draft in drafts:
            updated = draft.event.session_updated
            if draft.kind is Kind.SESSION_UPDATED and updated.native_session_id:
                self.native_session_id = updated.native_session_id
        async with self._news:
            self.drafts += drafts
            self._news.notify_all()

    def exited(self, exit: AgentExit) -> None:
        """See `Sink.exited`."""
        self.exits.append(exit)
        self._exit.set()

    def save_state(self, state: bytes) -> None:
        """See `Sink.save_state`."""
        assert len(state) <= 64 * 1024
        self.state = state

    # --- waiting

    async def until(self, wanted: Callable[[Draft], bool], what: str) -> event_pb2.Event:
        """The next draft that is wanted; those before it are passed over."""
        try:
            async with asyncio.timeout(DEADLINE), self._news:
                while True:
                    while self._next < len(self.drafts):
                        draft = self.drafts[self._next]
                        self._next += 1
                        if wanted(draft):
                            return draft.event
                    await self._news.wait()
        except TimeoutError:
            kinds = [draft.kind.name for draft in self.drafts[-20:]]
            raise TimeoutError(f"no {what}; exits: {self.exits}; last drafts: {kinds}") from None

    async def next(self, kind: Kind) -> event_pb2.Event:
        """The next draft of this kind."""
        return await self.until(lambda draft: draft.kind is kind, kind.name)

    async def turn_ended(self) -> event_pb2.TurnEnded:
        """The next end of a turn."""
        return (await self.next(Kind.TURN_ENDED)).turn_ended

    async def text_delta(self, text: str) -> None:
        """Wait for a delta of exactly this text."""
        await self.until(
            lambda draft: draft.kind is Kind.ITEM_DELTA and draft.event.item_delta.text == text,
            f"delta {text!r}",
        )

    async def exit(self, number: int = 0) -> AgentExit:
        """Wait for the exit with this number, from 0."""
        async with asyncio.timeout(DEADLINE):
            while len(self.exits) <= number:
                self._exit.clear()
                await self._exit.wait()
        return self.exits[number]

    # --- reading

    def of(self, kind: Kind) -> list[event_pb2.Event]:
        """All events of this kind so far."""
        return [draft.event for draft in self.drafts if draft.kind is kind]

    @property
    def deltas(self) -> list[str]:
        """The text deltas so far."""
        deltas = [event.item_delta for event in self.of(Kind.ITEM_DELTA)]
        return [delta.text for delta in deltas if delta.kind == event_pb2.DELTA_KIND_TEXT]

    @property
    def texts(self) -> list[str]:
        """The texts of the assistant's completed messages so far."""
        items = [event.item_completed.item for event in self.of(Kind.ITEM_COMPLETED)]
        return [
            part.text.text
            for item in items
            if item.role == item_pb2.ITEM_ROLE_ASSISTANT
            for part in item.content
            if part.WhichOneof("part") == "text"
        ]

    @property
    def tool_results(self) -> dict[str, item_pb2.ToolResultPart]:
        """The tool results so far, by call id."""
        parts = [
            part.tool_result
            for event in self.of(Kind.ITEM_COMPLETED)
            for part in event.item_completed.item.content
            if part.WhichOneof("part") == "tool_result"
        ]
        return {part.call_id: part for part in parts}
