"""An adapter whose agent does what the test says: when calls return, what they raise, what comes.

A test sets a hook (`script.on_send = ...`) or drives the agent from outside (`await
driver.say(...)`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, item_pb2, session_pb2
from agentstreamd.adapters.base import (
    Adapter,
    AgentExit,
    Answer,
    Driver,
    DriverContext,
    Normalizer,
    Prompt,
)
from agentstreamd.model import Draft, Kind, event, text_part, whole

RAW = (b'{"native":true}',)

MODES = (
    agent_pb2.PERMISSION_MODE_DEFAULT,
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS,
    agent_pb2.PERMISSION_MODE_PLAN,
)


async def nothing(*arguments: object) -> None:
    """A hook that does nothing."""


async def end_interrupted(driver: "ScriptedDriver") -> None:
    """What an agent does that obeys an interrupt."""
    await driver.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)


@dataclass
class Script:
    """What the agent does when the daemon asks something of it.

    Attributes:
        drivers: All drivers that were made, oldest first.
        calls: Names of the drivers' methods, in the order they were called.
    """

    on_open: Callable[["ScriptedDriver"], Awaitable[None]] = nothing
    on_send: Callable[["ScriptedDriver", Prompt], Awaitable[None]] = nothing
    on_steer: Callable[["ScriptedDriver", Prompt], Awaitable[None]] = nothing
    on_interrupt: Callable[["ScriptedDriver"], Awaitable[None]] = end_interrupted
    on_answer: Callable[["ScriptedDriver", str, Answer], Awaitable[None]] = nothing
    on_update: Callable[["ScriptedDriver", str | None, int | None], Awaitable[None]] = nothing
    on_close: Callable[["ScriptedDriver"], Awaitable[None]] = nothing
    drivers: list["ScriptedDriver"] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def driver(self) -> "ScriptedDriver":
        """The newest driver."""
        return self.drivers[-1]

    @property
    def prompts(self) -> list[str]:
        """The texts that agents were sent, in order."""
        return [text for driver in self.drivers for text in driver.prompts]


class ScriptedDriver(Driver):
    """Drives an agent that lives in the test.

    Attributes:
        prompts: Texts it was sent.
        answers: Answers it was given, with the id of the request.
        alive: Its process runs.
    """

    def __init__(self, context: DriverContext, script: Script) -> None:
        self.context = context
        self.prompts: list[str] = []
        self.answers: list[tuple[str, Answer]] = []
        self.alive = False
        self.forgotten = False
        self._script = script
        self._busy = ""
        self._messages = 0

    # Driver

    async def open(self) -> None:
        self._script.calls.append("open")
        await self._script.on_open(self)

    async def send(self, prompt: Prompt) -> None:
        with self._alone("send"):
            self.alive = True
            self.prompts.append("".join(part.text for part in prompt.parts))
            await self._script.on_send(self, prompt)

    async def steer(self, prompt: Prompt) -> None:
        with self._alone("steer"):
            await self._script.on_steer(self, prompt)
            self.prompts.append("".join(part.text for part in prompt.parts))

    async def interrupt(self) -> None:
        self._script.calls.append("interrupt")
        await self._script.on_interrupt(self)

    async def answer(self, request_id: str, answer: Answer) -> None:
        self._script.calls.append("answer")
        await self._script.on_answer(self, request_id, answer)
        self.answers.append((request_id, answer))

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        with self._alone("update"):
            await self._script.on_update(self, model, permission_mode)

    async def close(self, *, forget: bool = False) -> None:
        self._script.calls.append("close")
        self.forgotten |= forget
        await self._script.on_close(self)
        if self.alive:
            self.exit(AgentExit(expected=True, exit_code=0))

    def _alone(self, name: str) -> "_Alone":
        self._script.calls.append(name)
        return _Alone(self, name)

    # What the agent does

    async def publish(self, *drafts: Draft) -> None:
        await self.context.sink.publish(drafts)

    async def say(self, text: str, item_id: str = "") -> None:
        """A whole message."""
        self._messages += 1
        name = item_id or f"m{self._messages}-{len(self._script.drivers)}"
        await self.publish(*message(name, text))

    async def ask(self, request_id: str = "ask", **fields: object) -> None:
        """A permission."""
        await self.publish(permission(request_id, **fields))

    async def end_turn(
        self,
        status: event_pb2.TurnStatus.ValueType = event_pb2.TURN_STATUS_COMPLETED,
        error: error_pb2.Error | None = None,
    ) -> None:
        draft = turn_ended(status)
        if error is not None:
            draft.event.turn_ended.error.CopyFrom(error)
        await self.publish(draft)

    def exit(self, exit: AgentExit) -> None:
        """Its process ends."""
        self.alive = False
        self.context.sink.exited(exit)


class _Alone:
    """Fails when two calls that exclude each other are under way."""

    def __init__(self, driver: ScriptedDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def __enter__(self) -> None:
        assert not self._driver._busy, f"{self._name} while {self._driver._busy} runs"
        self._driver._busy = self._name

    def __exit__(self, *exc: object) -> None:
        self._driver._busy = ""


class ScriptedAdapter(Adapter):
    """Makes scripted drivers.

    Attributes:
        agent: What `describe` gives.
        refusal: What `check` raises.
        logged_in: What `login` gives, or raises.
    """

    name = "scripted"

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.refusal: Exception | None = None
        self.logged_in: agent_pb2.AgentLogin | Exception = agent_pb2.AgentLogin(detail="asked")
        self.agent = agent_pb2.Agent(
            name=self.name, state=agent_pb2.AGENT_STATE_AVAILABLE, version="1.2.3"
        )
        can = self.agent.capabilities
        can.steer = can.change_model = can.change_permission_mode = True
        can.image_input = can.file_input = can.commands = True
        can.message_model = can.message_effort = True
        for mode in MODES:
            self.agent.permission_modes.add(mode=mode)

    async def describe(self) -> agent_pb2.Agent:
        return self.agent

    async def login(self) -> agent_pb2.AgentLogin:
        if isinstance(self.logged_in, Exception):
            raise self.logged_in
        return self.logged_in

    def check(self, config: session_pb2.SessionConfig) -> None:
        if self.refusal is not None:
            raise self.refusal

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        raise NotImplementedError

    def driver(self, context: DriverContext) -> ScriptedDriver:
        made = ScriptedDriver(context, self.script)
        self.script.drivers.append(made)
        return made


def message(item_id: str, text: str) -> list[Draft]:
    item = item_pb2.Item(
        item_id=item_id, kind=item_pb2.ITEM_KIND_MESSAGE, role=item_pb2.ITEM_ROLE_ASSISTANT
    )
    item.content.append(text_part(text))
    return whole(item, RAW)


def permission(request_id: str, **fields: object) -> Draft:
    made = event()
    request = interaction_pb2.PermissionRequest(
        request_id=request_id,
        kind=interaction_pb2.PERMISSION_KIND_TOOL,
        tool_name="Bash",
        arguments_json="{}",
        allowed_decisions=[
            interaction_pb2.PERMISSION_DECISION_ACCEPT,
            interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
            interaction_pb2.PERMISSION_DECISION_REJECT,
        ],
        takes_message=True,
        takes_updated_arguments=True,
        suggestions=[interaction_pb2.PermissionSuggestion(suggestion_id="s1", native_json="{}")],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    made.permission_requested.CopyFrom(request)
    return Draft(Kind.PERMISSION_REQUESTED, made, RAW)


def question(request_id: str, questions: Sequence[interaction_pb2.Question] = ()) -> Draft:
    made = event()
    made.question_requested.request_id = request_id
    made.question_requested.questions.extend(
        questions
        or [
            interaction_pb2.Question(
                question_id="colour",
                text="Which colour?",
                options=[
                    interaction_pb2.QuestionOption(label="red"),
                    interaction_pb2.QuestionOption(label="blue"),
                ],
            )
        ]
    )
    return Draft(Kind.QUESTION_REQUESTED, made, RAW)


def form(request_id: str) -> Draft:
    made = event()
    made.form_requested.request_id = request_id
    made.form_requested.message = "Who are you?"
    made.form_requested.schema_json = '{"type":"object"}'
    return Draft(Kind.FORM_REQUESTED, made, RAW)


def withdrawn(request_id: str) -> Draft:
    made = event()
    made.permission_resolved.request_id = request_id
    made.permission_resolved.outcome = interaction_pb2.REQUEST_OUTCOME_CANCELLED
    made.permission_resolved.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
    return Draft(Kind.PERMISSION_RESOLVED, made, RAW)


def turn_started(trigger: event_pb2.TurnTrigger.ValueType = event_pb2.TURN_TRIGGER_AGENT) -> Draft:
    made = event()
    made.turn_started.trigger = trigger
    return Draft(Kind.TURN_STARTED, made, RAW)


def turn_ended(
    status: event_pb2.TurnStatus.ValueType = event_pb2.TURN_STATUS_COMPLETED,
    usage: session_pb2.Usage | None = None,
) -> Draft:
    made = event()
    made.turn_ended.status = status
    if usage is not None:
        made.turn_ended.usage.CopyFrom(usage)
    if status == event_pb2.TURN_STATUS_FAILED:
        made.turn_ended.error.code = error_pb2.ERROR_CODE_AGENT_INTERNAL
        made.turn_ended.error.message = "it failed"
    return Draft(Kind.TURN_ENDED, made, RAW)


def session_started(**fields: object) -> Draft:
    made = event()
    for name, value in fields.items():
        setattr(made.session_started, name, value)
    return Draft(Kind.SESSION_STARTED, made, RAW)


def session_updated(**fields: object) -> Draft:
    made = event()
    for name, value in fields.items():
        setattr(made.session_updated, name, value)
    return Draft(Kind.SESSION_UPDATED, made, RAW)
