"""A stream keeper by itself: what a test feeds it, and the stream that comes of it."""

from collections.abc import Iterator
from itertools import count

from agentstream.v1 import agent_pb2, event_pb2, item_pb2
from agentstreamd.events.log import Record
from agentstreamd.laws import check
from agentstreamd.model import Draft, Kind, event, text_part
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.stamp import Stamper

RAW = (b'{"native":1}',)


class Stream:
    """A keeper in a turn, and what it made.

    Attributes:
        events: The stream so far.
        blobs: Contents that moved out of events, by id.
    """

    def __init__(self, *, turn: bool = True, timeout_ns: int = 0) -> None:
        self.events: list[event_pb2.Event] = []
        self.blobs: dict[str, bytes] = {}
        stamper = Stamper("s", "uid", store_raw=True)
        stamper.listener = self._listen
        stamper.set_time(1)
        ids: Iterator[int] = count(1)
        self.keeper = StreamKeeper(
            stamper, new_turn_id=lambda: f"turn{next(ids)}", request_timeout_ns=timeout_ns
        )
        self.keeper.start_session(
            event_pb2.SessionStarted(
                agent="mock", permission_mode=agent_pb2.PERMISSION_MODE_DEFAULT
            )
        )
        if turn:
            made = event()
            made.turn_started.trigger = event_pb2.TURN_TRIGGER_AGENT
            self.feed(Draft(Kind.TURN_STARTED, made, RAW))
        self.begin = len(self.events)

    def _listen(self, stamped: event_pb2.Event, record: Record) -> None:
        kept = event_pb2.Event.FromString(record.event)
        kept.MergeFromString(record.raw)
        self.events.append(kept)

    def feed(self, *drafts: Draft) -> None:
        self.keeper.apply(drafts)
        self.blobs.update(self.keeper.take().blobs)

    def end_turn(self) -> None:
        made = event()
        made.turn_ended.status = event_pb2.TURN_STATUS_COMPLETED
        self.feed(Draft(Kind.TURN_ENDED, made, RAW))

    def end(self) -> None:
        """End the session and check the whole stream."""
        draft = Draft(Kind.SESSION_ENDED, event(synthetic=True))
        draft.event.session_ended.reason = event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT
        self.keeper.end_session(draft)
        assert check(self.events, complete=True, raw=True) == []

    @property
    def since(self) -> list[event_pb2.Event]:
        """The events since the turn began."""
        return self.events[self.begin :]

    @property
    def story(self) -> list[str]:
        """The events since the turn began, in a word each; `*` for synthetic ones."""
        return [_word(one) for one in self.since]

    def completed(self, item_id: str) -> item_pb2.Item:
        (found,) = [
            one.item_completed.item
            for one in self.events
            if one.item_completed.item.item_id == item_id
        ]
        return found


def _word(of: event_pb2.Event) -> str:
    which = of.WhichOneof("payload") or ""
    mark = "*" if of.synthetic else ""
    match which:
        case "item_started":
            return f"+{of.item_started.item.item_id}{mark}"
        case "item_delta":
            replaces = of.item_delta.operation == event_pb2.DELTA_OPERATION_REPLACE
            text = of.item_delta.text
            return f"{of.item_delta.item_id}{'=' if replaces else ':'}{text}{mark}"
        case "item_completed":
            item = of.item_completed.item
            failed = "!" if item.status == item_pb2.ITEM_STATUS_FAILED else ""
            return f"-{item.item_id}{failed}{mark}"
        case _:
            return f"{which}{mark}"


def assistant(item_id: str, *texts: str, parent_id: str = "") -> item_pb2.Item:
    return item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_MESSAGE,
        role=item_pb2.ITEM_ROLE_ASSISTANT,
        content=[text_part(text) for text in texts],
    )
