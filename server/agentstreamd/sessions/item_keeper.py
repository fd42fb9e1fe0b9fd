"""The part of the stream keeper that keeps items: each started once, grown, completed once."""

from collections.abc import Callable, Iterable

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.model import (
    Draft,
    Kind,
    completed,
    delta,
    json_part,
    started,
    status_item,
    text_part,
    tool_call_item,
    tool_result_item,
    whole,
)
from agentstreamd.sessions.items import ItemBook, OpenItem, Remembered
from agentstreamd.sessions.sizes import MAX_DELTA_CHARACTERS
from agentstreamd.sessions.stamp import Stamper

HELD_DRAFTS = 1024
"""Drafts that wait for their parent, at most; then the parents are made up."""

_DELTAS_OF = {
    item_pb2.ITEM_KIND_MESSAGE: (event_pb2.DELTA_KIND_TEXT, event_pb2.DELTA_KIND_REASONING),
    item_pb2.ITEM_KIND_SYSTEM: (event_pb2.DELTA_KIND_TEXT, event_pb2.DELTA_KIND_REASONING),
    item_pb2.ITEM_KIND_TOOL_CALL: (event_pb2.DELTA_KIND_TOOL_ARGUMENTS,),
    item_pb2.ITEM_KIND_TOOL_RESULT: (event_pb2.DELTA_KIND_TOOL_OUTPUT,),
}

_ENDED_BEFORE_RESULT = "The turn ended before the tool returned."


class ItemKeeper:
    """Keeps the items of one stream.

    Attributes:
        turn_id: The running turn; empty when none runs. Set by the stream keeper.
        book: Items, as far as they must be remembered.
        handlers: What to do with each kind of draft about items.
    """

    def __init__(self, stamper: Stamper) -> None:
        """Keep the items of the stream that `stamper` numbers."""
        self.turn_id = ""
        self.book = ItemBook()
        self.handlers: dict[Kind, Callable[[Draft], None]] = {
            Kind.ITEM_DELTA: self._on_delta,
            Kind.ITEM_STARTED: self._on_item_started,
            Kind.ITEM_COMPLETED: self._on_item_completed,
        }
        self._stamper = stamper
        self._stamp = stamper.stamp
        self._held: dict[str, list[Draft]] = {}
        self._held_items: dict[str, str] = {}
        self._held_count = 0
        self._late: Remembered[str, None] = Remembered(1024)

    def remember(self, item: item_pb2.Item, turn_id: str) -> None:
        """Take note of an item that was completed before a moment when nothing was under way."""
        self.book.note_call(item, turn_id)
        self.book.note_result(item)

    def restore(self, kind: Kind, past: event_pb2.Event) -> None:
        """Take note of an event about an item that is in the log already."""
        book = self.book
        if kind is Kind.ITEM_STARTED:
            book.start(past.item_started.item, past.turn_id)
        elif kind is Kind.ITEM_DELTA:
            opened = book.open.get(past.item_delta.item_id)
            if opened is not None:
                opened.take_delta(past.item_delta)
        else:
            item = past.item_completed.item
            book.open.pop(item.item_id, None)
            book.note_call(item, past.turn_id)
            book.note_result(item)

    def _on_item_started(self, draft: Draft) -> None:
        book = self.book
        item = draft.event.item_started.item
        current = book.current(item.item_id)
        opened = book.open.get(current)
        if opened is not None and opened.is_like(item):
            return
        if self._is_late_result(item):
            self._late.put(item.item_id, None)
            return
        if item.parent_id:
            parent = book.current(item.parent_id)
            if parent not in book.known:
                self._hold(parent, item.item_id, draft)
                return
            item.parent_id = parent
        if opened is not None:
            self._supersede(opened, item.item_id, draft)
            return
        if current in book.known:
            current = book.fresh(item.item_id)
            book.alias.put(item.item_id, current)
        item.item_id = current
        self._begin(draft)
        self._release(current)

    def _begin(self, draft: Draft) -> OpenItem:
        item = draft.event.item_started.item
        self._settle_call(item)
        turn_id = self.turn_id
        # First: what is large moves out of the event as it is stamped.
        opened = self.book.start(item, turn_id)
        self._stamp(draft, turn_id)
        return opened

    def _on_delta(self, draft: Draft) -> None:
        book = self.book
        payload = draft.event.item_delta
        item_id = payload.item_id
        opened = book.open.get(item_id) if not len(book.alias) else None
        if opened is None:
            current = book.current(item_id)
            opened = book.open.get(current)
            if opened is None:
                if item_id in self._held_items:
                    self._hold(self._held_items[item_id], item_id, draft)
                    return
                if current in book.known or item_id in self._late:
                    self._late_delta(current, draft)
                    return
                opened = self._stub_for(payload)
            elif current != item_id:
                payload.item_id = current
        if payload.kind not in _DELTAS_OF.get(opened.item.kind, ()):
            part = item_pb2.ContentPart()
            part.text.text = payload.text
            self.say("unexpected_delta", "", draft, about=payload.item_id, content=[part])
            return
        payload.kind = opened.kinds.get(payload.content_index, payload.kind)
        self._grow(opened, draft)

    def _grow(self, opened: OpenItem, draft: Draft) -> None:
        payload = draft.event.item_delta
        if len(payload.text) > MAX_DELTA_CHARACTERS:
            for piece in _split(draft):
                opened.take_delta(piece.event.item_delta)
                self._stamp(piece, opened.turn_id)
            return
        opened.take_delta(payload)
        self._stamp(draft, opened.turn_id)

    def _on_item_completed(self, draft: Draft) -> None:
        book = self.book
        item = draft.event.item_completed.item
        native_id = item.item_id
        current = book.current(native_id)
        opened = book.open.get(current)
        if opened is None:
            if native_id in self._held_items:
                self._hold(self._held_items[native_id], native_id, draft)
                return
            late = native_id in self._late or current in book.known
            if late or self._is_late_result(item):
                self._late_item(current, draft)
                return
            self._on_item_started(_head(draft))
            if native_id in self._held_items:
                self._hold(self._held_items[native_id], native_id, draft)
                return
            opened = book.open.get(book.current(native_id))
        elif opened.contradicts(item):
            # What was streamed is not what it came to be: the item begins anew, as another.
            if self._is_late_result(item):
                self._late_item(current, draft)
                return
            head = _head(draft)
            parent = book.current(item.parent_id)
            head.event.item_started.item.parent_id = parent if parent in book.known else ""
            opened = self._supersede(opened, native_id, head)
        if opened is None or opened.item.item_id not in book.open:
            # What had waited for the item's start has ended it.
            self._late_item(current, draft)
            return
        item.item_id = opened.item.item_id
        item.parent_id = opened.item.parent_id
        item.native_item_id = opened.item.native_item_id or item.native_item_id
        if item.superseded_by:
            successor = book.current(item.superseded_by)
            item.superseded_by = successor if successor in book.known else ""
        if item.status == item_pb2.ITEM_STATUS_FAILED and not item.content:
            item.content.extend(opened.content_so_far(self._call_of(opened)).content)
        self._settle_call(item, opened)
        self._complete(opened, draft)

    def _complete(self, opened: OpenItem, draft: Draft) -> None:
        item = draft.event.item_completed.item
        if item.kind == item_pb2.ITEM_KIND_MESSAGE and item.role == item_pb2.ITEM_ROLE_ASSISTANT:
            self._settle_deltas(opened, item, draft.raw)
        self._stamp(draft, opened.turn_id)
        del self.book.open[item.item_id]
        self.book.note_call(item, opened.turn_id)
        self.book.note_result(item)

    def _settle_deltas(self, opened: OpenItem, item: item_pb2.Item, raw: tuple[bytes, ...]) -> None:
        """Make the deltas of an assistant's message give its completed content."""
        for index, part in enumerate(item.content):
            which = part.WhichOneof("part")
            if which == "text":
                kind, text = event_pb2.DELTA_KIND_TEXT, part.text.text
            elif which == "reasoning":
                kind, text = event_pb2.DELTA_KIND_REASONING, part.reasoning.text
            else:
                continue
            have = opened.text(index)
            if have == text:
                continue
            if text.startswith(have):
                fix = delta(item.item_id, index, kind, text[len(have) :], raw, synthetic=True)
            else:
                fix = delta(item.item_id, index, kind, text, raw, replace=True, synthetic=True)
            self._grow(opened, fix)

    def _supersede(self, old: OpenItem, native_id: str, draft: Draft) -> OpenItem:
        """Start the item of `draft` in the place of an open one, which fails."""
        book = self.book
        fresh = book.fresh(native_id)
        book.alias.put(native_id, fresh)
        draft.event.item_started.item.item_id = fresh
        opened = self._begin(draft)
        item = old.content_so_far(self._call_of(old))
        item.superseded_by = fresh
        self._settle_call(item, old)
        self._complete(old, completed(item, failed=True, synthetic=True))
        self._release(fresh)
        return opened

    def _settle_call(self, item: item_pb2.Item, opened: OpenItem | None = None) -> None:
        """Give a call or a result the call id that is right in this stream."""
        book = self.book
        if not item.content:
            return
        if item.kind == item_pb2.ITEM_KIND_TOOL_CALL:
            call = item.content[0].tool_call
            known = book.call_of_item.get(item.item_id) if opened is not None else None
            if known:
                call.call_id = known
            elif call.call_id in book.calls:
                fresh = book.fresh_call(call.call_id)
                book.call_alias.put(call.call_id, fresh)
                call.call_id = fresh
        elif item.kind == item_pb2.ITEM_KIND_TOOL_RESULT:
            result = item.content[0].tool_result
            result.call_id = book.current_call(result.call_id)
            if result.call_id not in book.calls and (result.call_id or opened is not None):
                self._stub_call(result.call_id)

    def _stub_call(self, call_id: str) -> None:
        stub = tool_call_item(
            self.book.fresh(f"call:{call_id}"),
            name="unknown",
            arguments_json="{}",
            call_id=call_id,
        )
        for draft in whole(stub, synthetic=True):
            self.handlers[draft.kind](draft)

    def _stub_for(self, payload: event_pb2.ItemDelta) -> OpenItem:
        """Start an item that a delta names and nobody started."""
        item = item_pb2.Item(item_id=payload.item_id)
        match payload.kind:
            case event_pb2.DELTA_KIND_TOOL_OUTPUT:
                item.kind, item.role = item_pb2.ITEM_KIND_TOOL_RESULT, item_pb2.ITEM_ROLE_TOOL
            case event_pb2.DELTA_KIND_TOOL_ARGUMENTS:
                item.kind, item.role = item_pb2.ITEM_KIND_TOOL_CALL, item_pb2.ITEM_ROLE_ASSISTANT
            case _:
                item.kind, item.role = item_pb2.ITEM_KIND_MESSAGE, item_pb2.ITEM_ROLE_ASSISTANT
        return self._open_stub(item)

    def _open_stub(self, item: item_pb2.Item) -> OpenItem:
        self._stamp(started(item, synthetic=True), self.turn_id)
        opened = self.book.start(item, self.turn_id)
        self._release(item.item_id)
        return opened

    def _call_of(self, opened: OpenItem) -> str:
        """The call id that a cut-off call or result belongs to."""
        item = opened.item
        if item.kind == item_pb2.ITEM_KIND_TOOL_RESULT:
            return self.book.call_of_item.get(item.parent_id) or f"unknown:{item.item_id}"
        return self.book.call_of_item.get(item.item_id) or self.book.fresh_call(item.item_id)

    def close(self, turn_id: str | None) -> None:
        """Complete what is open of a turn (of everything, for None) and answer its calls."""
        book = self.book
        for opened in reversed(list(book.open.values())):
            if turn_id is not None and opened.turn_id != turn_id:
                continue
            item = opened.content_so_far(self._call_of(opened))
            self._settle_call(item, opened)
            self._complete(opened, completed(item, failed=True, synthetic=True))
        for call_id in list(book.unanswered):
            call = book.calls.get(call_id)
            if call is not None and (turn_id is None or call.turn_id == turn_id):
                self._answer_call(call_id, call.item_id, call.turn_id)

    def _answer_call(self, call_id: str, call_item_id: str, turn_id: str) -> None:
        book = self.book
        item = tool_result_item(
            book.fresh(f"{call_item_id}:no-result"),
            call_id=call_id,
            output=_ENDED_BEFORE_RESULT,
            is_error=True,
            parent_id=call_item_id,
        )
        for draft in whole(item, failed=True, synthetic=True):
            self._stamp(draft, turn_id)
        book.known.put(item.item_id, None)
        book.note_result(item)

    # What comes too late

    def _is_late_result(self, item: item_pb2.Item) -> bool:
        """A result for a call that has one already (the keeper's, when its turn had ended)."""
        if item.kind != item_pb2.ITEM_KIND_TOOL_RESULT:
            return False
        book = self.book
        call_id = item.content[0].tool_result.call_id if item.content else ""
        call_id = call_id or book.call_of_item.get(book.current(item.parent_id)) or ""
        call = book.calls.get(book.current_call(call_id))
        return call is not None and call.answered

    def _late_item(self, about: str, draft: Draft) -> None:
        item = draft.event.item_completed.item
        self.say(
            "late_output", "", draft, about=about, content=[_plain(part) for part in item.content]
        )

    def _late_delta(self, about: str, draft: Draft) -> None:
        # Said once: the content comes again, whole, when the agent completes the item.
        if about in self._late:
            return
        self._late.put(about, None)
        part = item_pb2.ContentPart()
        part.text.text = draft.event.item_delta.text
        self.say("late_output", "", draft, about=about, content=[part])

    def say(
        self,
        label: str,
        detail: str,
        draft: Draft,
        *,
        about: str = "",
        content: list[item_pb2.ContentPart] | None = None,
    ) -> None:
        """Put a status item into the stream that says what `draft` could not."""
        book = self.book
        item = status_item(
            book.fresh(f"{label}:{about or self._stamper.sequence + 1}"),
            label,
            detail,
            parent_id=about if about in book.known else "",
            more=content or (),
        )
        for made in whole(item, draft.raw):
            made.event.source = draft.event.source
            made.event.synthetic = draft.event.synthetic
            self._stamp(made, self.turn_id)
        book.known.put(item.item_id, None)

    # What comes before its parent

    def _hold(self, parent_id: str, item_id: str, draft: Draft) -> None:
        self._held.setdefault(parent_id, []).append(draft)
        self._held_items[item_id] = parent_id
        self._held_count += 1
        if self._held_count > HELD_DRAFTS:
            self.release_held()

    def _release(self, parent_id: str) -> None:
        waiting = self._held.pop(parent_id, None)
        if waiting is None:
            return
        self._held_count -= len(waiting)
        for draft in waiting:
            payload = draft.event
            item_id = (
                payload.item_delta.item_id
                if draft.kind is Kind.ITEM_DELTA
                else payload.item_started.item.item_id
                if draft.kind is Kind.ITEM_STARTED
                else payload.item_completed.item.item_id
            )
            self._held_items.pop(item_id, None)
            self.handlers[draft.kind](draft)

    def release_held(self) -> None:
        """Nobody comes any more: make up the parents that are waited for."""
        while self._held:
            parent_id = next(iter(self._held))
            self.stub_parent(parent_id)

    def stub_parent(self, parent_id: str) -> None:
        """Make up the item `parent_id`, and let go of what waits for it."""
        item = item_pb2.Item(item_id=parent_id)
        item.kind, item.role = item_pb2.ITEM_KIND_UNKNOWN, item_pb2.ITEM_ROLE_SYSTEM
        self._open_stub(item)


def _head(draft: Draft) -> Draft:
    """The start of an item of which only the completion came."""
    head = item_pb2.Item()
    head.CopyFrom(draft.event.item_completed.item)
    head.ClearField("superseded_by")
    del head.content[:]
    return started(head, draft.raw, synthetic=True)


def _plain(part: item_pb2.ContentPart) -> item_pb2.ContentPart:
    """A part as a status item can show it: it makes no call and answers none."""
    match part.WhichOneof("part"):
        case "tool_call":
            return json_part(part.tool_call.name, part.tool_call.arguments_json or "{}")
        case "tool_result":
            return text_part(part.tool_result.output)
        case _:
            return part


def _split(draft: Draft) -> Iterable[Draft]:
    """A long delta as several."""
    payload = draft.event.item_delta
    text = payload.text
    for start in range(0, len(text), MAX_DELTA_CHARACTERS):
        piece = event_pb2.Event()
        piece.CopyFrom(draft.event)
        piece.item_delta.text = text[start : start + MAX_DELTA_CHARACTERS]
        if start:
            piece.item_delta.operation = event_pb2.DELTA_OPERATION_APPEND
        yield Draft(draft.kind, piece, draft.raw)
