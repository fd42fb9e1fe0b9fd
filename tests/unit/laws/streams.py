"""A stream that keeps all laws, to be broken on purpose."""

import hashlib
from collections.abc import Callable

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2, item_pb2

Event = event_pb2.Event

AGENT = event_pb2.EVENT_SOURCE_AGENT
DAEMON = event_pb2.EVENT_SOURCE_DAEMON


class Stream:
    """Builds events with everything that every event needs."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.turn_id = ""

    def add(self, *, source: event_pb2.EventSource.ValueType = AGENT, turn: bool = True) -> Event:
        event = Event(
            event_id=f"event-{len(self.events) + 1}",
            sequence=len(self.events) + 1,
            session_id="session",
            source=source,
            turn_id=self.turn_id if turn else "",
        )
        event.time.FromNanoseconds(len(self.events) * 1000)
        event.raw.add(text="{}")
        self.events.append(event)
        return event

    def session_started(self) -> None:
        started = self.add(source=DAEMON).session_started
        started.agent = "mock"
        started.permission_mode = agent_pb2.PERMISSION_MODE_DEFAULT

    def session_ended(self) -> None:
        ended = self.add(source=DAEMON).session_ended
        ended.reason = event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT

    def turn_started(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.add(source=DAEMON).turn_started.trigger = event_pb2.TURN_TRIGGER_CLIENT

    def turn_ended(self) -> None:
        self.add().turn_ended.status = event_pb2.TURN_STATUS_COMPLETED
        self.turn_id = ""

    def started(
        self,
        item_id: str,
        kind: item_pb2.ItemKind.ValueType,
        role: item_pb2.ItemRole.ValueType,
        *,
        parent_id: str = "",
        turn: bool = True,
    ) -> None:
        item = self.add(turn=turn).item_started.item
        item.item_id, item.kind, item.role, item.parent_id = item_id, kind, role, parent_id
        item.status = item_pb2.ITEM_STATUS_IN_PROGRESS

    def completed(
        self,
        item_id: str,
        kind: item_pb2.ItemKind.ValueType,
        role: item_pb2.ItemRole.ValueType,
        *parts: item_pb2.ContentPart,
        parent_id: str = "",
        turn: bool = True,
        status: item_pb2.ItemStatus.ValueType = item_pb2.ITEM_STATUS_COMPLETED,
    ) -> item_pb2.Item:
        item = self.add(turn=turn).item_completed.item
        item.item_id, item.kind, item.role, item.parent_id = item_id, kind, role, parent_id
        item.status = status
        item.content.extend(parts)
        return item

    def delta(
        self, item_id: str, index: int, kind: event_pb2.DeltaKind.ValueType, text: str
    ) -> event_pb2.ItemDelta:
        delta = self.add().item_delta
        delta.item_id, delta.content_index, delta.kind, delta.text = item_id, index, kind, text
        delta.operation = event_pb2.DELTA_OPERATION_APPEND
        return delta


MESSAGE = item_pb2.ITEM_KIND_MESSAGE
CALL = item_pb2.ITEM_KIND_TOOL_CALL
RESULT = item_pb2.ITEM_KIND_TOOL_RESULT
STATUS = item_pb2.ITEM_KIND_STATUS
ASSISTANT = item_pb2.ITEM_ROLE_ASSISTANT
TOOL = item_pb2.ITEM_ROLE_TOOL
SYSTEM = item_pb2.ITEM_ROLE_SYSTEM
FAILED = item_pb2.ITEM_STATUS_FAILED

LONG = "long " * 1000


def text(value: str) -> item_pb2.ContentPart:
    return item_pb2.ContentPart(text=item_pb2.TextPart(text=value))


def lawful() -> list[Event]:
    """Two turns with everything in them, and an item that runs beside them."""
    stream = Stream()
    stream.session_started()
    stream.started("background", STATUS, SYSTEM)
    stream.turn_started("turn-1")
    stream.started("user", MESSAGE, item_pb2.ITEM_ROLE_USER)
    stream.completed("user", MESSAGE, item_pb2.ITEM_ROLE_USER, text("go"))
    stream.started("taken-back", MESSAGE, ASSISTANT)
    stream.delta("taken-back", 0, event_pb2.DELTA_KIND_TEXT, "Hel")
    stream.completed(
        "taken-back", MESSAGE, ASSISTANT, text("Hel"), status=FAILED
    ).superseded_by = "message"
    _message(stream)
    _tool(stream)
    _requests(stream)
    error = stream.add().error
    error.message, error.code = "slow down", error_pb2.ERROR_CODE_RATE_LIMITED
    stream.turn_ended()
    stream.add(source=DAEMON).session_updated.title = "a title"
    stream.turn_started("turn-2")
    stream.completed(
        "background",
        STATUS,
        SYSTEM,
        item_pb2.ContentPart(status=item_pb2.StatusPart(label="task_done")),
        turn=False,
    )
    stream.turn_ended()
    stream.session_ended()
    return stream.events


def _message(stream: Stream) -> None:
    stream.started("message", MESSAGE, ASSISTANT)
    stream.delta("message", 0, event_pb2.DELTA_KIND_REASONING, "hm")
    stream.delta("message", 1, event_pb2.DELTA_KIND_TEXT, "Hel")
    stream.delta("message", 1, event_pb2.DELTA_KIND_TEXT, "o")
    stream.delta("message", 2, event_pb2.DELTA_KIND_TEXT, LONG)
    replacing = stream.delta("message", 1, event_pb2.DELTA_KIND_TEXT, "Hello 😀")
    replacing.operation = event_pb2.DELTA_OPERATION_REPLACE
    stream.events[-1].source = DAEMON
    stream.events[-1].synthetic = True
    reasoning = item_pb2.ContentPart()
    reasoning.reasoning.text = "hm"
    reasoning.reasoning.visibility = item_pb2.REASONING_VISIBILITY_FULL
    external = text(LONG[:100])
    external.external.blob_id = "blob"
    external.external.size_bytes = len(LONG)
    external.external.sha256 = hashlib.sha256(LONG.encode()).hexdigest()
    external.external.media_type = "text/plain; charset=utf-8"
    stream.completed("message", MESSAGE, ASSISTANT, reasoning, text("Hello 😀"), external)


def _tool(stream: Stream) -> None:
    call = item_pb2.ContentPart()
    call.tool_call.name = "Bash"
    call.tool_call.arguments_json = '{"command":"ls"}'
    call.tool_call.call_id = "call-1"
    stream.started("call", CALL, ASSISTANT, parent_id="message")
    stream.completed("call", CALL, ASSISTANT, call, parent_id="message")
    stream.started("result", RESULT, TOOL, parent_id="call")
    stream.delta("result", 0, event_pb2.DELTA_KIND_TOOL_OUTPUT, "some of")
    result = item_pb2.ContentPart()
    result.tool_result.call_id = "call-1"
    result.tool_result.output = "all of it"
    stream.completed("result", RESULT, TOOL, result, parent_id="call")


def _requests(stream: Stream) -> None:
    permission = stream.add().permission_requested
    permission.request_id = "permission"
    permission.kind = interaction_pb2.PERMISSION_KIND_COMMAND
    permission.parent_id = "call"
    permission.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_ACCEPT)
    permission.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_REJECT)
    question = stream.add().question_requested
    question.request_id = "question"
    question.questions.add(question_id="q", text="Password?", free_text=True, secret=True)
    form = stream.add().form_requested
    form.request_id = "form"
    form.schema_json = "{}"
    resolved = stream.add(source=DAEMON).permission_resolved
    resolved.request_id = "permission"
    resolved.outcome = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    resolved.resolved_by = interaction_pb2.RESOLVED_BY_CLIENT
    resolved.answer.decision = interaction_pb2.PERMISSION_DECISION_ACCEPT
    answered = stream.add(source=DAEMON).question_resolved
    answered.request_id = "question"
    answered.outcome = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    answered.resolved_by = interaction_pb2.RESOLVED_BY_CLIENT
    answered.answer.answered.answers.add(question_id="q")
    cancelled = stream.add(source=DAEMON)
    cancelled.synthetic = True
    cancelled.form_resolved.request_id = "form"
    cancelled.form_resolved.outcome = interaction_pb2.REQUEST_OUTCOME_CANCELLED
    cancelled.form_resolved.resolved_by = interaction_pb2.RESOLVED_BY_DAEMON


def find(events: list[Event], payload: str, having: Callable[[Event], bool]) -> Event:
    """The first event with that payload of which `having` holds."""
    return next(
        event for event in events if event.WhichOneof("payload") == payload and having(event)
    )


def renumber(events: list[Event]) -> list[Event]:
    """Give events that were added, removed or moved their sequences, ids and times anew."""
    for number, event in enumerate(events, start=1):
        event.sequence = number
        event.event_id = f"event-{number}"
        event.time.FromNanoseconds(number * 1000)
    return events
