"""The normalizer: Claude Code's stream-json lines to drafts of events. Pure.

The mapping, row by row, is in docs/mapping.md. The work is shared: `messages` for what the model
writes, `tools` for results, `requests` for what is asked, `turns` for turns, `status` for the rest.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from agentstream.v1 import item_pb2
from agentstreamd.adapters.base import Normalizer
from agentstreamd.adapters.claude import errors, native
from agentstreamd.adapters.claude.client_side import answer_of
from agentstreamd.adapters.claude.errors import text_in
from agentstreamd.adapters.claude.messages import Messages
from agentstreamd.adapters.claude.native import JsonObject, Line, plain
from agentstreamd.adapters.claude.requests import NativeRequest, Requests
from agentstreamd.adapters.claude.status import (
    IGNORED_LINES,
    StatusLines,
    set_mode,
    system_item,
)
from agentstreamd.adapters.claude.threads import call_item_id
from agentstreamd.adapters.claude.tools import Tools, content_parts
from agentstreamd.adapters.claude.turns import Turns, aborted, error_draft
from agentstreamd.model import Draft, Kind, event, status_item, text_part, unparsed, whole

SYNTHETIC_MODEL = "<synthetic>"
"""The CLI's name for the author of text that no model wrote."""

_INTERRUPTED = frozenset(
    {"[Request interrupted by user]", "[Request interrupted by user for tool use]"}
)
_COMMAND_OUTPUT = re.compile(r"\s*<(local-command-[a-z]+)>(.*)</\1>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClaudeControl:
    """Something that the driver must react to.

    Attributes:
        kind: `response`: an answer to a control request of the driver. `unsupported`: a control
            request that must be answered with an error, else the CLI waits for ever.
        request_id: The control request.
        ok: For a response: it succeeded.
        payload: For a response: what it says, often nothing.
        error: For a response that failed: why. For an unsupported request: its subtype.
    """

    kind: str
    request_id: str
    ok: bool = False
    payload: JsonObject = field(default_factory=dict)
    error: str = ""


class ClaudeNormalizer(Normalizer):
    """Normalizes what one CLI process writes. Each process needs a fresh one: costs are counted
    from the start of the process.

    Attributes:
        session_id: The native session, as the last `init` said; empty before.
        model: The model, as the last `init` said; empty before.
    """

    def __init__(self) -> None:
        self.session_id = ""
        self.model = ""
        self._count = 0
        self._controls: list[ClaudeControl] = []
        self._status = StatusLines(self._next_id)
        self._tools = Tools(self._next_id)
        self._messages = Messages(self._tools, self._next_id)
        self._requests = Requests(self._status.parent_of_task)
        self._turns = Turns()
        self._handlers: dict[str, Callable[[Line, bytes], list[Draft]]] = {
            "stream_event": self._messages.on_event,
            "assistant": self._on_assistant,
            "user": self._on_user,
            "system": self._on_system,
            "result": self._on_result,
            "control_request": self._on_control_request,
            "control_cancel_request": self._on_control_cancel,
            "control_response": self._on_control_response,
            "command_lifecycle": self._on_command_lifecycle,
        }

    # The interface

    def feed(self, message: bytes) -> list[Draft]:
        """Take one line that the CLI wrote."""
        try:
            line = native.decode(message)
            stream_event = line.event
            if (
                stream_event is not None
                and stream_event.type == "content_block_delta"
                and line.type == "stream_event"
            ):
                return self._messages.on_delta(line, stream_event, (message,))
            return self._handlers.get(line.type, self._on_other)(line, message)
        except native.Unreadable as error:
            return [unparsed(message, str(error))] if message.strip() else []
        except Exception as error:
            # A line that no CLI was ever seen to write must not take the session down with it.
            return [unparsed(message, f"cannot be mapped: {error!r}")]

    def sent(self, message: bytes) -> list[Draft]:
        """Take one line that is written to the CLI, before the CLI can react to it."""
        try:
            line = native.decode(message)
        except native.Unreadable:
            return []
        if line.type == "user" and line.message is not None:
            self._turns.on_prompt(line.uuid or "", _text_of(line))
        elif line.type == "control_response":
            response = native.fields(message).get("response")
            if isinstance(response, dict) and answer_of(response) is not None:
                self._requests.on_answer(text_in(response, "request_id"))
        elif line.type == "control_request":
            request = native.fields(message).get("request")
            if isinstance(request, dict) and request.get("subtype") == "cancel_async_message":
                self._turns.on_withdrawn(text_in(request, "message_uuid"))
        return []

    def finish(self) -> list[Draft]:
        """The CLI's output has ended."""
        return [*self._messages.close_all(()), *self._turns.finish()]

    def take_controls(self) -> list[ClaudeControl]:
        """What the driver must react to, of the lines since the last call."""
        controls, self._controls = self._controls, []
        return controls

    def request(self, request_id: str) -> NativeRequest | None:
        """The native request that waits for an answer; None when it does not (any more)."""
        return self._requests.pending.get(request_id)

    # Lines

    def _on_assistant(self, line: Line, message: bytes) -> list[Draft]:
        if line.message is None or line.message.model != SYNTHETIC_MODEL:
            return self._messages.on_assistant(line, message)
        raw = (message,)
        text = _text_of(line)
        thread = line.parent_tool_use_id or ""
        drafts = whole(system_item(self._item_id("system", line), text, _under(thread)), raw)
        name = plain(line.error)
        if not isinstance(name, str):
            self._messages.text_seen = True
        elif thread:
            failure = errors.of_result({}, (name, text), refused=False)
            drafts.append(error_draft(failure, raw))
        else:
            self._turns.api_error = (name, text)
            self._turns.api_error_raw = raw
        return drafts

    def _on_user(self, line: Line, message: bytes) -> list[Draft]:
        if line.message is None:
            return self._tools.unknown("user", message)
        raw = (message,)
        thread = line.parent_tool_use_id or ""
        results = [b for b in native.blocks(line.message.content) if b.type == "tool_result"]
        if results and not all(block.tool_use_id for block in results):
            return self._tools.unknown("tool_result", message)
        if results:
            drafts: list[Draft] = []
            self._messages.note_answer(thread)
            for block in results:
                drafts += self._messages.close(block.tool_use_id, raw)
                drafts += self._requests.on_result(
                    block.tool_use_id, bool(block.is_error), plain(line.tool_use_result), raw
                )
                drafts += self._tools.on_result(block, line, raw)
            if text := _text_of(line):
                drafts += whole(system_item(self._item_id("system", line), text), raw)
            return drafts
        text = _text_of(line)
        command = _COMMAND_OUTPUT.fullmatch(text)
        if command or line.is_synthetic:
            text = command.group(2).strip() if command else text
            return whole(system_item(self._item_id("system", line), text, _under(thread)), raw)
        if text in _INTERRUPTED and not line.is_replay:
            item = status_item(
                self._item_id("status", line),
                "interrupted",
                text.strip("[]"),
                parent_id=_under(thread),
            )
            return whole(item, raw)
        begun: list[Draft] = []
        if line.is_replay:
            if self._turns.on_echo(line.uuid or "", text):
                return []
            begun = self._turns.begin(raw)
        item = item_pb2.Item(
            item_id=self._item_id("user", line),
            native_item_id=line.uuid or "",
            parent_id=_under(thread),
            kind=item_pb2.ITEM_KIND_MESSAGE,
            role=item_pb2.ITEM_ROLE_USER,
        )
        item.content.extend(content_parts(line.message.content))
        return begun + whole(item, raw)

    def _on_system(self, line: Line, message: bytes) -> list[Draft]:
        said = native.fields(message)
        match line.subtype:
            case "init":
                begun = self._turns.begin((message,), surely=True)
                mode = text_in(said, "permissionMode")
                shown = self._status.on_mode(mode, (message,)) if mode else []
                return [self._on_init(said, message), *begun, *shown]
            case "api_retry":
                return [errors.retry(said, (message,))]
            case "task_notification":
                self._turns.on_notification()
            case "model_refusal_no_fallback":
                self._turns.refused = True
        drafts = self._status.on_system(said, message)
        if drafts is None:
            return self._tools.unknown(f"system/{line.subtype}", message)
        if line.subtype == "task_notification":
            # The sub-agent has ended: its last message is whole.
            drafts += self._messages.close(text_in(said, "tool_use_id"), (message,))
        return drafts

    def _on_init(self, said: JsonObject, message: bytes) -> Draft:
        made = event()
        set_mode(made, text_in(said, "permissionMode"))
        updated = made.session_updated
        self._requests.cwd = text_in(said, "cwd")
        self.model = text_in(said, "model")
        self.session_id = text_in(said, "session_id")
        if self.model:
            updated.model = self.model
        if self.session_id:
            updated.native_session_id = self.session_id
        if version := text_in(said, "claude_code_version"):
            updated.agent_version = version
        if isinstance(tools := said.get("tools"), list):
            updated.tools.SetInParent()
            updated.tools.names.extend(name for name in tools if isinstance(name, str))
        if isinstance(servers := said.get("mcp_servers"), list):
            updated.mcp_servers.SetInParent()
            for server in servers:
                if isinstance(server, dict) and text_in(server, "name"):
                    updated.mcp_servers.servers.add(
                        name=text_in(server, "name"),
                        status=text_in(server, "status"),
                        error=text_in(server, "error"),
                    )
        return Draft(Kind.SESSION_UPDATED, made, (message,))

    def _on_result(self, line: Line, message: bytes) -> list[Draft]:
        raw = (message,)
        result = native.fields(message)
        drafts = self._turns.begin(raw)
        drafts += self._messages.close_all(raw, aborted=aborted(result))
        text = text_in(result, "result")
        if text and not self._messages.text_seen and not result.get("is_error"):
            drafts += whole(self._result_item(line, text), raw)
        drafts += self._status.on_denials(
            result.get("permission_denials"), self._requests.asked_calls, message
        )
        self._messages.text_seen = False
        self._requests.end_turn()
        if self._turns.goes_on(result):
            return drafts + self._turns.pass_over(result, message)
        return drafts + self._turns.end(result, message)

    def _result_item(self, line: Line, text: str) -> item_pb2.Item:
        """The answer, where nothing but the result says it."""
        item = item_pb2.Item(
            item_id=self._item_id("result_text", line),
            kind=item_pb2.ITEM_KIND_MESSAGE,
            role=item_pb2.ITEM_ROLE_ASSISTANT,
        )
        item.content.append(text_part(text))
        return item

    def _on_control_request(self, line: Line, message: bytes) -> list[Draft]:
        said = native.verbatim(message)
        request_id = _string(said.get("request_id"))
        request = native.members(said.get("request", Raw()))
        if not request_id:
            return self._tools.unknown("control_request", message)
        drafts = self._requests.on_request(request_id, request, (message,))
        if drafts is not None:
            return drafts
        subtype = _string(request.get("subtype"))
        self._controls.append(ClaudeControl("unsupported", request_id, error=subtype))
        detail = f"The agent asks for something that is not supported here: {subtype or 'unnamed'}"
        return self._status.say("unsupported_request", detail, {}, message)

    def _on_control_cancel(self, line: Line, message: bytes) -> list[Draft]:
        return self._requests.on_cancel(
            _string(native.verbatim(message).get("request_id")), (message,)
        )

    def _on_control_response(self, line: Line, message: bytes) -> list[Draft]:
        response: Any = native.fields(message).get("response")
        if not isinstance(response, dict):
            return self._tools.unknown("control_response", message)
        payload = response.get("response")
        self._controls.append(
            ClaudeControl(
                "response",
                text_in(response, "request_id"),
                ok=response.get("subtype") == "success",
                payload=payload if isinstance(payload, dict) else {},
                error=text_in(response, "error"),
            )
        )
        return []

    def _on_command_lifecycle(self, line: Line, message: bytes) -> list[Draft]:
        said = native.fields(message)
        if text_in(said, "state") in ("started", "completed"):
            self._turns.on_taken(text_in(said, "command_uuid"))
        elif text_in(said, "state") == "cancelled":
            self._turns.on_withdrawn(text_in(said, "command_uuid"))
        return []

    def _on_other(self, line: Line, message: bytes) -> list[Draft]:
        if line.type in IGNORED_LINES:
            return []
        drafts = self._status.on_line(native.fields(message), message)
        return self._tools.unknown(line.type or "line", message) if drafts is None else drafts

    # Ids

    def _next_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}:{self._count}"

    def _item_id(self, kind: str, line: Line) -> str:
        return f"{kind}:{line.uuid}" if line.uuid else self._next_id(kind)


def _text_of(line: Line) -> str:
    """The text of a message, its text blocks joined."""
    if line.message is None:
        return ""
    texts = [b.text for b in native.blocks(line.message.content) if b.type == "text"]
    return "\n".join(texts)


def _under(thread: str) -> str:
    return call_item_id(thread) if thread else ""


def _string(value: Raw | None) -> str:
    said = plain(value) if value is not None else None
    return said if isinstance(said, str) else ""
