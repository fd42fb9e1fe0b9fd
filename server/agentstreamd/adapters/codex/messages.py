"""What the model and the user write: messages, reasoning, plans. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.codex.content import user_parts
from agentstreamd.adapters.codex.native import (
    JsonObject,
    dump_text,
    known,
    objects_in,
    text_in,
    texts_in,
    whole_in,
)
from agentstreamd.adapters.codex.threads import Place
from agentstreamd.model import (
    Draft,
    completed,
    delta,
    reasoning_part,
    started,
    text_part,
    whole,
)

Raw = tuple[bytes, ...]
ItemId = Callable[[str, str], str]
"""Thread and native id to the id in the stream."""

_SUMMARY, _CONTENT = "summary", "content"
_TEXT = "text"

_OPEN_AT_MOST = 1024


@dataclass(slots=True)
class _Open:
    """A message in progress.

    Attributes:
        item: As it was started.
        parts: Kind and native index of each part, in the order in which they appeared.
        texts: The pieces that the deltas gave each of them.
        cut: The agent has given it up: the next message supersedes it.
    """

    item: item_pb2.Item
    thread_id: str
    parts: list[tuple[str, int]] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    cut: bool = False

    def index(self, kind: str, native: int) -> int:
        """The content index of a part, which appears now if it has not before."""
        key = (kind, native)
        if key not in self.parts:
            self.parts.append(key)
            self.texts.append([])
        return self.parts.index(key)


class Messages:
    """The messages of all threads of a session."""

    def __init__(self, item_id: ItemId) -> None:
        """`item_id` makes ids."""
        self._item_id = item_id
        self._open: dict[str, _Open] = {}

    # Of the assistant

    def start(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """An `agentMessage`, `reasoning` or `plan` item begins."""
        head = self._head(item, place)
        drafts = [started(head, raw)]
        drafts += self._supersede(place.thread_id, head.item_id, raw)
        if len(self._open) >= _OPEN_AT_MOST:
            del self._open[next(iter(self._open))]
        self._open[head.item_id] = _Open(head, place.thread_id)
        return drafts

    def complete(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """It is whole."""
        head = self._head(item, place)
        opened = self._open.pop(head.item_id, None) or _Open(head, place.thread_id)
        if item.get("type") == "reasoning":
            head.content.extend(_reasoning(item, opened))
        else:
            head.content.append(text_part(text_in(item, "text")))
        return [completed(head, raw, metadata_json=_metadata(item))]

    def on_delta(self, kind: str, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """A piece of text: `text`, `summary` or `content`."""
        item_id = self._item_id(place.thread_id, text_in(params, "itemId"))
        text = text_in(params, "delta")
        opened = self._open.get(item_id)
        if opened is None:
            head = item_pb2.Item(
                item_id=item_id,
                native_item_id=text_in(params, "itemId"),
                parent_id=place.under,
                kind=item_pb2.ITEM_KIND_MESSAGE,
                role=item_pb2.ITEM_ROLE_ASSISTANT,
            )
            opened = self._open[item_id] = _Open(head, place.thread_id)
        native = whole_in(params, f"{kind}Index")
        index = opened.index(kind, native or 0)
        opened.texts[index].append(text)
        what = event_pb2.DELTA_KIND_TEXT if kind == _TEXT else event_pb2.DELTA_KIND_REASONING
        return [delta(item_id, index, what, text, raw)]

    def on_part(self, params: JsonObject, place: Place) -> list[Draft]:
        """A part of a summary begins: it gets its place, and its text comes in deltas."""
        opened = self._open.get(self._item_id(place.thread_id, text_in(params, "itemId")))
        if opened is not None:
            opened.index(_SUMMARY, whole_in(params, "summaryIndex") or 0)
        return []

    def cut(self, thread_id: str) -> None:
        """The model's answer broke off (an error, a steering message) and will begin anew."""
        for opened in self._open.values():
            if opened.thread_id == thread_id:
                opened.cut = True

    def end_turn(self, thread_id: str, raw: Raw, *, is_root: bool) -> list[Draft]:
        """A thread's turn is over. What it left open of its own turn the stream keeper closes; a
        sub-agent's ends before its parent's, so it is closed here.
        """
        drafts = []
        for item_id, opened in list(self._open.items()):
            if opened.thread_id == thread_id:
                del self._open[item_id]
                if not is_root:
                    drafts.append(_failed(opened, "", raw))
        return drafts

    def _supersede(self, thread_id: str, item_id: str, raw: Raw) -> list[Draft]:
        drafts = []
        for old_id, opened in list(self._open.items()):
            if opened.cut and opened.thread_id == thread_id and old_id != item_id:
                del self._open[old_id]
                drafts.append(_failed(opened, item_id, raw))
        return drafts

    def _head(self, item: JsonObject, place: Place) -> item_pb2.Item:
        native_id = text_in(item, "id")
        return item_pb2.Item(
            item_id=self._item_id(place.thread_id, native_id),
            native_item_id=native_id,
            parent_id=place.under,
            kind=item_pb2.ITEM_KIND_MESSAGE,
            role=item_pb2.ITEM_ROLE_ASSISTANT,
        )

    # Of others

    def user(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """A user's message, whole; a sub-agent's is what its parent told it."""
        made = self._head(item, place)
        made.role = item_pb2.ITEM_ROLE_USER
        made.content.extend(user_parts(objects_in(item, "content")))
        return whole(made, raw, metadata_json=_metadata(item))

    def hook_prompt(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """What hooks add to the conversation."""
        made = self._head(item, place)
        made.kind, made.role = item_pb2.ITEM_KIND_SYSTEM, item_pb2.ITEM_ROLE_SYSTEM
        texts = [text_in(fragment, "text") for fragment in objects_in(item, "fragments")]
        made.content.append(text_part("\n".join(texts)))
        return whole(made, raw)


def _reasoning(item: JsonObject, opened: _Open) -> list[item_pb2.ContentPart]:
    texts = {(_SUMMARY, i): text for i, text in enumerate(texts_in(item, "summary"))}
    texts |= {(_CONTENT, i): text for i, text in enumerate(texts_in(item, "content"))}
    for kind, native in texts:
        opened.index(kind, native)
    if not opened.parts:
        # Only its encrypted form came.
        return [reasoning_part("", item_pb2.REASONING_VISIBILITY_REDACTED)]
    return [_part(key, texts.get(key, "")) for key in opened.parts]


def _part(key: tuple[str, int], text: str) -> item_pb2.ContentPart:
    if key[0] == _TEXT:
        return text_part(text)
    return reasoning_part(
        text,
        item_pb2.REASONING_VISIBILITY_SUMMARY
        if key[0] == _SUMMARY
        else item_pb2.REASONING_VISIBILITY_FULL,
    )


def _failed(opened: _Open, superseded_by: str, raw: Raw) -> Draft:
    item = item_pb2.Item()
    item.CopyFrom(opened.item)
    item.superseded_by = superseded_by
    item.content.extend(
        _part(key, "".join(text)) for key, text in zip(opened.parts, opened.texts, strict=True)
    )
    return completed(item, raw, failed=True, synthetic=True)


def _metadata(item: JsonObject) -> str:
    said = known(item, "moderation", "phase", "memoryCitation", "delivery", "questions")
    if item.get("type") == "plan":
        said["plan"] = True
    if item.get("type") == "userMessage":
        said |= known(item, "clientId")
    return dump_text(said) if said else ""
