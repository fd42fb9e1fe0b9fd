"""The model's messages: from stream events and assistant lines to message and tool_call items."""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.claude.native import (
    Block,
    Line,
    StreamEvent,
    blocks,
    members,
    plain,
    text_of,
)
from agentstreamd.adapters.claude.threads import (
    NO_DELTAS,
    REASONING,
    TEXT,
    UNNAMED,
    MessageState,
    Part,
    StreamedCall,
    call_item_id,
    message_item_id,
)
from agentstreamd.adapters.claude.tools import Tools
from agentstreamd.model import (
    Draft,
    completed,
    delta,
    json_part,
    started,
    tool_call_item,
)

ARGUMENTS = event_pb2.DELTA_KIND_TOOL_ARGUMENTS

_PART_KINDS = {"text": TEXT, "thinking": REASONING, "redacted_thinking": REASONING}
_CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})

IGNORED_DELTAS = {
    "signature_delta": "proves the origin of reasoning to the model API; not for people",
    "citations_delta": "the assistant line repeats the citations",
}
"""Deltas of a content block that are ignored on purpose, with the reason."""

IGNORED_EVENTS = {
    "message_start": "its ids are kept; the item starts with the first block, if one comes",
    "content_block_stop": "the assistant line before it completes the block",
    "message_delta": "its stop reason is kept for the item; usage comes with the result",
    "message_stop": "the message completes at the next message or the result",
    "ping": "says nothing",
}
"""Stream events that make no event of their own, with the reason."""


class Messages:
    """Maps the model's messages, of the main thread and of sub-agents' threads.

    A thread is named by the id of the tool use that started it; the main thread by "".
    """

    def __init__(self, tools: Tools, next_id: Callable[[str], str]) -> None:
        """Report calls to `tools`; make ids where the agent gives none with `next_id(kind)`."""
        self.text_seen = False
        self._tools = tools
        self._next_id = next_id
        self._threads: dict[str, MessageState] = {}
        self._cut: dict[str, list[MessageState]] = {}

    # Stream events

    def on_delta(self, line: Line, event: StreamEvent, raw: tuple[bytes, ...]) -> list[Draft]:
        """A piece of a content block."""
        thread = line.parent_tool_use_id or ""
        message = self._threads.get(thread)
        piece = event.delta
        if message is None or piece is None:
            return self._on_odd_delta(thread, event, raw)
        block = message.blocks.get(event.index)
        if type(block) is Part:
            if piece.type == "text_delta":
                text = piece.text
            elif piece.type == "thinking_delta":
                text = piece.thinking
            else:
                return self._on_other_delta(piece.type, message, raw)
            if not line.intact or block.held:
                text = block.join(text)
                if not text:
                    block.held_raw += raw
                    return []
                raw, block.held_raw = block.held_raw + raw, ()
            block.chunks.append(text)
            return [delta(message.item_id, block.index, block.kind, text, raw)]
        if type(block) is StreamedCall and piece.type == "input_json_delta":
            text = piece.partial_json
            if not line.intact or block.held:
                text = block.join(text)
            if not text:
                return []
            return [delta(call_item_id(block.tool_use_id), 0, ARGUMENTS, text, raw)]
        return self._on_odd_delta(thread, event, raw)

    def on_event(self, line: Line, native: bytes) -> list[Draft]:
        """A stream event other than a delta."""
        event = line.event
        thread = line.parent_tool_use_id or ""
        raw = (native,)
        if event is None:
            return [*self._unknown("stream_event", native)]
        match event.type:
            case "message_start":
                native_id = event.message.id if event.message else ""
                drafts = self._leave(thread, raw)
                state = self._enter(thread, native_id)
                state.model = event.message.model if event.message else ""
                return drafts
            case "content_block_start":
                return self._start_block(thread, event.index, event.content_block, raw)
            case "message_delta":
                self._note_stop(thread, native)
                return []
            case "message_stop":
                if message := self._threads.get(thread):
                    message.stopped = True
                return []
            case known if known in IGNORED_EVENTS:
                return []
            case _:
                return self._unknown(f"stream_event/{event.type}", native)

    def _start_block(
        self, thread: str, index: int, block: Block | None, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        message = self._threads.get(thread) or self._enter(thread, "")
        drafts = self._begin(thread, message, raw)
        if block is None:
            block = Block()
        if block.type in _CALL_TYPES:
            call = StreamedCall(block.id or self._next_id("tool_use"), block.name)
            message.blocks[index] = call
            drafts.append(started(self._call_head(message, call.tool_use_id, call.name), raw))
            return drafts
        part = message.add(_PART_KINDS.get(block.type, NO_DELTAS))
        part.label = block.type
        message.blocks[index] = part
        if text := block.text or block.thinking:
            part.chunks.append(text)
            drafts.append(delta(message.item_id, part.index, part.kind, text, raw))
        return drafts

    def _on_odd_delta(self, thread: str, event: StreamEvent, raw: tuple[bytes, ...]) -> list[Draft]:
        """A delta whose block did not start, as where a transcript begins in the middle."""
        piece = event.delta
        kind = piece.type if piece else ""
        message = self._threads.get(thread)
        if piece is None or kind not in ("text_delta", "thinking_delta"):
            return self._on_other_delta(kind, message, raw)
        if message is not None and event.index in message.blocks:
            return self._unknown(f"content_block_delta/{kind}", raw[-1])
        block = Block(type="text" if kind == "text_delta" else "thinking")
        drafts = self._start_block(thread, event.index, block, raw)
        line = Line(event=event, parent_tool_use_id=thread or None, intact=False)
        return drafts + self.on_delta(line, event, raw)

    def _on_other_delta(
        self, kind: str, message: MessageState | None, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        if kind in IGNORED_DELTAS:
            return []
        return self._unknown(f"content_block_delta/{kind}", raw[-1])

    def _note_stop(self, thread: str, native: bytes) -> None:
        message = self._threads.get(thread)
        event = members(members(native).get("event", Raw()))
        reason = plain(members(event.get("delta", Raw())).get("stop_reason", Raw()))
        if message is not None and isinstance(reason, str):
            message.stop_reason = reason

    # Assistant lines

    def on_assistant(self, line: Line, native: bytes) -> list[Draft]:
        """A finished content block (or several) of a message."""
        message = line.message
        if message is None:
            return self._unknown("assistant", native)
        thread = line.parent_tool_use_id or ""
        raw = (native,)
        drafts: list[Draft] = []
        state = self._threads.get(thread)
        if state is not None and not state.native_id and state.started:
            state.native_id = message.id
        if state is None or state.native_id != message.id:
            drafts += self._leave(thread, raw)
            state = self._enter(thread, message.id)
        state.model = message.model or state.model
        state.cut = state.cut or bool(line.aborted)
        drafts += self._begin(thread, state, raw)
        settled = state.settled
        verbatim: list[Raw] = []
        for position, block in enumerate(blocks(message.content)):
            if block.type in _PART_KINDS:
                drafts += self._confirm_part(state, block, raw, main=not thread)
            elif block.type in _CALL_TYPES:
                drafts += self._confirm_call(thread, state, block, line, raw)
            elif block.type.endswith("_tool_result") and block.tool_use_id:
                state.confirmed += 1
                drafts += self._tools.on_result(block, line, raw)
            else:
                verbatim = verbatim or _each(message.content)
                json = text_of(verbatim[position]) if position < len(verbatim) else "{}"
                self._confirm_other(state, block.type, json)
        if not state.raw or state.settled > settled:
            # Lines that are the calls' alone are not repeated: they may be large.
            state.raw.append(native)
        return drafts

    def _confirm_part(
        self, state: MessageState, block: Block, raw: tuple[bytes, ...], *, main: bool
    ) -> list[Draft]:
        kind = _PART_KINDS[block.type]
        text = block.text if kind == TEXT else block.thinking
        part = self._take_open(state, kind)
        have = part.text
        drafts = []
        if text != have:
            # The deltas must give what the line says; usually there were none at all.
            joins = text.startswith(have)
            rest = text[len(have) :] if joins else text
            drafts.append(
                delta(state.item_id, part.index, kind, rest, raw, replace=not joins, synthetic=True)
            )
        part.chunks = [text]
        part.open, part.held = False, ""
        if plain(block.citations):
            state.extras.append(json_part("citations", text_of(block.citations)))
        if main and kind == TEXT and text:
            self.text_seen = True
        return drafts

    def _confirm_call(
        self,
        thread: str,
        state: MessageState,
        block: Block,
        line: Line,
        raw: tuple[bytes, ...],
    ) -> list[Draft]:
        index = state.confirmed
        state.confirmed += 1
        streamed = state.blocks.get(index)
        if not isinstance(streamed, StreamedCall) or streamed.tool_use_id != block.id:
            known = (b for b in state.open_calls if b.tool_use_id == block.id)
            streamed = next(known, None)
        tool_use_id = block.id or self._next_id("tool_use")
        item = self._call_head(state, tool_use_id, block.name)
        drafts = []
        if streamed is None:
            drafts.append(started(item, raw))
        else:
            streamed.open = False
        item.content[0].tool_call.arguments_json = text_of(block.input) or "{}"
        item.content.extend(self._tools.on_call(tool_use_id, block, thread))
        drafts.append(completed(item, raw, metadata_json=_meta_of(line, tool_use_id)))
        return [*drafts, *self._tools.after_call(tool_use_id, raw)]

    def _confirm_other(self, state: MessageState, label: str, json: str) -> None:
        part = self._take_open(state, NO_DELTAS)
        part.label, part.json, part.open = label, json, False

    def _take_open(self, state: MessageState, kind: event_pb2.DeltaKind.ValueType) -> Part:
        """The streamed part that the next confirmed block of this kind is, or a new one."""
        block = state.blocks.get(state.confirmed)
        state.confirmed += 1
        if isinstance(block, Part) and block.open and block.kind == kind:
            return block
        waiting = (part for part in state.parts if part.open and part.kind == kind)
        return next(waiting, None) or state.add(kind)

    def note_answer(self, thread: str) -> None:
        """A call of the thread's message has a result: the message was whole."""
        if message := self._threads.get(thread):
            message.answered = True

    # Beginning and completing messages

    def _enter(self, thread: str, native_id: str) -> MessageState:
        item_id = message_item_id(native_id or self._next_id("message"))
        waiting = (*self._threads.values(), *(cut for cuts in self._cut.values() for cut in cuts))
        if any(other.item_id == item_id for other in waiting):
            # A retry under the same native id: it supersedes another item, not itself.
            item_id = self._next_id(item_id)
        state = MessageState(native_id, item_id, call_item_id(thread) if thread else "")
        self._threads[thread] = state
        return state

    def _begin(self, thread: str, state: MessageState, raw: tuple[bytes, ...]) -> list[Draft]:
        """Start the message's item. Only now is it sure to exist, so only now can messages that
        were cut before name it.
        """
        if state.started:
            return []
        state.started = True
        state.first = raw
        drafts = [started(state.head(), raw)]
        for cut in self._cut.pop(thread, ()):
            drafts += self._complete(cut, raw, failed=True, superseded_by=state.item_id)
        return drafts

    def _leave(self, thread: str, raw: tuple[bytes, ...]) -> list[Draft]:
        """Another message comes: complete this one, or keep it until what supersedes it starts."""
        state = self._threads.pop(thread, None)
        if state is None or not state.started:
            return []
        if state.unconfirmed and not state.cut:
            self._cut.setdefault(thread, []).append(state)
            return []
        return self._complete(state, raw, failed=state.cut)

    def close(self, thread: str, raw: tuple[bytes, ...], *, aborted: bool = False) -> list[Draft]:
        """The thread has come to a stop: complete what it left open. `aborted`: somebody stopped
        the model while it wrote.
        """
        drafts: list[Draft] = []
        for cut in self._cut.pop(thread, ()):
            drafts += self._complete(cut, raw, failed=True)
        state = self._threads.pop(thread, None)
        if state is not None and state.started:
            broken = state.cut or state.unconfirmed
            broken = broken or (aborted and not state.stopped and not state.answered)
            drafts += self._complete(state, raw, failed=broken)
        return drafts

    def close_all(self, raw: tuple[bytes, ...], *, aborted: bool = False) -> list[Draft]:
        """Close every thread; sub-agents' first, since they stand under calls of the main one."""
        threads = sorted({*self._threads, *self._cut}, reverse=True)
        return [d for thread in threads for d in self.close(thread, raw, aborted=aborted)]

    def _complete(
        self,
        state: MessageState,
        raw: tuple[bytes, ...],
        *,
        failed: bool,
        superseded_by: str = "",
    ) -> list[Draft]:
        drafts = []
        raw = raw or state.first
        for call in state.open_calls:
            item = self._call_head(state, call.tool_use_id, call.name)
            item.superseded_by = superseded_by
            drafts.append(completed(item, raw, failed=True))
        item = state.build()
        if state.taken_back:
            item.superseded_by = superseded_by
        metadata = {"model": state.model, "stop_reason": state.stop_reason}
        said = {key: value for key, value in metadata.items() if value}
        drafts.append(
            completed(
                item,
                tuple(state.raw) or raw,
                failed=failed,
                metadata_json=msgspec.json.encode(said).decode() if said else "",
            )
        )
        return drafts

    def _call_head(self, state: MessageState, tool_use_id: str, name: str) -> item_pb2.Item:
        return tool_call_item(
            call_item_id(tool_use_id),
            name=name or UNNAMED,
            arguments_json="",
            call_id=tool_use_id,
            parent_id=state.item_id,
            native_item_id=tool_use_id,
        )

    def _unknown(self, label: str, native: bytes) -> list[Draft]:
        return self._tools.unknown(label, native)


def _each(content: Raw) -> list[Raw]:
    try:
        return msgspec.json.decode(content, type=list[Raw])
    except msgspec.MsgspecError:
        return []


def _meta_of(line: Line, tool_use_id: str) -> str:
    """Names for people of an MCP tool, where the CLI gives them."""
    for meta in plain(line.tool_use_meta) or ():
        if isinstance(meta, dict) and meta.pop("id", None) == tool_use_id and meta:
            return msgspec.json.encode(meta).decode()
    return ""
