"""Messages and what they are made of: text, reasoning, pictures, files."""

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.opencode import files
from agentstreamd.adapters.opencode.native import (
    Event,
    JsonObject,
    dict_in,
    dump,
    number_in,
    text_in,
    whole_text,
)
from agentstreamd.adapters.opencode.threads import Message, Slot, Thread
from agentstreamd.model import (
    Draft,
    completed,
    delta,
    reasoning_part,
    started,
    text_part,
    whole,
)

_TEXT = event_pb2.DELTA_KIND_TEXT
_REASONING = event_pb2.DELTA_KIND_REASONING
_KINDS = {"text": _TEXT, "reasoning": _REASONING}
_TOLD = (
    "parentID",
    "agent",
    "providerID",
    "modelID",
    "variant",
    "finish",
    "cost",
    "tokens",
    "summary",
    "structured",
    "error",
)


class Messages:
    """Messages of all threads of a session.

    Attributes:
        reconnected: The connection was lost once: what began before may have gaps.
    """

    def __init__(self) -> None:
        self.reconnected = False
        self._pending: tuple[Message, list[item_pb2.ContentPart], list[bytes]] | None = None
        # The first half of a surrogate pair that a delta ended with, by part.
        self._halves: dict[str, str] = {}

    def lost_connection(self, threads: list[Thread]) -> None:
        """Deltas may have been missed from here on."""
        self.reconnected = True
        for thread in threads:
            for message in thread.messages.values():
                for slot in message.slots.values():
                    slot.gapped = slot.gapped or slot.final is None

    def begin(self, message: Message, raw: tuple[bytes, ...], *, stub: bool = False) -> list[Draft]:
        """Start the item of an assistant's message, once."""
        if message.started:
            return []
        message.started = True
        item = self._item(message)
        return [started(item, raw, synthetic=stub)]

    def complete(self, message: Message, info: JsonObject, raw: bytes) -> list[Draft]:
        """Complete the item of an assistant's message."""
        item = self._item(message)
        sources = []
        for slot in message.slots.values():
            text = slot.final if slot.final is not None else slot.text
            made = text_part(text) if slot.kind == _TEXT else reasoning_part(text)
            item.content.append(made)
            if slot.raw:
                sources.append(slot.raw)
        told = {key: info[key] for key in _TOLD if key in info}
        return [
            completed(
                item,
                (*sources, *message.steps, raw),
                failed=message.broke_off,
                metadata_json=dump(told) if told else "",
            )
        ]

    def on_delta(self, message: Message, event: Event) -> list[Draft]:
        """Pass on a delta of a text or reasoning part."""
        said = event.properties
        part_id, text = text_in(said, "partID"), said.get("delta")
        if not isinstance(text, str) or message.completed:
            return []
        slot = message.slots.get(part_id)
        if slot is None:
            slot = self._slot(message, part_id, _TEXT)
            slot.gapped = self.reconnected
        if slot.gapped or slot.final is not None:
            return []
        text = self._joined(part_id, text)
        return self._grow(message, slot, text, (event.native,)) if text else []

    def on_text(self, message: Message, event: Event, part: JsonObject) -> list[Draft]:
        """Take a snapshot of a text or reasoning part of an assistant's message."""
        part_id, text = text_in(part, "id"), text_in(part, "text")
        slot = message.slots.get(part_id)
        if slot is None:
            if message.completed:
                return []
            slot = self._slot(message, part_id, _KINDS[text_in(part, "type")])
            slot.gapped = bool(event.properties.get("fetched"))
        elif not slot.text and slot.final is None:
            slot.kind = _KINDS[text_in(part, "type")]
        raw = (event.native,)
        if number_in(dict_in(part, "time"), "end") is None:
            said = event.properties.get("delta")  # older servers send their deltas so
            grown = whole_text(said) if isinstance(said, str) else text[len(slot.text) :]
            if slot.gapped or not grown or not text.startswith(slot.text):
                return []
            return self._grow(message, slot, grown, raw)
        if slot.final is not None and len(slot.final) >= len(text):
            return []
        slot.final, slot.raw, slot.gapped = text, event.native, False
        if message.completed or not text.startswith(slot.text) or text == slot.text:
            return []  # what does not join is put right where the message completes
        return self._grow(message, slot, text[len(slot.text) :], raw, synthetic=True)

    @property
    def incoming(self) -> Message | None:
        """The user's message whose parts are coming."""
        return self._pending[0] if self._pending is not None else None

    def on_user_part(self, message: Message, event: Event, part: JsonObject) -> None:
        """Take a part of a user's message; it is shown when the message is whole."""
        part_id = text_in(part, "id")
        if part_id in message.shown:
            return
        message.shown.add(part_id)
        if message.ours:
            return
        if self._pending is None:
            self._pending = (message, [], [])
        self._pending[1].append(_content(part))
        self._pending[2].append(event.native)

    def close_user(self) -> list[Draft]:
        """Show the user's message whose parts have all come."""
        if self._pending is None:
            return []
        (message, content, raw), self._pending = self._pending, None
        item = self._item(message)
        if message.started:  # the server appends to an old message when its id comes again
            item.item_id = f"{message.message_id}:{len(message.shown)}"
        message.started = message.completed = True
        item.content.extend(content)
        return whole(item, tuple(raw))

    def on_added(self, message: Message, event: Event, part: JsonObject) -> list[Draft]:
        """What OpenCode itself puts into the conversation."""
        if text_in(part, "id") in message.shown:
            return []
        message.shown.add(text_in(part, "id"))
        item = item_pb2.Item(
            item_id=text_in(part, "id"),
            native_item_id=text_in(part, "id"),
            parent_id=message.thread.parent_item,
            kind=item_pb2.ITEM_KIND_SYSTEM,
            role=item_pb2.ITEM_ROLE_SYSTEM,
        )
        item.content.append(_content(part))
        return whole(item, (event.native,))

    def _slot(self, message: Message, part_id: str, kind: event_pb2.DeltaKind.ValueType) -> Slot:
        slot = Slot(len(message.slots), kind)
        message.slots[part_id] = slot
        return slot

    def _grow(
        self,
        message: Message,
        slot: Slot,
        text: str,
        raw: tuple[bytes, ...],
        *,
        synthetic: bool = False,
    ) -> list[Draft]:
        slot.text += text
        return [delta(message.message_id, slot.index, slot.kind, text, raw, synthetic=synthetic)]

    def _joined(self, part_id: str, text: str) -> str:
        """The text, with a half pair of surrogates at its end held back for the next one."""
        text = self._halves.pop(part_id, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[part_id] = text[-1]
            text = text[:-1]
        return whole_text(text)

    def _item(self, message: Message) -> item_pb2.Item:
        if message.summary:
            kind, role = item_pb2.ITEM_KIND_SYSTEM, item_pb2.ITEM_ROLE_SYSTEM
        elif message.role == "user":
            kind, role = item_pb2.ITEM_KIND_MESSAGE, item_pb2.ITEM_ROLE_USER
        else:
            kind, role = item_pb2.ITEM_KIND_MESSAGE, item_pb2.ITEM_ROLE_ASSISTANT
        return item_pb2.Item(
            item_id=message.message_id,
            native_item_id=message.message_id,
            parent_id=message.thread.parent_item,
            kind=kind,
            role=role,
        )


def _content(part: JsonObject) -> item_pb2.ContentPart:
    """A part of a user's message: text, a picture, a file."""
    if text_in(part, "type") == "text":
        return text_part(text_in(part, "text"))
    return files.file_part(part)
