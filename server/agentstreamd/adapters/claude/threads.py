"""What the normalizer remembers of a message of the model while it comes in."""

from dataclasses import dataclass, field

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.claude.native import whole_surrogates
from agentstreamd.model import json_part, reasoning_part, text_part

TEXT = event_pb2.DELTA_KIND_TEXT
REASONING = event_pb2.DELTA_KIND_REASONING
NO_DELTAS = event_pb2.DELTA_KIND_UNSPECIFIED

UNNAMED = "unnamed"
"""The name of a tool that the model calls without one."""


def message_item_id(native_id: str) -> str:
    """The item id of a message of the model."""
    return f"message:{native_id}"


def call_item_id(tool_use_id: str) -> str:
    """The item id of a tool call."""
    return f"call:{tool_use_id}"


def result_item_id(tool_use_id: str) -> str:
    """The item id of a tool's result."""
    return f"result:{tool_use_id}"


@dataclass(slots=True)
class Halves:
    """Text that comes in pieces, which may cut a surrogate pair in two.

    Attributes:
        held: Half of a surrogate pair, whose other half has not come yet.
    """

    held: str = field(default="", init=False)

    def join(self, text: str) -> str:
        """What can be said of `text` now, which has or completes half of a surrogate pair."""
        text = self.held + text
        self.held = ""
        if text and 0xD800 <= ord(text[-1]) < 0xDC00:
            self.held, text = text[-1], text[:-1]
        return whole_surrogates(text)


@dataclass(slots=True)
class Part(Halves):
    """A content part of a message.

    Attributes:
        index: Its `content_index`.
        kind: The kind of its deltas; `NO_DELTAS` for a part that has none.
        open: No assistant line has confirmed it yet.
        chunks: Its text so far.
        held_raw: The native messages that a held half came in.
        label: Type of the native block, for a part that has no deltas.
        json: The native block, for a part that has no deltas.
    """

    index: int
    kind: event_pb2.DeltaKind.ValueType
    open: bool = True
    chunks: list[str] = field(default_factory=list)
    held_raw: tuple[bytes, ...] = ()
    label: str = ""
    json: str = "{}"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.chunks)

    def build(self) -> item_pb2.ContentPart:
        """The part as it is now."""
        if self.kind == TEXT:
            return text_part(self.text)
        if self.kind == NO_DELTAS:
            return json_part(self.label, self.json)
        text = self.text
        return reasoning_part(
            text,
            item_pb2.REASONING_VISIBILITY_FULL if text else item_pb2.REASONING_VISIBILITY_REDACTED,
        )


@dataclass(slots=True)
class StreamedCall(Halves):
    """A tool call whose arguments are being written.

    Attributes:
        tool_use_id: The native id; also the call id.
        name: The tool.
        open: No assistant line has confirmed it yet.
    """

    tool_use_id: str
    name: str
    open: bool = True


@dataclass(slots=True)
class MessageState:
    """A message of the model that is not complete yet.

    Attributes:
        native_id: The native message id; empty when it is not known.
        item_id: Its item.
        parent_id: The item it stands under; empty on the main thread.
        model: The model that wrote it.
        started: Its item was started.
        parts: Its content parts.
        blocks: Streamed blocks by native index.
        confirmed: Number of blocks that assistant lines have confirmed.
        extras: Parts that follow the blocks when it completes.
        raw: The assistant lines.
        first: The native message that started its item.
        stop_reason: Why the model stopped, once it says so.
        stopped: The model has finished it.
        cut: It broke off.
        answered: One of its calls has a result, so it was whole.
    """

    native_id: str
    item_id: str
    parent_id: str
    model: str = ""
    started: bool = False
    parts: list[Part] = field(default_factory=list)
    blocks: dict[int, Part | StreamedCall] = field(default_factory=dict)
    confirmed: int = 0
    extras: list[item_pb2.ContentPart] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    first: tuple[bytes, ...] = ()
    stop_reason: str = ""
    stopped: bool = False
    cut: bool = False
    answered: bool = False

    def add(self, kind: event_pb2.DeltaKind.ValueType) -> Part:
        """A new part at the end."""
        part = Part(len(self.parts), kind)
        self.parts.append(part)
        return part

    @property
    def open_calls(self) -> list[StreamedCall]:
        """Streamed calls that no assistant line has confirmed."""
        return [b for b in self.blocks.values() if isinstance(b, StreamedCall) and b.open]

    @property
    def settled(self) -> int:
        """Number of parts that assistant lines have confirmed."""
        return sum(not part.open for part in self.parts)

    @property
    def unconfirmed(self) -> bool:
        """Something was streamed that no assistant line has confirmed."""
        return any(part.open for part in self.parts) or bool(self.open_calls)

    @property
    def taken_back(self) -> bool:
        """Nothing of it was confirmed."""
        return self.confirmed == 0

    def build(self) -> item_pb2.Item:
        """The item with the content so far."""
        item = self.head()
        item.content.extend(part.build() for part in self.parts)
        item.content.extend(self.extras)
        return item

    def head(self) -> item_pb2.Item:
        """The item without content."""
        return item_pb2.Item(
            item_id=self.item_id,
            native_item_id=self.native_id,
            parent_id=self.parent_id,
            kind=item_pb2.ITEM_KIND_MESSAGE,
            role=item_pb2.ITEM_ROLE_ASSISTANT,
        )
