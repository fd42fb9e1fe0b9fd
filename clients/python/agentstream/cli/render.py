"""A session as people read it: each event drawn as it comes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.text import Text

from agentstream.cli import describe
from agentstream.cli.markdown import MarkdownWriter
from agentstream.cli.screen import Screen
from agentstream.cli.summary import (
    agent_error,
    ended_line,
    error_line,
    image_line,
    session_line,
    turn_line,
    update_lines,
)
from agentstream.cli.text import one_line, plain, size, visible
from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, item_pb2

_TEXT = event_pb2.DELTA_KIND_TEXT
_REASONING = event_pb2.DELTA_KIND_REASONING
USER_MARK = "\u276f "
"""Before what the user says: a heavy angle."""
_WARNINGS = ("retrying", "warning", "agent_exited", "late_output")


@dataclass(slots=True)
class _Stream:
    """The item whose deltas are being written."""

    item_id: str
    content_index: int = -1
    writer: MarkdownWriter | None = None
    written: set[int] = field(default_factory=set)


class View:
    """Draws a session's events on a screen, in order, as they come.

    It may begin anywhere in a stream. One item at a time is written while it grows; what grows
    beside it is written when it is complete.
    """

    def __init__(self, screen: Screen, *, text_only: bool = False) -> None:
        """With `text_only`, nothing but what the assistant says at the top is written."""
        self._screen = screen
        self._text_only = text_only
        self._parents: dict[str, str] = {}
        self._calls: set[str] = set()
        self._results: set[str] = set()
        self._stream: _Stream | None = None
        self._diffs: set[tuple[str, str]] = set()
        self._turn_began: float | None = None
        self._last_error = ""
        self._drawers: Mapping[str, Callable[[event_pb2.Event], None]] = {
            "session_started": lambda e: self._head(session_line(e)),
            "session_updated": lambda e: screen.lines(update_lines(e.session_updated)),
            "session_ended": lambda e: screen.lines(ended_line(e.session_ended)),
            "turn_started": self._turn_started,
            "turn_ended": self._turn_ended,
            "item_started": lambda e: self._note(e.item_started.item),
            "item_delta": lambda e: self._delta(e.item_delta),
            "item_completed": lambda e: self._completed(e.item_completed.item),
            "permission_requested": lambda e: self._permission(e.permission_requested),
            "permission_resolved": lambda e: self._resolved(e.permission_resolved),
            "question_requested": lambda e: self._question(e.question_requested),
            "question_resolved": lambda e: self._resolved(e.question_resolved),
            "form_requested": lambda e: self._form(e.form_requested),
            "form_resolved": lambda e: self._resolved(e.form_resolved),
            "error": lambda e: self._error(e.error),
            "agent_unparsed": lambda e: self._unparsed(e.agent_unparsed),
        }

    def show(self, event: event_pb2.Event) -> None:
        """Draw one event."""
        kind = event.WhichOneof("payload")
        if kind is None or (self._text_only and not kind.startswith("item_")):
            return
        self._drawers[kind](event)

    def finish(self) -> None:
        """There are no more events, at least for now: end a line that was begun."""
        self._end_stream()
        self._screen.fresh_line()

    def _head(self, line: Text) -> None:
        self._screen.line(line)

    def _turn_started(self, event: event_pb2.Event) -> None:
        self._turn_began = event.time.ToNanoseconds() / 1e9
        self._last_error = ""
        trigger = event.turn_started.trigger
        if trigger in (event_pb2.TURN_TRIGGER_AGENT, event_pb2.TURN_TRIGGER_COMPACTION):
            self._top()
            what = "compaction" if trigger == event_pb2.TURN_TRIGGER_COMPACTION else "the agent"
            self._screen.line((f"· a turn begun by {what}", "dim"))

    def _turn_ended(self, event: event_pb2.Event) -> None:
        self._end_stream()
        self._top()
        began = self._turn_began
        seconds = None if began is None else event.time.ToNanoseconds() / 1e9 - began
        self._screen.line(turn_line(event.turn_ended, seconds, self._last_error))
        self._turn_began = None

    def _note(self, item: item_pb2.Item) -> None:
        self._parents[item.item_id] = item.parent_id
        if item.kind == item_pb2.ITEM_KIND_TOOL_CALL:
            self._calls.add(item.item_id)
        elif item.kind == item_pb2.ITEM_KIND_TOOL_RESULT:
            self._results.add(item.item_id)

    def _delta(self, delta: event_pb2.ItemDelta) -> None:
        if delta.kind not in (_TEXT, _REASONING) or not self._wanted(delta.item_id, delta.kind):
            return
        stream = self._stream
        if stream is None:
            stream = self._stream = _Stream(delta.item_id)
            self._top(delta.item_id)
        if stream.item_id != delta.item_id:
            return
        replaces = delta.operation == event_pb2.DELTA_OPERATION_REPLACE
        if delta.content_index != stream.content_index or replaces:
            if replaces and delta.content_index in stream.written:
                self._end_part(stream)
                self._screen.line(("↻ corrected:", "dim"))
            self._begin_part(stream, delta.content_index, delta.kind == _REASONING)
        if stream.writer is not None:
            stream.writer.feed(delta.text)

    def _begin_part(self, stream: _Stream, index: int, is_reasoning: bool) -> None:
        self._end_part(stream)
        if stream.written:
            self._screen.gap()
        stream.content_index = index
        stream.written.add(index)
        stream.writer = MarkdownWriter(self._screen, "dim italic" if is_reasoning else "")
        if is_reasoning:
            self._screen.stream("✻ ", "dim")

    def _end_part(self, stream: _Stream) -> None:
        if stream.writer is not None:
            stream.writer.finish()
            stream.writer = None
        self._screen.fresh_line()

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._end_part(self._stream)
            self._stream = None

    def _completed(self, item: item_pb2.Item) -> None:
        self._note(item)
        written: set[int] = set()
        if self._stream is not None and self._stream.item_id == item.item_id:
            written = self._stream.written
            self._end_stream()
        elif self._stream is not None:
            self._end_part(self._stream)  # what comes now stands in between
            self._stream.content_index = -1
        match item.kind:
            case item_pb2.ITEM_KIND_MESSAGE:
                self._message(item, written)
            case _ if self._text_only:
                pass
            case item_pb2.ITEM_KIND_TOOL_CALL:
                self._tool_call(item)
            case item_pb2.ITEM_KIND_TOOL_RESULT:
                self._tool_result(item)
            case item_pb2.ITEM_KIND_STATUS:
                self._status(item)
            case _:
                self._other(item)

    def _message(self, item: item_pb2.Item, written: set[int]) -> None:
        if item.role == item_pb2.ITEM_ROLE_USER:
            self._user_message(item)
            return
        for index, part in enumerate(item.content):
            kind = part.WhichOneof("part")
            if index in written:
                continue
            delta_kind = _REASONING if kind == "reasoning" else _TEXT
            if not self._wanted(item.item_id, delta_kind):
                continue
            if kind in ("text", "reasoning"):
                text = part.text.text if kind == "text" else part.reasoning.text
                if text:
                    self._top(item.item_id)
                    stream = _Stream(item.item_id)
                    self._begin_part(stream, index, kind == "reasoning")
                    assert stream.writer is not None
                    stream.writer.feed(text)
                    self._end_part(stream)
            elif not self._text_only:
                self._part(part)
        if item.status == item_pb2.ITEM_STATUS_FAILED and not self._text_only:
            why = "taken back, another one follows" if item.superseded_by else "not finished"
            self._screen.line((f"  ({why})", "dim italic"))

    def _user_message(self, item: item_pb2.Item) -> None:
        if self._text_only:
            return
        self._top(item.item_id)
        for part in item.content:
            if part.WhichOneof("part") == "text":
                first, *rest = part.text.text.splitlines() or [""]
                self._screen.line((USER_MARK, "bold green"), (visible(first), "bold"))
                for line in rest:
                    self._screen.line(("  " + visible(line), "bold"))
            else:
                self._part(part)

    def _tool_call(self, item: item_pb2.Item) -> None:
        self._top(item.item_id)
        for part in item.content:
            if part.WhichOneof("part") == "tool_call":
                self._screen.line(("⏺ ", "blue"), describe.call_line(part.tool_call))
            else:
                self._part(part)

    def _tool_result(self, item: item_pb2.Item) -> None:
        self._at(item.item_id)
        for part in item.content:
            if part.WhichOneof("part") == "tool_result":
                self._indented(describe.output_lines(part.tool_result))
                if part.HasField("external"):
                    self._external(part)
            elif part.WhichOneof("part") != "json":
                self._part(part)

    def _status(self, item: item_pb2.Item) -> None:
        self._at(item.item_id)
        for part in item.content:
            if part.WhichOneof("part") == "status":
                style = "yellow" if part.status.label in _WARNINGS else "dim"
                words = f"{part.status.label.replace('_', ' ')}  {part.status.detail}"
                self._screen.line((f"· {one_line(words, 200)}", style))
            elif part.WhichOneof("part") == "json":
                self._screen.lines(describe.todo_lines(part.json.json))
            else:
                self._part(part)

    def _other(self, item: item_pb2.Item) -> None:
        self._top(item.item_id)
        what = "system" if item.kind == item_pb2.ITEM_KIND_SYSTEM else "unknown"
        for part in item.content:
            match part.WhichOneof("part"):
                case "text":
                    self._screen.line((f"· {plain(part.text.text)}", "dim"))
                case "json":
                    line = one_line(f"{what} {part.json.label} {part.json.json}", 200)
                    self._screen.line((f"· {line}", "dim"))
                case _:
                    self._part(part)

    def _part(self, part: item_pb2.ContentPart) -> None:
        match part.WhichOneof("part"):
            case "file_ref":
                self._file(part.file_ref)
            case "image":
                self._screen.line("  ", image_line(part))
            case "reasoning":
                self._screen.line(("✻ (reasoning, not shown by the provider)", "dim italic"))
            case "text":
                self._screen.line(plain(part.text.text))

    def _file(self, file: item_pb2.FileRefPart) -> None:
        # The call, the request and the result may all bring the same diff.
        if not file.diff or (file.path, file.diff) in self._diffs:
            return
        self._diffs.add((file.path, file.diff))
        self._screen.line("  ", describe.file_line(file))
        self._indented(describe.diff_lines(file.diff), "    ")

    def _external(self, part: item_pb2.ContentPart) -> None:
        blob = part.external
        self._screen.line((f"  … {size(blob.size_bytes)} in blob {blob.blob_id}", "dim"))

    def _permission(self, request: interaction_pb2.PermissionRequest) -> None:
        self._asked()
        self._diffs.update((file.path, file.diff) for file in request.files if file.diff)
        self._screen.lines(describe.permission_lines(request))

    def _question(self, request: interaction_pb2.QuestionRequest) -> None:
        self._asked()
        self._screen.lines(describe.question_lines(request))

    def _form(self, request: interaction_pb2.FormRequest) -> None:
        self._asked()
        self._screen.lines(describe.form_lines(request))

    def _asked(self) -> None:
        if self._stream is not None:
            self._end_part(self._stream)
            self._stream.content_index = -1
        self._top()

    def _resolved(
        self,
        resolved: interaction_pb2.PermissionResolved
        | interaction_pb2.QuestionResolved
        | interaction_pb2.FormResolved,
    ) -> None:
        self._at("")
        self._screen.line("  ", describe.resolution(resolved))

    def _error(self, error: error_pb2.Error) -> None:
        self._top()
        self._last_error = error.message
        self._screen.line(error_line(error))

    def _unparsed(self, unparsed: event_pb2.AgentUnparsed) -> None:
        self._at("")
        self._screen.line((agent_error(unparsed), "yellow"))

    def _indented(self, lines: list[Text], margin: str = "  ") -> None:
        for line in lines:
            self._screen.line(margin, line)

    def _wanted(self, item_id: str, kind: event_pb2.DeltaKind.ValueType) -> bool:
        return not self._text_only or (kind == _TEXT and not self._depth(item_id))

    def _top(self, item_id: str = "") -> None:
        """Begin something of its own: an empty line, and the margin of the item."""
        self._at(item_id)
        self._screen.gap()

    def _at(self, item_id: str) -> None:
        self._screen.set_depth(self._depth(item_id))

    def _depth(self, item_id: str) -> int:
        """How many sub-agents' calls the item stands under; a result stands where its call does."""
        depth = 0
        parent = self._parents.get(item_id, "")
        seen = {item_id}
        while parent and parent not in seen:
            seen.add(parent)
            depth += parent in self._calls
            parent = self._parents.get(parent, "")
        return max(depth - (item_id in self._results), 0)
