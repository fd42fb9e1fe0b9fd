"""Tool parts: each is a call and its result."""

from dataclasses import dataclass, field

from agentstream.v1 import event_pb2
from agentstreamd.adapters.opencode import files
from agentstreamd.adapters.opencode.native import (
    Event,
    JsonObject,
    dict_in,
    dump,
    int_in,
    text_in,
    tool_input,
)
from agentstreamd.adapters.opencode.threads import Message
from agentstreamd.model import (
    Draft,
    completed,
    delta,
    started,
    tool_call_item,
    tool_result_item,
)

_INVALID = "invalid"
_OVERLAP = 256
"""Characters by which two previews of a long output are found to continue each other."""

# What the result or its parts say already. Diagnostics of other files are in the output.
_TOLD_ELSEWHERE = frozenset(
    {"output", "exit", "diff", "filediff", "files", "filepath", "preview", "diagnostics"}
)


@dataclass(slots=True)
class Tool:
    """A tool part.

    Attributes:
        part_id: Its native id, which is the call's item id.
        call_id: The id of the call.
        name: The tool's name as it was first said.
        arguments: The input, one JSON value, verbatim; empty until it is known.
        input: The input, read.
        called: The call is complete.
        returning: The result was started.
        done: The result is complete.
        output: The output that was passed on so far.
        diff: The diff that a permission for it showed; the tool `write` itself gives none.
        child: The native session of the sub-agent that it runs.
    """

    part_id: str
    call_id: str
    name: str
    arguments: str = ""
    input: JsonObject = field(default_factory=dict)
    called: bool = False
    returning: bool = False
    done: bool = False
    output: str = ""
    diff: str = ""
    child: str = ""

    @property
    def result_id(self) -> str:
        """The item id of the result."""
        return f"{self.part_id}:result"


class Tools:
    """The tool parts of all threads of a session."""

    def __init__(self) -> None:
        self._by_part: dict[str, Tool] = {}
        self._by_call: dict[str, Tool] = {}

    def of_call(self, call_id: str) -> Tool | None:
        """The tool part with this call id."""
        return self._by_call.get(call_id)

    def of_child(self, session_id: str) -> str:
        """The item of the call that runs this sub-agent; empty where none is known."""
        tools = self._by_part.values()
        return next((tool.part_id for tool in tools if tool.child == session_id), "")

    def on_part(self, message: Message, event: Event, part: JsonObject) -> list[Draft]:
        """Take a snapshot of a tool part."""
        raw = (event.native,)
        state = dict_in(part, "state")
        drafts: list[Draft] = []
        tool = self._by_part.get(text_in(part, "id"))
        if tool is None:
            tool = self._new(part)
            item = tool_call_item(
                tool.part_id,
                name=tool.name,
                arguments_json="",
                call_id=tool.call_id,
                parent_id=message.message_id,
                native_item_id=tool.part_id,
            )
            drafts.append(started(item, raw))
        tool.child = text_in(dict_in(state, "metadata"), "sessionId") or tool.child
        status = text_in(state, "status")
        if status == "pending" or tool.done:
            return drafts
        if not tool.called:
            drafts += self._call(tool, message, event, raw)
        if status == "running":
            return drafts + self._progress(tool, state, raw)
        return drafts + self._finish(tool, state, status, text_in(part, "tool"), raw)

    def _new(self, part: JsonObject) -> Tool:
        part_id = text_in(part, "id")
        tool = Tool(part_id, text_in(part, "callID") or part_id, text_in(part, "tool") or "unknown")
        self._by_part[part_id] = tool
        self._by_call[tool.call_id] = tool
        return tool

    def _call(
        self, tool: Tool, message: Message, event: Event, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        tool.called = True
        tool.arguments, tool.input = tool_input(event), _input(event)
        call = tool_call_item(
            tool.part_id,
            name=tool.name,
            arguments_json=tool.arguments or "{}",
            call_id=tool.call_id,
            parent_id=message.message_id,
            native_item_id=tool.part_id,
            files=files.call_files(tool.name, tool.input),
        )
        return [completed(call, raw)]

    def _begin_result(self, tool: Tool, raw: tuple[bytes, ...]) -> list[Draft]:
        """The result begins with its first output: a tool that waits for a permission has none."""
        if tool.returning:
            return []
        tool.returning = True
        result = tool_result_item(
            tool.result_id,
            call_id=tool.call_id,
            output="",
            parent_id=tool.part_id,
            native_item_id=tool.part_id,
        )
        return [started(result, raw)]

    def _progress(self, tool: Tool, state: JsonObject, raw: tuple[bytes, ...]) -> list[Draft]:
        """Pass on what is new in the output, which comes whole each time (its head, if long)."""
        preview = text_in(dict_in(state, "metadata"), "output")
        new = _continuation(tool.output, preview)
        tool.output = preview or tool.output
        if not new:
            return []
        begun = self._begin_result(tool, raw)
        return [*begun, delta(tool.result_id, 0, event_pb2.DELTA_KIND_TOOL_OUTPUT, new, raw)]

    def _finish(
        self, tool: Tool, state: JsonObject, status: str, name: str, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        tool.done = True
        metadata = dict_in(state, "metadata")
        failed = status == "error"
        exit_code = int_in(metadata, "exit")
        # The server completes a call that it can't carry out, under another name, and a command
        # that failed, or had to be killed: that one has no exit code.
        renamed = name == _INVALID and tool.name != _INVALID
        is_error = failed or renamed or ("exit" in metadata and exit_code != 0)
        more = files.attachments(state)
        if not is_error:
            changed = files.result_files(tool.name, dict_in(state, "input"), metadata)
            if len(changed) == 1 and tool.name in files.CHANGING:
                changed[0].file_ref.diff = changed[0].file_ref.diff or tool.diff
            more += changed
        told = {
            "title": state.get("title"),
            "time": dict_in(state, "time"),
            "metadata": _told(metadata),
        }
        item = tool_result_item(
            tool.result_id,
            call_id=tool.call_id,
            output=text_in(state, "error") if failed else text_in(state, "output"),
            is_error=is_error,
            exit_code=exit_code,
            parent_id=tool.part_id,
            native_item_id=tool.part_id,
            more=more,
        )
        said = {key: value for key, value in told.items() if value}
        metadata_json = dump(said) if said else ""
        begun = self._begin_result(tool, raw)
        return [*begun, completed(item, raw, failed=is_error, metadata_json=metadata_json)]


def _told(metadata: JsonObject) -> JsonObject:
    """What a tool says of its result beyond the output: nothing twice, nothing empty."""
    told = {k: v for k, v in metadata.items() if k not in _TOLD_ELSEWHERE and v not in (False, [])}
    if isinstance(display := told.get("display"), dict):  # the file that was read, once more
        told["display"] = {k: v for k, v in display.items() if k not in ("text", "truncated")}
    return told


def _input(event: Event) -> JsonObject:
    return dict_in(dict_in(dict_in(event.properties, "part"), "state"), "input")


def _continuation(old: str, new: str) -> str:
    """What `new` says after `old`; empty where they don't continue each other."""
    if new.startswith(old):
        return new[len(old) :]
    tail = old[-_OVERLAP:]
    at = new.rfind(tail)
    return new[at + len(tail) :] if at >= 0 else ""
