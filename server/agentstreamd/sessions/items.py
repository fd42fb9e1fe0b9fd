"""What the keeper remembers of a stream's items: which are open, which ids are taken."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentstream.v1 import event_pb2, item_pb2

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

REMEMBERED_IDS = 65_536
"""Ids of items, calls and requests are remembered up to this many, the newest ones: an id that an
agent uses again after so many others is taken for a new one."""


class Remembered(Generic[Key, Value]):
    """A map of bounded size that forgets what was put in first."""

    def __init__(self, limit: int = REMEMBERED_IDS) -> None:
        """Remember at most `limit` entries."""
        self._limit = limit
        self._entries: dict[Key, Value] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether `key` is remembered."""
        return key in self._entries

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value of `key`, None when it is not remembered."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Remember `key`; the oldest entry goes when there are too many."""
        entries = self._entries
        entries[key] = value
        if len(entries) > self._limit:
            del entries[next(iter(entries))]


_PART_OF = {
    event_pb2.DELTA_KIND_TEXT: "text",
    event_pb2.DELTA_KIND_REASONING: "reasoning",
    event_pb2.DELTA_KIND_TOOL_OUTPUT: "tool_result",
    event_pb2.DELTA_KIND_TOOL_ARGUMENTS: "tool_call",
}


@dataclass(slots=True)
class OpenItem:
    """An item that is started and not completed.

    Attributes:
        item: The item as it was started.
        turn_id: The turn it was started in; empty outside a turn.
        texts: Pieces of text by content index, as deltas brought them.
        kinds: What the deltas of a content index add to.
    """

    item: item_pb2.Item
    turn_id: str
    texts: dict[int, list[str]] = field(default_factory=dict)
    kinds: dict[int, event_pb2.DeltaKind.ValueType] = field(default_factory=dict)

    def take_delta(self, delta: event_pb2.ItemDelta) -> None:
        """Remember a delta."""
        index = delta.content_index
        pieces = self.texts.get(index)
        if pieces is None:
            self.texts[index] = [delta.text]
            self.kinds[index] = delta.kind
        elif delta.operation == event_pb2.DELTA_OPERATION_REPLACE:
            self.texts[index] = [delta.text]
        else:
            pieces.append(delta.text)

    def text(self, index: int) -> str:
        """The text that the deltas of `index` give."""
        return "".join(self.texts.get(index, ()))

    def is_like(self, item: item_pb2.Item) -> bool:
        """Whether `item` is of the same kind and role."""
        return (item.kind, item.role) == (self.item.kind, self.item.role)

    def contradicts(self, item: item_pb2.Item) -> bool:
        """Whether `item`, as completed, is of another kind or has other parts than was streamed."""
        if not self.is_like(item):
            return True
        if item.status == item_pb2.ITEM_STATUS_FAILED and not item.content:
            return False
        return any(
            index >= len(item.content) or item.content[index].WhichOneof("part") != _PART_OF[kind]
            for index, kind in self.kinds.items()
        )

    def content_so_far(self, call_id: str) -> item_pb2.Item:
        """The item with the content that the deltas gave it, for one that is cut off.

        `call_id` is the call that a cut tool result belongs to.
        """
        item = item_pb2.Item()
        item.CopyFrom(self.item)
        for index in range(max([len(item.content) - 1, *self.texts], default=-1) + 1):
            part = item.content[index] if index < len(item.content) else item.content.add()
            text = self.text(index)
            match self.kinds.get(index):
                case event_pb2.DELTA_KIND_TEXT:
                    part.text.text = text
                case event_pb2.DELTA_KIND_REASONING:
                    part.reasoning.text = text
                    if not part.reasoning.visibility:
                        part.reasoning.visibility = item_pb2.REASONING_VISIBILITY_FULL
                case event_pb2.DELTA_KIND_TOOL_OUTPUT:
                    part.tool_result.output = text
                case _:
                    # Half of the arguments is no JSON: a call that was cut off has none.
                    if part.WhichOneof("part") is None:
                        part.text.text = ""
        if item.kind == item_pb2.ITEM_KIND_TOOL_RESULT:
            if not item.content or item.content[0].WhichOneof("part") != "tool_result":
                del item.content[:]
                item.content.add()
            result = item.content[0].tool_result
            result.call_id = result.call_id or call_id
            result.is_error = True
        if item.kind == item_pb2.ITEM_KIND_TOOL_CALL:
            call = (item.content or [item.content.add()])[0].tool_call
            call.call_id = call.call_id or call_id
            call.name = call.name or "unknown"
        return item


@dataclass(slots=True)
class Call:
    """A tool call.

    Attributes:
        item_id: Its item.
        turn_id: The turn it was made in; empty outside a turn.
        answered: Its result is there.
    """

    item_id: str
    turn_id: str
    answered: bool = False


class ItemBook:
    """The items of one stream, as far as they must be remembered.

    Attributes:
        open: Items in progress, by id, in the order they were started.
        known: Ids that are taken.
        alias: For ids that the agent used again: the id its newest item got.
        calls: Calls by call id.
        unanswered: Call ids without a result, in order.
        call_alias: For call ids that the agent used again: what its newest call got.
        call_of_item: Call id of a tool call's item.
    """

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.open: dict[str, OpenItem] = {}
        self.known: Remembered[str, None] = Remembered()
        self.alias: Remembered[str, str] = Remembered(4096)
        self.calls: Remembered[str, Call] = Remembered()
        self.unanswered: dict[str, None] = {}
        self.call_alias: Remembered[str, str] = Remembered(4096)
        self.call_of_item: Remembered[str, str] = Remembered(4096)

    def current(self, item_id: str) -> str:
        """The id in the stream of what the agent calls `item_id`."""
        return self.alias.get(item_id) or item_id

    def current_call(self, call_id: str) -> str:
        """The call id in the stream of what the agent calls `call_id`."""
        return self.call_alias.get(call_id) or call_id

    def fresh(self, item_id: str) -> str:
        """`item_id`, or with a suffix where that is taken."""
        return _unused(item_id, self.known)

    def fresh_call(self, call_id: str) -> str:
        """`call_id`, or with a suffix where that is taken."""
        return _unused(call_id, self.calls)

    def start(self, item: item_pb2.Item, turn_id: str) -> OpenItem:
        """An item was started."""
        kept = item_pb2.Item()
        kept.CopyFrom(item)
        opened = OpenItem(kept, turn_id)
        self.open[item.item_id] = opened
        self.known.put(item.item_id, None)
        self.note_call(item, turn_id)
        return opened

    def note_call(self, item: item_pb2.Item, turn_id: str) -> None:
        """Remember the call of a tool call's item, once its call id is known."""
        if item.kind != item_pb2.ITEM_KIND_TOOL_CALL or not item.content:
            return
        call_id = item.content[0].tool_call.call_id
        if call_id and call_id not in self.calls:
            self.calls.put(call_id, Call(item.item_id, turn_id))
            self.unanswered[call_id] = None
            self.call_of_item.put(item.item_id, call_id)

    def note_result(self, item: item_pb2.Item) -> None:
        """A tool result was completed: its call is answered."""
        if item.kind == item_pb2.ITEM_KIND_TOOL_RESULT and item.content:
            call_id = item.content[0].tool_result.call_id
            call = self.calls.get(call_id)
            if call is not None:
                call.answered = True
            self.unanswered.pop(call_id, None)


def _unused(name: str, taken: "Remembered[str, Value]") -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}~{number}" in taken:
        number += 1
    return f"{name}~{number}"
