"""A session around a mock driver: its sink, its stream, its answers, without daemon and log."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
    session_pb2,
)
from agentstreamd.adapters.base import AgentExit, Answer, Driver, DriverContext, Prompt
from agentstreamd.adapters.mock.adapter import MockAdapter
from agentstreamd.laws import check
from agentstreamd.model import Draft
from agentstreamd.process import ProcessHost
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.prompts import user_item
from agentstreamd.sessions.stamp import Stamper

Respond = Callable[[event_pb2.Event], Answer | None]

ACCEPT = interaction_pb2.PermissionAnswer(decision=interaction_pb2.PERMISSION_DECISION_ACCEPT)
REJECT = interaction_pb2.PermissionAnswer(
    decision=interaction_pb2.PERMISSION_DECISION_REJECT, message="too dangerous"
)


def accept_all(event: event_pb2.Event) -> Answer | None:
    """Accepts permissions, chooses first options, fills in forms."""
    match event.WhichOneof("payload"):
        case "permission_requested":
            return ACCEPT
        case "question_requested":
            answered = interaction_pb2.AnsweredQuestions()
            for question in event.question_requested.questions:
                single = answered.answers.add(question_id=question.question_id)
                if question.options:
                    single.labels.append(question.options[0].label)
                else:
                    single.text = "free"
            return interaction_pb2.QuestionAnswer(answered=answered)
        case _:
            return interaction_pb2.FormAnswer(
                action=interaction_pb2.FORM_ACTION_ACCEPT, content_json="{}"
            )


def parts(*texts: str) -> tuple[service_pb2.InputPart, ...]:
    return tuple(service_pb2.InputPart(text=text) for text in texts)


class Session:
    """One session: publishes into a keeper, answers requests, waits for ends of turns."""

    def __init__(
        self,
        adapter: MockAdapter,
        processes: ProcessHost,
        directory: Path,
        *,
        session_id: str = "s",
        options: Mapping[str, str] | None = None,
        respond: Respond | None = accept_all,
        resume: str = "",
        state: bytes = b"",
        config: session_pb2.SessionConfig | None = None,
    ) -> None:
        self.events: list[event_pb2.Event] = []
        self.exits: list[AgentExit] = []
        self.state = state
        self.config = config or session_pb2.SessionConfig()
        self.config.agent = "mock"
        self.config.working_directory = str(directory)
        self.config.agent_options.update(options or {})
        stamper = Stamper(session_id, session_id, store_raw=True)
        stamper.listener = lambda event, record: self._on_event(event, record.raw)
        stamper.set_time(1)
        self._turns = 0
        self.keeper = StreamKeeper(stamper, new_turn_id=self._new_turn_id)
        self.keeper.start_session(
            event_pb2.SessionStarted(
                agent="mock", permission_mode=agent_pb2.PERMISSION_MODE_DEFAULT
            )
        )
        self._respond = respond
        self._changed = asyncio.Event()
        self.driver: Driver = adapter.driver(
            DriverContext(
                session_id=session_id,
                session_uid=session_id,
                config=self.config,
                native_session_id=resume,
                state=state,
                sink=self,
                processes=processes,
                environment={},
                state_directory=directory,
            )
        )

    # Sink

    async def publish(self, drafts: Sequence[Draft]) -> None:
        self.keeper.apply(drafts)
        for pending in self.keeper.take().asked:
            event = self.events[pending.sequence - 1]
            answer = self._respond(event) if self._respond else None
            if answer is not None:
                await self.answer(pending.request.request_id, answer)
        self._changed.set()

    def exited(self, exit: AgentExit) -> None:
        self.exits.append(exit)
        if self.keeper.turn_id:
            self.keeper.end_turn(
                event_pb2.TURN_STATUS_FAILED, error_pb2.Error(message=exit.message, code=exit.code)
            )
        self._changed.set()

    def save_state(self, state: bytes) -> None:
        self.state = state

    # What a client does

    async def answer(self, request_id: str, answer: Answer) -> None:
        await self.driver.answer(request_id, answer)
        outcome = {
            "REJECT": interaction_pb2.REQUEST_OUTCOME_REJECTED,
            "ACCEPT_FOR_SESSION": interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION,
        }
        name = ""
        if isinstance(answer, interaction_pb2.PermissionAnswer):
            name = interaction_pb2.PermissionDecision.Name(answer.decision)
        self.keeper.resolve(
            request_id,
            outcome.get(
                name.removeprefix("PERMISSION_DECISION_"),
                interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
            ),
            interaction_pb2.RESOLVED_BY_CLIENT,
            answer=answer,
        )

    async def start(
        self, *texts: str, more: Sequence[service_pb2.InputPart] = (), **fields: Any
    ) -> None:
        """Send a message, without waiting for its turn to end; `fields` are further ones of it."""
        turn_id = self._new_turn_id()
        prompt = Prompt(turn_id, f"message-{turn_id}", (*parts(*texts), *more), **fields)
        item = user_item(f"user-{turn_id}", prompt.parts)
        self.keeper.begin_turn(turn_id, event_pb2.TURN_TRIGGER_CLIENT, item)
        await self.driver.send(prompt)

    async def turn(self, *texts: str, **fields: Any) -> event_pb2.TurnEnded:
        """Send a message and wait until its turn has ended."""
        await self.start(*texts, **fields)
        return await self.ended()

    async def ended(self) -> event_pb2.TurnEnded:
        """Wait until no turn runs; returns how the last one ended."""
        await self.until(lambda: not self.keeper.turn_id)
        return self.payloads("turn_ended")[-1].turn_ended

    async def streaming(self) -> None:
        """Wait until the agent streams something."""
        await self.until(lambda: bool(self.payloads("item_delta")))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; it is looked at whenever something came."""
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # What came of it

    def payloads(self, kind: str) -> list[event_pb2.Event]:
        return [event for event in self.events if event.WhichOneof("payload") == kind]

    def items(self) -> list[item_pb2.Item]:
        """All completed items but messages of the user."""
        items = [event.item_completed.item for event in self.payloads("item_completed")]
        return [item for item in items if item.role != item_pb2.ITEM_ROLE_USER]

    def texts(self) -> list[str]:
        """All texts: of messages, tool results and status lines."""
        found = []
        for item in self.items():
            for part in item.content:
                which = part.WhichOneof("part")
                if which == "text":
                    found.append(part.text.text)
                elif which == "tool_result":
                    found.append(part.tool_result.output)
        return found

    def violations(self) -> list[str]:
        return [str(one) for one in check(self.events, complete=True, raw=True)]

    def _on_event(self, event: event_pb2.Event, raw: bytes) -> None:
        if raw:
            event.MergeFromString(raw)
        self.events.append(event)

    def _new_turn_id(self) -> str:
        self._turns += 1
        return f"turn-{self._turns}"
