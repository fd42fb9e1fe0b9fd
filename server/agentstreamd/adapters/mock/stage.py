"""What the mock agent writes: native messages, built and buffered."""

import asyncio
import base64
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

Json = dict[str, Any]

_CHUNK_BYTES = 32 * 1024
_encode = msgspec.json.Encoder().encode

# A picture of one transparent pixel.
PIXEL_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class Writer:
    """Buffers lines of one session and writes them in chunks."""

    def __init__(self, session: str, write: Callable[[bytes], Coroutine[None, None, None]]) -> None:
        """Write lines that bear `session` as theirs."""
        self._session = session
        self._write = write
        self._buffer = bytearray()
        self.muted = False

    def line(self, message: Json) -> None:
        """Put a message into the buffer; `type` is its first key."""
        self.verbatim(_encode({**message, "session": self._session}))

    def verbatim(self, line: bytes, *, end: bytes = b"\n") -> None:
        """Put bytes into the buffer as they are, then `end`."""
        if not self.muted:
            self._buffer += line
            self._buffer += end

    async def pace(self) -> None:
        """Write the buffer if it is large."""
        if len(self._buffer) >= _CHUNK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the buffer."""
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            # An interrupt cancels the script at any point; what it wrote before is not to be lost.
            await asyncio.shield(self._write(data))


class Ids:
    """Makes ids: unique in the session by the number of the turn, the same in every run."""

    def __init__(self, turn: str) -> None:
        """`turn` is what tells the turn from the session's others: its number."""
        self._turn = turn
        self._last = 0

    def new(self, prefix: str) -> str:
        """A new id."""
        self._last += 1
        return f"{prefix}-{self._turn}-{self._last}"


@dataclass(slots=True)
class OpenMessage:
    """An assistant's message that is being written."""

    item: Json
    parts: list[Json] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)


class Stage:
    """Writes items under one parent."""

    def __init__(self, writer: Writer, ids: Ids, parent_id: str = "") -> None:
        """Items stand under `parent_id`."""
        self.writer = writer
        self.ids = ids
        self.parent_id = parent_id
        self.message: OpenMessage | None = None
        self.written_characters = 0

    def below(self, parent_id: str) -> "Stage":
        """A stage for what stands under `parent_id`."""
        return Stage(self.writer, self.ids, parent_id)

    def item(self, prefix: str, kind: str, role: str, *, parent_id: str | None = None) -> Json:
        """A new item."""
        item: Json = {
            "item_id": self.ids.new(prefix),
            "kind": f"ITEM_KIND_{kind}",
            "role": f"ITEM_ROLE_{role}",
        }
        item["native_item_id"] = item["item_id"]
        if parent := self.parent_id if parent_id is None else parent_id:
            item["parent_id"] = parent
        return item

    def started(self, item: Json, *parts: Json) -> None:
        """Write the start of an item."""
        self.writer.line({"type": "item_started", "item": {**item, "content": list(parts)}})

    def completed(
        self, item: Json, *parts: Json, failed: bool = False, superseded_by: str = ""
    ) -> None:
        """Write the completion of an item."""
        whole = {**item, "content": list(parts)}
        if superseded_by:
            whole["superseded_by"] = superseded_by
        self.writer.line({"type": "item_completed", "item": whole, "failed": failed})

    def whole(self, item: Json, *parts: Json, failed: bool = False) -> None:
        """Write an item that comes all at once."""
        self.started(item)
        self.completed(item, *parts, failed=failed)

    async def deltas(self, item_id: str, index: int, kind: str, pieces: list[str]) -> None:
        """Write deltas."""
        for piece in pieces:
            self.delta(item_id, index, kind, piece)
            await self.writer.pace()

    def delta(self, item_id: str, index: int, kind: str, text: str) -> None:
        """Write one delta."""
        self.writer.line(
            {
                "type": "item_delta",
                "item_id": item_id,
                "content_index": index,
                "kind": kind,
                "text": text,
            }
        )
        self.written_characters += len(text)

    # The assistant's messages

    def open_message(self) -> OpenMessage:
        """The message that is being written; begins one where none is."""
        if self.message is None:
            self.message = OpenMessage(self.item("message", "MESSAGE", "ASSISTANT"))
            self.started(self.message.item)
        return self.message

    def grow(self, text: str) -> None:
        """Add a delta to the message's last text part."""
        message = self.open_message()
        message.growing.append(text)
        self.delta(message.item["item_id"], len(message.parts), "text", text)

    def settle_growth(self) -> None:
        """What `grow` wrote becomes a part."""
        if self.message is not None and self.message.growing:
            self.message.parts.append(text_part("".join(self.message.growing)))
            self.message.growing = []

    async def add_text(self, text: str) -> None:
        """Stream a text part into the message."""
        self.settle_growth()
        message = self.open_message()
        index = len(message.parts)
        await self.deltas(message.item["item_id"], index, "text", pieces_of(text))
        message.parts.append(text_part(text))

    async def add_reasoning(self, text: str, visibility: str) -> None:
        """Stream a reasoning part into the message."""
        self.settle_growth()
        message = self.open_message()
        index = len(message.parts)
        await self.deltas(message.item["item_id"], index, "reasoning", pieces_of(text))
        part = {"text": text, "visibility": f"REASONING_VISIBILITY_{visibility.upper()}"}
        message.parts.append({"reasoning": part})

    def add_part(self, part: Json) -> None:
        """Put a part into the message."""
        self.settle_growth()
        self.open_message().parts.append(part)

    def close_message(self) -> str:
        """Complete the message that is being written, if any; returns its id."""
        self.settle_growth()
        message, self.message = self.message, None
        if message is None:
            return ""
        self.completed(message.item, *message.parts)
        return str(message.item["item_id"])

    # Tools

    async def call(
        self, name: str, arguments_json: str, *more: Json, parent_id: str | None = None
    ) -> Json:
        """Write a tool call, its arguments streamed; returns the item, with `call_id`."""
        item = self.item("call", "TOOL_CALL", "ASSISTANT", parent_id=parent_id)
        call_id = str(item["item_id"])
        call = {"name": name, "call_id": call_id}
        self.started(item, {"tool_call": call})
        await self.deltas(call_id, 0, "tool_arguments", pieces_of(arguments_json, 48))
        self.completed(item, {"tool_call": {**call, "arguments_json": arguments_json}}, *more)
        return item

    async def result(
        self,
        call: Json,
        output: str,
        *more: Json,
        error: bool = False,
        exit_code: int | None = None,
    ) -> None:
        """Write the result of a call, its output streamed line by line."""
        item = self.item("result", "TOOL_RESULT", "TOOL", parent_id=call["item_id"])
        result: Json = {"call_id": call["item_id"]}
        self.started(item, {"tool_result": dict(result)})
        pieces = output.splitlines(keepends=True)
        if len(pieces) < 1000:
            pieces = [piece for line in pieces for piece in pieces_of(line, 4096)]
        else:
            pieces = pieces_of(output, 4096)
        await self.deltas(item["item_id"], 0, "tool_output", pieces)
        result |= {"output": output, "is_error": error}
        if exit_code is not None:
            result["exit_code"] = exit_code
        self.completed(item, {"tool_result": result}, *more, failed=error)
        await self.writer.pace()


def pieces_of(text: str, length: int = 0) -> list[str]:
    """Cut a text into the pieces it is streamed in: words where it is short."""
    if not text:
        return []
    if not length:
        if len(text) <= 2048:
            words = text.split(" ")
            return [word + " " for word in words[:-1]] + ([words[-1]] if words[-1] else [])
        length = 1024
    return [text[start : start + length] for start in range(0, len(text), length)]


def text_part(text: str) -> Json:
    """A text part."""
    return {"text": {"text": text}}


def file_part(path: str, action: str, *, diff: str = "", new_path: str = "") -> Json:
    """A file_ref part."""
    part = {"path": path, "action": f"FILE_ACTION_{action.upper()}"}
    if diff:
        part["diff"] = diff
    if new_path:
        part["new_path"] = new_path
    return {"file_ref": part}


def image_part(data: bytes = PIXEL_PNG, media_type: str = "image/png") -> Json:
    """A picture that is inside the message."""
    return {"image": {"media_type": media_type, "data": base64.b64encode(data).decode()}}
