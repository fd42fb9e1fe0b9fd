"""Catches: orders of calls, of what agents do and of crashes that nobody thought of.

Budget: `SEQUENCES` random sequences of up to `STEPS` steps against one session on a real log, with
an agent that may do anything at any time. After each step what the session shows is what its
stream says; at the end the laws hold, and what was seen once is there still.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AgentExit, Answer, NotDelivered
from agentstreamd.model import Draft, delta, started, tool_call_item
from agentstreamd.sessions.errors import SessionError
from tests.faults.scale import scaled
from tests.support.scripted_adapter import (
    RAW,
    ScriptedDriver,
    end_interrupted,
    form,
    message,
    nothing,
    permission,
    question,
    session_updated,
    turn_ended,
    turn_started,
    withdrawn,
)
from tests.unit.sessions.lab import Lab

SEQUENCES = scaled(150, 5_000)
STEPS = 50
STEP_SECONDS = 20.0

IDS = st.sampled_from(["1", "2", "3"])
WHEN_BUSY = st.sampled_from(service_pb2.WhenBusy.values())
STATUSES = st.sampled_from(
    [
        event_pb2.TURN_STATUS_COMPLETED,
        event_pb2.TURN_STATUS_FAILED,
        event_pb2.TURN_STATUS_INTERRUPTED,
    ]
)
ANSWERS: dict[str, list[Any]] = {
    "permission_requested": [
        interaction_pb2.PermissionAnswer(decision=interaction_pb2.PERMISSION_DECISION_ACCEPT),
        interaction_pb2.PermissionAnswer(decision=interaction_pb2.PERMISSION_DECISION_REJECT),
        interaction_pb2.PermissionAnswer(),
    ],
    "question_requested": [
        interaction_pb2.QuestionAnswer(
            answered=interaction_pb2.AnsweredQuestions(
                answers=[interaction_pb2.SingleAnswer(question_id="colour", labels=["red"])]
            )
        ),
        interaction_pb2.QuestionAnswer(),
    ],
    "form_requested": [interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE)],
}
REQUESTS = st.sampled_from([permission, question, form])
UNDISTURBED_STEPS = 12
"""Steps between what tears down: or sessions and agents never get old enough to do anything."""


def working(machine: "Session") -> bool:
    """An agent runs."""
    return machine.driver is not None


def old(machine: "Session") -> bool:
    """Nothing was torn down for a while."""
    return machine.undisturbed >= UNDISTURBED_STEPS


class Session(RuleBasedStateMachine):
    """One session, its agent, its clients and its daemons, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="fuzz-sessions-"))
        self.lab = Lab(self.directory, interrupt_grace_seconds=0.05)
        self.accepted: dict[str, service_pb2.SendMessageResponse] = {}
        self.settled: dict[str, service_pb2.RespondResponse] = {}
        self.undisturbed = 0
        self.exists = False
        self.asked: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        self.turn_id = ""

    def run(self, call: Awaitable[Any]) -> Any:
        """What a call gives; the `SessionError` it is refused with, and nothing else."""

        async def bounded() -> Any:
            async with asyncio.timeout(STEP_SECONDS):
                return await call

        try:
            return self.runner.run(bounded())
        except SessionError as refusal:
            return refusal

    @property
    def driver(self) -> ScriptedDriver | None:
        """The agent that runs now."""
        drivers = self.lab.script.drivers
        return drivers[-1] if drivers and drivers[-1].alive else None

    @initialize()
    def begin(self) -> None:
        self.run(self.lab.start())
        self.run(self.lab.create())

    # Clients

    @precondition(lambda self: not self.exists)
    @rule()
    def create(self) -> None:
        self.run(self.lab.create())

    @rule(message_id=st.sampled_from(["", "", "1", "2"]), when_busy=WHEN_BUSY)
    def send(self, message_id: str, when_busy: service_pb2.WhenBusy.ValueType) -> None:
        sent = self.run(self.lab.send("hello", client_message_id=message_id, when_busy=when_busy))
        if message_id and isinstance(sent, service_pb2.SendMessageResponse):
            assert self.accepted.setdefault(message_id, sent) == sent

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 9))
    def respond(self, which: int) -> None:
        request_id = sorted(self.pending)[which % len(self.pending)]
        self.answer(request_id, ANSWERS[self.asked[request_id]][0])

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 9), kind=st.sampled_from(sorted(ANSWERS)), nth=st.integers(0, 2))
    def respond_oddly(self, which: int, kind: str, nth: int) -> None:
        answers = ANSWERS[kind]
        self.answer(sorted(self.asked)[which % len(self.asked)], answers[nth % len(answers)])

    def answer(self, request_id: str, answer: Any) -> None:
        said = self.run(self.lab.respond(request_id, answer))
        if not isinstance(said, SessionError):
            # The same answer again is told what came of it the first time.
            assert self.settled.setdefault(request_id, said) == said

    @precondition(working)
    @rule()
    def interrupt(self) -> None:
        self.run(self.lab.interrupt())

    @precondition(working)
    @rule(model=IDS)
    def update(self, model: str) -> None:
        self.run(self.lab.update("model", model=model))

    @precondition(old)
    @rule()
    def end(self) -> None:
        self.undisturbed = 0
        self.run(self.lab.manager.end("s"))

    @precondition(old)
    @rule()
    def delete(self) -> None:
        self.undisturbed = 0
        if not isinstance(self.run(self.lab.manager.delete("s")), SessionError):
            self.accepted, self.settled = {}, {}

    # The agent

    def publish(self, *drafts: Draft) -> None:
        assert self.driver is not None
        self.run(self.driver.publish(*drafts))

    @precondition(working)
    @rule(item_id=IDS, whole=st.booleans())
    def say(self, item_id: str, whole: bool) -> None:
        more = delta(item_id, 0, event_pb2.DELTA_KIND_TEXT, "more", RAW)
        self.publish(*(message(item_id, f"text of {item_id}") if whole else [more]))

    @precondition(working)
    @rule(call_id=IDS)
    def call_a_tool(self, call_id: str) -> None:
        call = tool_call_item(f"t{call_id}", name="Bash", arguments_json="", call_id=call_id)
        self.publish(started(call, RAW))

    @precondition(working)
    @rule(name=IDS, kind=REQUESTS)
    def ask(self, name: str, kind: Callable[[str], Draft]) -> None:
        self.publish(kind(f"ask{name}"))

    @precondition(lambda self: working(self) and self.pending)
    @rule(name=IDS)
    def withdraw(self, name: str) -> None:
        self.publish(withdrawn(f"ask{name}"))

    @precondition(lambda self: working(self) and not self.turn_id)
    @rule()
    def begin_turn(self) -> None:
        self.publish(turn_started())

    @precondition(working)
    @rule(status=STATUSES)
    def end_turn(self, status: event_pb2.TurnStatus.ValueType) -> None:
        self.publish(turn_ended(status))

    @precondition(working)
    @rule(title=IDS)
    def rename(self, title: str) -> None:
        self.publish(session_updated(title=title))

    @precondition(lambda self: working(self) and old(self))
    @rule(code=st.sampled_from([0, 1, None]), expected=st.booleans())
    def exit(self, code: int | None, expected: bool) -> None:
        self.undisturbed = 0
        driver = self.driver
        assert driver is not None

        async def exit() -> None:
            driver.exit(AgentExit(expected=expected, exit_code=code))

        self.run(exit())

    @rule(obeys=st.booleans(), takes=st.booleans())
    def misbehave(self, obeys: bool, takes: bool) -> None:
        async def refuse(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
            raise NotDelivered("the agent takes no answers now")

        self.lab.script.on_interrupt = end_interrupted if obeys else nothing
        self.lab.script.on_answer = nothing if takes else refuse

    # The daemon

    @precondition(old)
    @rule()
    def restart(self) -> None:
        self.undisturbed = 0
        self.run(self.lab.restart())

    @precondition(old)
    @rule()
    def crash(self) -> None:
        self.undisturbed = 0
        self.run(self.lab.crash())

    # What is so after every step

    @invariant()
    def what_the_session_shows_is_in_its_stream(self) -> None:
        self.undisturbed += 1
        shown = self.run(self.lab.get())
        if isinstance(shown, SessionError):
            assert shown.reason == error_pb2.ERROR_REASON_SESSION_NOT_FOUND
            self.exists, self.asked, self.pending = False, {}, {}
            return
        self.exists = True
        events: list[event_pb2.Event] = self.run(self.lab.events())
        asked, turn_id, ended = {}, "", False
        for event in events:
            kind = event.WhichOneof("payload")
            payload = getattr(event, kind or "")
            match kind:
                case "permission_requested" | "question_requested" | "form_requested":
                    asked[payload.request_id] = event.sequence
                    self.asked[payload.request_id] = str(kind)
                case "permission_resolved" | "question_resolved" | "form_resolved":
                    del asked[payload.request_id]
                case "turn_started":
                    turn_id = event.turn_id
                case "turn_ended":
                    turn_id = ""
                case "session_ended":
                    ended = True
        self.pending = {
            getattr(one, one.WhichOneof("request")).request_id: one.sequence
            for one in shown.pending_requests
        }
        # The session may have gone on between the two looks.
        if shown.latest_sequence == events[-1].sequence:
            assert self.pending == asked
            assert shown.turn_id == turn_id
            self.turn_id = turn_id
            assert (shown.state == session_pb2.SESSION_STATE_ENDED) == ended

    def teardown(self) -> None:
        try:
            self.run(self.lab.check_laws())
            self.run(self.lab.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)


Session.TestCase.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSession = Session.TestCase
