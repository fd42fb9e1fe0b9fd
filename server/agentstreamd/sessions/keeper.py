"""The stream keeper: turns drafts of events into a stream that keeps the laws, for every agent.

It is pure: no I/O, no clock (the time is set from outside), no randomness (ids are made by a
function that is passed in). The daemon and the offline replay of transcripts use the same keeper,
so what a replay shows is what a session would have been.

An adapter says what it saw; the keeper fills gaps and closes what is left open:

- an item that was never started gets a synthetic start, one whose parent is not there waits for it,
  for a while, then gets a synthetic parent;
- an assistant's text that came without deltas gets one, deltas that turn out wrong are corrected;
- when a turn ends its requests are resolved, its open items completed as failed, its calls without
  a result answered; what the agent says of them afterwards becomes a status item;
- ids that come again get a suffix.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, item_pb2, session_pb2
from agentstreamd.events.log import Record
from agentstreamd.model import Draft, Kind, event, whole
from agentstreamd.sessions import stored
from agentstreamd.sessions.item_keeper import ItemKeeper
from agentstreamd.sessions.request_keeper import RequestKeeper
from agentstreamd.sessions.requests import (
    REQUESTED,
    Answer,
    Pending,
    Resolved,
    request_of,
    resolution,
    resolved_of,
)
from agentstreamd.sessions.settings import Settings
from agentstreamd.sessions.stamp import Stamper
from agentstreamd.sessions.usage import add_usage


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that has ended.

    Attributes:
        turn_id: The turn.
        sequence: Sequence of its `turn_ended`.
        status: How it ended.
        error_code: Of its error; unspecified where it has none.
    """

    turn_id: str
    sequence: int
    status: event_pb2.TurnStatus.ValueType
    error_code: error_pb2.ErrorCode.ValueType = error_pb2.ERROR_CODE_UNSPECIFIED


@dataclass(slots=True)
class Output:
    """What has come of the drafts since the last `take`.

    Attributes:
        records: Events for the log, in order.
        blobs: Blobs that belong to them: id and content.
        puts: State of the session that belongs to them.
        ended: Turns that have ended.
        asked: Requests that now wait for an answer.
        resolved: Requests that were resolved: id, resolution, sequence.
    """

    records: list[Record]
    blobs: list[tuple[str, bytes]] = field(default_factory=list)
    puts: dict[str, bytes] = field(default_factory=dict)
    ended: list[EndedTurn] = field(default_factory=list)
    asked: list[Pending] = field(default_factory=list)
    resolved: list[tuple[str, Resolved, int]] = field(default_factory=list)


class StreamKeeper:
    """Keeps one session's stream.

    Attributes:
        stamper: Numbers the events.
        started: `session_started` is in the stream.
        ended: `session_ended` is in the stream; nothing follows.
        usage: Sum over all ended turns.
        settings: What `session_started` and `session_updated` have said so far.
        REMEMBERED_KINDS: The kinds of events that `remember` takes note of.
    """

    REMEMBERED_KINDS = frozenset(
        int(kind) for kind in (Kind.ITEM_STARTED, Kind.ITEM_COMPLETED, *REQUESTED)
    )

    def __init__(
        self,
        stamper: Stamper,
        *,
        new_turn_id: Callable[[], str],
        request_timeout_ns: int = 0,
    ) -> None:
        """Keep the stream that `stamper` numbers. Requests expire after the timeout, 0: never."""
        self.stamper = stamper
        self.started = False
        self.ended = False
        self.usage = session_pb2.Usage()
        self.settings = Settings()
        self._items = ItemKeeper(stamper)
        self._requests = RequestKeeper(stamper, self._items, timeout_ns=request_timeout_ns)
        self._new_turn_id = new_turn_id
        self._ended: list[EndedTurn] = []
        self._handlers: dict[Kind, Callable[[Draft], None]] = {
            **self._items.handlers,
            **self._requests.handlers,
            Kind.TURN_STARTED: self._on_turn_started,
            Kind.TURN_ENDED: self._on_turn_ended,
            Kind.SESSION_STARTED: self._on_session_started,
            Kind.SESSION_UPDATED: self._on_session_updated,
            Kind.SESSION_ENDED: self.end_session,
        }

    @property
    def turn_id(self) -> str:
        """The running turn; empty when none runs."""
        return self._items.turn_id

    @property
    def pending(self) -> dict[str, Pending]:
        """Requests that wait for an answer, by request id, oldest first."""
        return self._requests.pending

    @property
    def quiescent(self) -> bool:
        """Nothing is under way: no turn, no open item, no request."""
        return not (self.turn_id or self._items.book.open or self.pending)

    def apply(self, drafts: Iterable[Draft]) -> None:
        """Put drafts of the adapter into the stream. After the end they are left out."""
        handlers = self._handlers
        for draft in drafts:
            if self.ended:
                return
            handler = handlers.get(draft.kind)
            if handler is None:
                self.stamper.stamp(draft, self.turn_id)
            else:
                handler(draft)

    def take(self) -> Output:
        """What has come of all drafts since the last call."""
        stamper = self.stamper
        output = Output(
            stamper.records,
            ended=self._ended,
            asked=self._requests.asked,
            resolved=self._requests.resolved,
        )
        stamper.records = []
        self._ended = []
        self._requests.asked = []
        self._requests.resolved = []
        for blob_id, (reference, content) in stamper.blobs.pending.items():
            output.blobs.append((blob_id, content))
            output.puts[stored.blob_key(blob_id)] = reference.SerializeToString()
        stamper.blobs.pending = {}
        if self.settings.dirty:
            self.settings.dirty = False
            output.puts[stored.SETTINGS] = self.settings.known.SerializeToString()
        return output

    # What the session does

    def start_session(self, payload: event_pb2.SessionStarted) -> None:
        """Begin the stream, where the agent has not done so itself."""
        made = event(synthetic=True)
        made.session_started.CopyFrom(payload)
        self._on_session_started(Draft(Kind.SESSION_STARTED, made))

    def begin_turn(
        self,
        turn_id: str,
        trigger: event_pb2.TurnTrigger.ValueType,
        message: item_pb2.Item,
        *,
        client_message_id: str = "",
        metadata_json: str = "",
    ) -> None:
        """Begin a turn with a client's message; no turn may be running."""
        made = event(by_daemon=True)
        made.turn_started.trigger = trigger
        made.turn_started.client_message_id = client_message_id
        self._start_turn(turn_id, Draft(Kind.TURN_STARTED, made))
        self.add_message(message, metadata_json=metadata_json)

    def add_message(self, message: item_pb2.Item, *, metadata_json: str = "") -> None:
        """Put a client's message into the stream."""
        for draft in whole(message, metadata_json=metadata_json):
            draft.event.source = event_pb2.EVENT_SOURCE_DAEMON
            self._handlers[draft.kind](draft)

    def end_turn(
        self,
        status: event_pb2.TurnStatus.ValueType,
        error: error_pb2.Error | None = None,
    ) -> None:
        """End the running turn, since the agent will not."""
        made = event(synthetic=True)
        made.turn_ended.status = status
        if error is not None:
            made.turn_ended.error.CopyFrom(error)
        self._on_turn_ended(Draft(Kind.TURN_ENDED, made))

    def resolve(
        self,
        request_id: str,
        outcome: interaction_pb2.RequestOutcome.ValueType,
        by: interaction_pb2.ResolvedBy.ValueType,
        *,
        answer: Answer | None = None,
        reason: str = "",
        synthetic: bool = False,
    ) -> bool:
        """Resolve a request; False when it is not pending (any more)."""
        pending = self.pending.get(request_id)
        if pending is None or self.ended:
            return False
        draft = resolution(pending, outcome, by, answer=answer, reason=reason, synthetic=synthetic)
        self._requests.settle(pending, draft)
        return True

    def update(self, payload: event_pb2.SessionUpdated) -> None:
        """Say what a client or the session itself changed; nothing once the session has ended."""
        if self.ended:
            return
        made = event(by_daemon=True)
        made.session_updated.CopyFrom(payload)
        self._on_session_updated(Draft(Kind.SESSION_UPDATED, made))

    def end_session(self, draft: Draft) -> None:
        """End the stream with a `session_ended`; what is open is closed before it."""
        if self.turn_id:
            self.end_turn(event_pb2.TURN_STATUS_INTERRUPTED)
        self._close(None, "the session ended")
        self.stamper.stamp(draft, "")
        self.ended = True

    def restore(self, past: event_pb2.Event) -> None:
        """Take note of an event that is in the log already, to go on after it."""
        stamper = self.stamper
        stamper.sequence = past.sequence
        stamper.set_time(past.time.ToNanoseconds())
        stamper.native_session_id = past.native_session_id or stamper.native_session_id
        which = past.WhichOneof("payload")
        if which is None:
            return
        kind = Kind[which.upper()]
        match kind:
            case Kind.SESSION_STARTED:
                self.started = True
                self.settings.begin(past.session_started)
            case Kind.SESSION_UPDATED:
                self.settings.take(past.session_updated)
            case Kind.SESSION_ENDED:
                self.ended = True
            case Kind.TURN_STARTED:
                self._items.turn_id = past.turn_id
            case Kind.TURN_ENDED:
                self._items.turn_id = ""
                add_usage(self.usage, past.turn_ended.usage)
            case Kind.ITEM_STARTED | Kind.ITEM_DELTA | Kind.ITEM_COMPLETED:
                self._items.restore(kind, past)
            case Kind.PERMISSION_REQUESTED | Kind.QUESTION_REQUESTED | Kind.FORM_REQUESTED:
                request = request_of(kind, past)
                self._requests.restore(
                    Pending(
                        kind,
                        request,
                        request.request_id,
                        past.sequence,
                        past.time.ToNanoseconds(),
                        past.turn_id,
                    )
                )
            case Kind.PERMISSION_RESOLVED | Kind.QUESTION_RESOLVED | Kind.FORM_RESOLVED:
                self.pending.pop(resolved_of(kind, past).request_id, None)
            case _:
                pass

    def remember(self, past: event_pb2.Event) -> None:
        """Take note of an event of before a moment when nothing was under way: ids are taken."""
        match past.WhichOneof("payload"):
            case "item_started":
                self._items.book.known.put(past.item_started.item.item_id, None)
            case "item_completed":
                self._items.remember(past.item_completed.item, past.turn_id)
            case "permission_requested" | "question_requested" | "form_requested" as which:
                self._requests.remember(request_of(Kind[which.upper()], past).request_id)
            case _:
                pass

    def close_all(self, reason: str) -> None:
        """Close what is still open, outside turns too."""
        self._close(None, reason)

    # Session and turns

    def _on_session_started(self, draft: Draft) -> None:
        payload = draft.event.session_started
        if self.started:
            # An agent that says so late (it was started with the first message) only adds to it.
            known = event_pb2.SessionUpdated(permission_mode=payload.permission_mode)
            for name in ("model", "mode", "agent_version"):
                if getattr(payload, name):
                    setattr(known, name, getattr(payload, name))
            if draft.event.native_session_id:
                known.native_session_id = draft.event.native_session_id
            draft.event.session_updated.CopyFrom(known)
            draft.kind = Kind.SESSION_UPDATED
            self._on_session_updated(draft)
            return
        self.started = True
        self.settings.begin(payload)
        if draft.event.native_session_id:
            self.stamper.native_session_id = draft.event.native_session_id
        self.stamper.stamp(draft, "")

    def _on_session_updated(self, draft: Draft) -> None:
        changed = self.settings.changes(draft.event.session_updated)
        if changed is None:
            return
        draft.event.session_updated.CopyFrom(changed)
        if changed.native_session_id:
            self.stamper.native_session_id = changed.native_session_id
        self.stamper.stamp(draft, self.turn_id)

    def _on_turn_started(self, draft: Draft) -> None:
        if not self.turn_id:
            self._start_turn(self._new_turn_id(), draft)

    def _start_turn(self, turn_id: str, draft: Draft) -> None:
        self._items.turn_id = turn_id
        self.stamper.stamp(draft, turn_id)

    def _on_turn_ended(self, draft: Draft) -> None:
        payload = draft.event.turn_ended
        turn_id = self.turn_id
        if not turn_id:
            self._items.say("turn_ended", "the agent ended a turn that was not running", draft)
            return
        self._close(turn_id, "the turn ended")
        add_usage(self.usage, payload.usage)
        sequence = self.stamper.stamp(draft, turn_id)
        self._items.turn_id = ""
        self._ended.append(EndedTurn(turn_id, sequence, payload.status, payload.error.code))

    def _close(self, turn_id: str | None, reason: str) -> None:
        """Close what is open of a turn (of everything, for None)."""
        self._items.release_held()
        self._requests.cancel_all(turn_id, reason)
        self._items.close(turn_id)
