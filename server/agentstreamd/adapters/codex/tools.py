"""Tools: each item of Codex becomes a call and its result. Pure.

A call is made when its item starts, its result when the item completes, with the output that came
in between as deltas of the result. The result's id is the call's with `/result`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw as RawJson

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.codex.content import (
    file_parts,
    local_image_part,
    tool_output,
    url_part,
)
from agentstreamd.adapters.codex.native import (
    JsonObject,
    as_object,
    dump_text,
    known,
    members,
    objects_in,
    text_in,
    text_of,
    texts_in,
    whole_in,
)
from agentstreamd.adapters.codex.threads import Place
from agentstreamd.model import (
    Draft,
    completed,
    delta,
    file_ref_part,
    json_part,
    started,
    status_item,
    tool_call_item,
    tool_result_item,
    whole,
)

Raw = tuple[bytes, ...]
Verbatim = dict[str, RawJson]

_REMEMBERED_CALLS = 4096


@dataclass(slots=True)
class Call:
    """A call, for those who ask about it later.

    Attributes:
        item_id: Its item, which is its call id too.
        item: The native item as it was last seen.
    """

    item_id: str
    item: JsonObject


@dataclass(frozen=True, slots=True)
class _Seen:
    """How a native item shows as a call."""

    name: str
    arguments_json: str
    files: tuple[item_pb2.ContentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class _Result:
    """How a native item shows as a result."""

    output: str
    failed: bool
    exit_code: int | None = None
    more: tuple[item_pb2.ContentPart, ...] = ()
    metadata_json: str = ""


TOOL_TYPES = frozenset(
    {
        "commandExecution",
        "fileChange",
        "mcpToolCall",
        "dynamicToolCall",
        "collabAgentToolCall",
        "webSearch",
        "imageView",
        "imageGeneration",
        "functionCallOutput",
    }
)
"""Types of items that are tools."""

_WHEN_DONE = frozenset({"webSearch", "imageGeneration", "functionCallOutput"})
"""Of these only the completed item says what was asked."""


class Tools:
    """The tools of all threads of a session."""

    def __init__(self, item_id: Callable[[str, str], str]) -> None:
        """`item_id` makes ids of thread and native id."""
        self._item_id = item_id
        self._calls: dict[str, Call] = {}
        self._results: set[str] = set()

    def call(self, thread_id: str, native_id: str) -> Call | None:
        """The call of a native item."""
        return self._calls.get(self._item_id(thread_id, native_id))

    def open_mcp_call(self, thread_id: str, server: str, tool: str) -> Call | None:
        """The newest call of an MCP tool that has not ended: approvals do not name it."""
        for call in reversed(self._calls.values()):
            item = call.item
            if (
                item.get("type") == "mcpToolCall"
                and item.get("status") == "inProgress"
                and text_in(item, "server") == server
                and (not tool or text_in(item, "tool") == tool)
                and call.item_id == self._item_id(thread_id, text_in(item, "id"))
            ):
                return call
        return None

    def newest_spawn(self) -> str:
        """The newest call that makes sub-agents; empty where there is none."""
        for call in reversed(self._calls.values()):
            if text_in(call.item, "tool") in ("spawnAgent", "resumeAgent"):
                return call.item_id
        return ""

    def start(self, item: JsonObject, verbatim: Verbatim, place: Place, raw: Raw) -> list[Draft]:
        """A tool begins."""
        item_id = self._note(item, place)
        made = self._call_item(item_id, item, verbatim, place)
        if item.get("type") in _WHEN_DONE:
            made.content[0].tool_call.ClearField("arguments_json")
            return [started(made, raw)]
        return whole(made, raw)

    def complete(self, item: JsonObject, verbatim: Verbatim, place: Place, raw: Raw) -> list[Draft]:
        """A tool has ended."""
        drafts: list[Draft] = []
        item_id = self._item_id(place.thread_id, text_in(item, "id"))
        if item_id not in self._calls or item.get("type") in _WHEN_DONE:
            was_started = item_id in self._calls
            made = self._call_item(item_id, item, verbatim, place)
            drafts += [completed(made, raw)] if was_started else whole(made, raw)
        self._note(item, place)
        seen = _result(item, verbatim)
        result = tool_result_item(
            f"{item_id}/result",
            call_id=item_id,
            output=seen.output,
            is_error=seen.failed,
            exit_code=seen.exit_code,
            parent_id=item_id,
            native_item_id=text_in(item, "id"),
            more=seen.more,
        )
        if item_id in self._results:
            self._results.discard(item_id)
            done = completed(result, raw, failed=seen.failed, metadata_json=seen.metadata_json)
            return [*drafts, done]
        made_whole = whole(result, raw, failed=seen.failed, metadata_json=seen.metadata_json)
        return drafts + made_whole

    def on_output(self, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """A piece of a tool's output."""
        native_id = text_in(params, "itemId")
        item_id = self._item_id(place.thread_id, native_id)
        drafts: list[Draft] = []
        if item_id not in self._results:
            self._results.add(item_id)
            head = tool_result_item(
                f"{item_id}/result",
                call_id=item_id,
                output="",
                parent_id=item_id,
                native_item_id=native_id,
            )
            drafts.append(started(head, raw))
        text = text_in(params, "delta")
        drafts.append(delta(f"{item_id}/result", 0, event_pb2.DELTA_KIND_TOOL_OUTPUT, text, raw))
        return drafts

    def on_input(self, params: JsonObject, place: Place, raw: Raw, number: int) -> list[Draft]:
        """Something was typed into a running command."""
        item_id = self._item_id(place.thread_id, text_in(params, "itemId"))
        said = known(params, "processId", "stdin")
        item = status_item(
            f"{item_id}/input:{number}",
            "terminal_input",
            text_in(params, "stdin"),
            parent_id=item_id,
            more=[json_part("terminal_input", dump_text(said))],
        )
        return whole(item, raw)

    def end_turn(self) -> None:
        """The root's turn is over: results that are open are closed by the stream keeper."""
        self._results.clear()

    def _note(self, item: JsonObject, place: Place) -> str:
        item_id = self._item_id(place.thread_id, text_in(item, "id"))
        self._calls.pop(item_id, None)
        self._calls[item_id] = Call(item_id, item)
        if len(self._calls) > _REMEMBERED_CALLS:
            del self._calls[next(iter(self._calls))]
        return item_id

    def _call_item(
        self, item_id: str, item: JsonObject, verbatim: Verbatim, place: Place
    ) -> item_pb2.Item:
        seen = _call(item, verbatim)
        return tool_call_item(
            item_id,
            name=seen.name,
            arguments_json=seen.arguments_json,
            call_id=item_id,
            parent_id=place.under,
            native_item_id=text_in(item, "id"),
            files=seen.files,
        )


def tool_name(item: JsonObject) -> str:
    """What a tool is called in the stream."""
    match item.get("type"):
        case "commandExecution":
            return "shell"
        case "fileChange":
            return "apply_patch"
        case "mcpToolCall":
            return f"{text_in(item, 'server')}/{text_in(item, 'tool')}"
        case "dynamicToolCall":
            return "/".join(filter(None, (text_in(item, "namespace"), text_in(item, "tool"))))
        case "functionCallOutput":
            return "/".join(filter(None, (text_in(item, "namespace"), text_in(item, "name"))))
        case "collabAgentToolCall":
            return f"collab/{text_in(item, 'tool')}"
        case "webSearch":
            return "web_search"
        case "imageView":
            return "view_image"
        case _:
            return "image_generation"


def arguments_of(item: JsonObject, verbatim: Verbatim) -> str:
    """The arguments of a tool, as JSON; verbatim where Codex passes the model's on."""
    match item.get("type"):
        case "commandExecution":
            return dump_text(known(item, "command", "cwd"))
        case "fileChange":
            # The contents are in the file_ref parts.
            return dump_text(
                {
                    "changes": [
                        known(change, "path", "kind") for change in objects_in(item, "changes")
                    ]
                }
            )
        case "mcpToolCall" | "dynamicToolCall":
            given = text_of(verbatim.get("arguments", RawJson()))
            return given if given and given != "null" else "{}"
        case "collabAgentToolCall":
            names = ("prompt", "model", "reasoningEffort", "receiverThreadIds")
            return dump_text({k: v for k, v in known(item, *names).items() if v not in ("", [])})
        case "webSearch":
            return dump_text(known(item, "query", "action"))
        case "imageView":
            return dump_text(known(item, "path"))
        case "imageGeneration":
            return dump_text(known(item, "revisedPrompt", "transparentBackground", "inputImages"))
        case _:
            return "{}"


def _call(item: JsonObject, verbatim: Verbatim) -> _Seen:
    files: tuple[item_pb2.ContentPart, ...] = ()
    if item.get("type") == "fileChange":
        files = tuple(file_parts(item))
    elif item.get("type") == "imageView":
        files = (file_ref_part(text_in(item, "path"), item_pb2.FILE_ACTION_READ),)
    return _Seen(tool_name(item), arguments_of(item, verbatim), files)


def _result(item: JsonObject, verbatim: Verbatim) -> _Result:
    failed = text_in(item, "status") not in ("completed", "")
    match item.get("type"):
        case "commandExecution":
            exit_code = whole_in(item, "exitCode")
            if exit_code is not None and abs(exit_code) >= 1 << 31:
                exit_code = None
            said = known(item, "status", "source", "processId", "durationMs", "commandActions")
            return _Result(
                text_in(item, "aggregatedOutput"), failed, exit_code, (), dump_text(said)
            )
        case "fileChange":
            files = () if failed else tuple(file_parts(item))
            return _Result("", failed, None, files, dump_text(known(item, "status")))
        case "mcpToolCall":
            return _mcp_result(item, verbatim, failed)
        case "dynamicToolCall":
            output, parts = tool_output(item.get("contentItems") or ())
            failed = failed or item.get("success") is False
            return _Result(output, failed, None, tuple(parts))
        case "collabAgentToolCall":
            return _collab_result(item, failed)
        case "webSearch":
            results = text_of(verbatim.get("results", RawJson()))
            more = (json_part("results", results),) if results not in ("", "null", "[]") else ()
            return _Result("", False, None, more)
        case "imageGeneration":
            return _generated(item)
        case "functionCallOutput":
            said_output = item.get("output")
            blocks = said_output if isinstance(said_output, list) else []
            output, parts = tool_output(blocks)
            text = said_output if isinstance(said_output, str) else output
            return _Result(text, False, None, tuple(parts))
        case _:
            return _Result("", False)


def _mcp_result(item: JsonObject, verbatim: Verbatim, failed: bool) -> _Result:
    result = as_object(item.get("result"))
    content = result.get("content")
    output, parts = tool_output(content if isinstance(content, list) else ())
    if result.get("structuredContent") is not None:
        structured = members(verbatim.get("result", RawJson())).get("structuredContent", RawJson())
        parts.append(json_part("structured_content", text_of(structured)))
    output = output or text_in(as_object(item.get("error")), "message")
    said = known(item, "durationMs", "appContext", "pluginId", "readOnlyHint")
    return _Result(output, failed, None, tuple(parts), dump_text(said) if said else "")


def _collab_result(item: JsonObject, failed: bool) -> _Result:
    states = as_object(item.get("agentsStates"))
    messages = [text_in(as_object(state), "message") for state in states.values()]
    more = (json_part("agents", dump_text(states)),) if states else ()
    threads = texts_in(item, "receiverThreadIds")
    metadata = dump_text({"receiverThreadIds": threads}) if threads else ""
    return _Result("\n".join(filter(None, messages)), failed, None, more, metadata)


def _generated(item: JsonObject) -> _Result:
    failure = item.get("failure")
    more: list[item_pb2.ContentPart] = []
    if path := text_in(item, "savedPath"):
        more.append(local_image_part(path))
    elif result := text_in(item, "result"):
        more.append(url_part(f"data:image/png;base64,{result}"))
    output = dump_text(failure) if failure is not None else ""
    failed = failure is not None or text_in(item, "status") == "failed"
    return _Result(output, failed, None, tuple(more))
