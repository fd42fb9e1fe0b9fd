"""Tools: each item of Codex becomes a call and its result. Pure.

A call is made when its item starts, its result when the item completes, with the output that came
in between as deltas of the result. The result's id is the call's with `/result`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.codex.native import (
    JsonObject,
    dump_text,
    known,
    text_in,
)
from agentstreamd.adapters.codex.threads import Place
from agentstreamd.adapters.codex.tool_shapes import Verbatim, call_of, result_of, tool_name
from agentstreamd.model import (
    Draft,
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

Raw = tuple[bytes, ...]

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
        self._late: dict[str, None] = {}

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
        self._late.pop(item_id, None)  # another of the same id
        made, metadata = self._call_item(item_id, item, verbatim, place)
        if item.get("type") in _WHEN_DONE:
            made.content[0].tool_call.ClearField("arguments_json")
            return [started(made, raw)]
        return whole(made, raw, metadata_json=metadata)

    def complete(self, item: JsonObject, verbatim: Verbatim, place: Place, raw: Raw) -> list[Draft]:
        """A tool has ended."""
        drafts: list[Draft] = []
        item_id = self._item_id(place.thread_id, text_in(item, "id"))
        if item_id in self._late:
            return self._end_late(item_id, item, verbatim, raw)
        if item_id not in self._calls or item.get("type") in _WHEN_DONE:
            was_started = item_id in self._calls
            made, metadata = self._call_item(item_id, item, verbatim, place)
            drafts += (
                [completed(made, raw, metadata_json=metadata)]
                if was_started
                else whole(made, raw, metadata_json=metadata)
            )
        self._note(item, place)
        seen = result_of(item, verbatim)
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
        if item_id in self._late:
            return []  # it comes whole when the command ends
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
        """The root's turn is over: results that are open are closed by the stream keeper.

        A command may run on (a background terminal, also one that was interrupted).
        """
        self._results.clear()
        for item_id, call in self._calls.items():
            if call.item.get("status") == "inProgress":
                self._late[item_id] = None
        while len(self._late) > _REMEMBERED_CALLS:
            del self._late[next(iter(self._late))]

    def _end_late(
        self, item_id: str, item: JsonObject, verbatim: Verbatim, raw: Raw
    ) -> list[Draft]:
        """What a tool says that ends after its turn did: its result is in the stream already."""
        del self._late[item_id]
        self._calls.pop(item_id, None)
        result = result_of(item, verbatim)
        said = known(item, "status", "exitCode", "durationMs")
        how = text_in(item, "status")
        if result.exit_code is not None:
            how = f"{how} with exit code {result.exit_code}"
        more = [json_part("late_output", dump_text(said))]
        if result.output:
            more.append(text_part(result.output))
        ended = status_item(
            f"{item_id}/late",
            "late_output",
            f"{tool_name(item)} ended after its turn: {how}",
            parent_id=item_id,
            more=[*more, *result.more],
        )
        return whole(ended, raw)

    def _note(self, item: JsonObject, place: Place) -> str:
        item_id = self._item_id(place.thread_id, text_in(item, "id"))
        self._calls.pop(item_id, None)
        self._calls[item_id] = Call(item_id, item)
        if len(self._calls) > _REMEMBERED_CALLS:
            del self._calls[next(iter(self._calls))]
        return item_id

    def _call_item(
        self, item_id: str, item: JsonObject, verbatim: Verbatim, place: Place
    ) -> tuple[item_pb2.Item, str]:
        seen = call_of(item, verbatim)
        made = tool_call_item(
            item_id,
            name=seen.name,
            arguments_json=seen.arguments_json,
            call_id=item_id,
            parent_id=place.under,
            native_item_id=text_in(item, "id"),
            files=seen.files,
        )
        return made, seen.metadata_json
