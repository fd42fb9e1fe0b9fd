"""Amp's stream-json lines to drafts of events, in both of their dialects.

The dialect that resembles Claude Code's is what every CLI writes; the simple one (message,
tool_call, tool_result, error, done) is taken too. Lines of both may be mixed.
"""

import itertools
import json
from collections.abc import Callable, Iterator

from agentstream.v1 import error_pb2, event_pb2, item_pb2
from agentstreamd.adapters.amp import asks, errors, native
from agentstreamd.adapters.amp.content import blocks_of, model_of, parts_of, text_of
from agentstreamd.adapters.amp.native import Fields
from agentstreamd.adapters.amp.tools import Tools
from agentstreamd.adapters.amp.turns import Turns
from agentstreamd.adapters.base import Normalizer
from agentstreamd.model import (
    Draft,
    Kind,
    event,
    text_part,
    unknown_item,
    unparsed,
    whole,
)

_Raw = tuple[bytes, ...]

_NO_KEY = b"No API key found"


class AmpNormalizer(Normalizer):
    """Maps the lines of one CLI process.

    Attributes:
        finished: The CLI has said its last line; it exits when its input is closed.
        turns: The turns so far.
        tools: The calls so far.
    """

    def __init__(
        self,
        *,
        version: str = "",
        one_shot: bool = False,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Map a process of that version; ids are made with `numbers`, shared by those of a session.

        With `one_shot` the session ends after its first turn.
        """
        self.finished = False
        self.turns = Turns()
        self.tools = Tools()
        self._version = version
        self._one_shot = one_shot
        self._numbers = numbers if numbers is not None else itertools.count(1)
        self._handlers: dict[str, Callable[[Fields, _Raw], list[Draft]]] = {
            "system": self._on_system,
            "user": self._on_user,
            "assistant": self._on_assistant,
            "result": self._on_result,
            "message": self._on_simple_message,
            "tool_call": self._on_simple_call,
            "tool_result": self._on_simple_result,
            "error": self._on_simple_error,
            "done": self._on_done,
            asks.ASKED: lambda line, raw: asks.requested(line, self.tools, raw),
            asks.WITHDRAWN: asks.withdrawn,
        }

    def feed(self, message: bytes) -> list[Draft]:
        """See `Normalizer.feed`."""
        raw = (message,)
        if message.startswith(_NO_KEY):
            return [_error(errors.classify(message.decode("utf-8", "replace").strip()), raw)]
        try:
            line = native.members(message)
        except native.Unreadable as error:
            return [unparsed(message, str(error))]
        kind = native.text(line.get("type"))
        if not kind:
            return [unparsed(message, "a message without a type")]
        handler = self._handlers.get(kind)
        return self._unknown(kind, raw) if handler is None else handler(line, raw)

    def sent(self, message: bytes) -> list[Draft]:
        """See `Normalizer.sent`."""
        try:
            line = native.members(message)
        except native.Unreadable:
            return []
        if native.text(line.get("type")) == "user":
            content = native.fields(line.get("message")).get("content")
            blocks = blocks_of(content)
            self.turns.on_sent(text_of(blocks), empty=not blocks)
        return []

    # The dialect that resembles Claude Code's

    def _on_system(self, line: Fields, raw: _Raw) -> list[Draft]:
        if native.text(line.get("subtype")) != "init":
            return self._unknown(f"system/{native.text(line.get('subtype'))}", raw)
        effort = native.text(line.get("reasoning_effort"))
        made = event(metadata_json=json.dumps({"reasoning_effort": effort}) if effort else "")
        updated = made.session_updated
        if native_id := native.text(line.get("session_id")):
            updated.native_session_id = native_id
        if mode := native.text(line.get("agent_mode")):
            updated.mode = mode
        if self._version:
            updated.agent_version = self._version
        if "tools" in line:
            updated.tools.SetInParent()
            updated.tools.names.extend(filter(None, map(native.text, native.items(line["tools"]))))
        if "mcp_servers" in line:
            updated.mcp_servers.SetInParent()
            for server in map(native.fields, native.items(line["mcp_servers"])):
                if name := native.text(server.get("name")):
                    updated.mcp_servers.servers.add(
                        name=name,
                        status=native.text(server.get("status")),
                        error=native.text(server.get("error")),
                    )
        return [Draft(Kind.SESSION_UPDATED, made, raw)]

    def _on_user(self, line: Fields, raw: _Raw) -> list[Draft]:
        content = native.fields(line.get("message")).get("content")
        drafts: list[Draft] = []
        said: list[Fields] = []
        results = False
        for block in blocks_of(content):
            if native.text(block.get("type")) == "tool_result":
                results = True
                drafts += self.tools.on_result(
                    native.text(block.get("tool_use_id")) or self._answered_call(),
                    block.get("content"),
                    native.plain(block.get("is_error")) is True,
                    raw,
                )
            else:
                said.append(block)
        if said or not results:
            drafts += self._on_echo(line, said, raw)
        return drafts

    def _on_echo(self, line: Fields, blocks: list[Fields], raw: _Raw) -> list[Draft]:
        parent = native.text(line.get("parent_tool_use_id"))
        text = text_of(blocks)
        drafts: list[Draft] = []
        if not parent:
            ours, shown = self.turns.on_echo(text, has_content=bool(blocks), raw=raw)
            if not ours:
                unknown = event_pb2.TURN_TRIGGER_UNSPECIFIED
                drafts += self.turns.begin(unknown, raw, text)
            if not shown:
                return drafts
        if blocks:
            item = self._message(line, item_pb2.ITEM_ROLE_USER, parent)
            item.content.extend(parts_of(blocks))
            drafts += whole(item, raw)
        return drafts

    def _on_assistant(self, line: Fields, raw: _Raw) -> list[Draft]:
        message = native.fields(line.get("message"))
        parent = native.text(line.get("parent_tool_use_id"))
        drafts = self._open_turn(parent, raw)
        blocks = blocks_of(message.get("content"))
        calls = [block for block in blocks if native.text(block.get("type")) == "tool_use"]
        parts = parts_of(block for block in blocks if block not in calls)
        container = parent
        if parts:
            item = self._message(line, item_pb2.ITEM_ROLE_ASSISTANT, parent)
            item.content.extend(parts)
            container = item.item_id
            drafts += whole(item, raw, metadata_json=model_of(message))
            self.turns.spoken = self.turns.spoken or not parent
        for block in calls:
            call_id = native.text(block.get("id")) or self._new_id("call")
            name = native.text(block.get("name"))
            drafts += self.tools.on_call(call_id, name, block.get("input"), container, raw)
        self.turns.use(message.get("usage"))
        stop = native.plain(message.get("stop_reason"))
        if not parent and "stop_reason" in message and _is_last(stop, bool(calls)):
            reason = stop if isinstance(stop, str) else ""
            drafts += self._end(event_pb2.TURN_STATUS_COMPLETED, raw, stop_reason=reason)
        return drafts

    def _on_result(self, line: Fields, raw: _Raw) -> list[Draft]:
        self.finished = True
        subtype = native.text(line.get("subtype"))
        failed = native.plain(line.get("is_error")) is True or subtype.startswith("error")
        said = native.text(line.get("error")) or native.text(line.get("result"))
        if not failed:
            drafts = []
            if self.turns.running and not self.turns.spoken and said:
                item = self._message(line, item_pb2.ITEM_ROLE_ASSISTANT, "")
                item.content.append(text_part(said))
                drafts += whole(item, raw)
            return drafts + self._end(event_pb2.TURN_STATUS_COMPLETED, raw)
        if said.startswith(errors.CANCELLED):
            return self._end(event_pb2.TURN_STATUS_INTERRUPTED, raw)
        drafts = []
        for name in errors.tools_needing_approval(said):
            waiting = [key for key, call in self.tools.calls.items() if call.name == name]
            for call_id in waiting:
                drafts += asks.refused(call_id, self.tools, raw)
        error = errors.classify(said, subtype)
        ended = self._end(event_pb2.TURN_STATUS_FAILED, raw, error=error)
        return [*drafts, _error(error, raw), *ended]

    # The simple dialect

    def _on_simple_message(self, line: Fields, raw: _Raw) -> list[Draft]:
        blocks = blocks_of(line.get("content"))
        if native.text(line.get("role")) == "user":
            return self._on_echo(line, blocks, raw)
        drafts = self._open_turn("", raw)
        item = self._message(line, item_pb2.ITEM_ROLE_ASSISTANT, "")
        item.content.extend(parts_of(blocks))
        self.turns.spoken = True
        return drafts + whole(item, raw)

    def _on_simple_call(self, line: Fields, raw: _Raw) -> list[Draft]:
        call = native.fields(line.get("tool_call"))
        call_id = native.text(call.get("id")) or native.text(line.get("id"))
        name = native.text(call.get("name"))
        drafts = self._open_turn("", raw)
        call_id = call_id or self._new_id("call")
        return drafts + self.tools.on_call(call_id, name, call.get("arguments"), "", raw)

    def _on_simple_result(self, line: Fields, raw: _Raw) -> list[Draft]:
        call_id = native.text(line.get("id")) or self._answered_call()
        is_error = native.plain(line.get("is_error")) is True
        return self.tools.on_result(call_id, line.get("content"), is_error, raw)

    def _on_simple_error(self, line: Fields, raw: _Raw) -> list[Draft]:
        said = native.plain(line.get("error"))
        text = said if isinstance(said, str) else native.verbatim(line.get("error"))
        self.turns.error = errors.classify(text, "amp")
        return [_error(self.turns.error, raw)]

    def _on_done(self, _: Fields, raw: _Raw) -> list[Draft]:
        if self.finished:
            return []
        self.finished = True
        failed = self.turns.error
        status = event_pb2.TURN_STATUS_FAILED if failed else event_pb2.TURN_STATUS_COMPLETED
        drafts = self._end(status, raw, error=failed)
        made = event()
        made.session_ended.ended_by = event_pb2.SESSION_ENDER_AGENT
        made.session_ended.reason = (
            event_pb2.SESSION_END_REASON_ONE_SHOT_DONE
            if self._one_shot
            else event_pb2.SESSION_END_REASON_ENDED_BY_AGENT
        )
        return [*drafts, Draft(Kind.SESSION_ENDED, made, raw)]

    # What they share

    def _open_turn(self, parent: str, raw: _Raw) -> list[Draft]:
        """The turn of what the assistant says, where nobody has begun one."""
        if self.turns.running or parent:
            return []
        return self.turns.begin(event_pb2.TURN_TRIGGER_AGENT, raw, None)

    def _end(
        self,
        status: event_pb2.TurnStatus.ValueType,
        raw: _Raw,
        *,
        stop_reason: str = "",
        error: error_pb2.Error | None = None,
    ) -> list[Draft]:
        if self.turns.interrupted and error is None:
            status = event_pb2.TURN_STATUS_INTERRUPTED
        drafts = self.turns.end(status, raw, stop_reason=stop_reason, error=error)
        if drafts:
            self.tools.calls.clear()  # the stream keeper answers what is left open
        return drafts

    def _message(
        self, line: Fields, role: item_pb2.ItemRole.ValueType, parent: str
    ) -> item_pb2.Item:
        given = native.text(line.get("id"))
        given = given or native.text(native.fields(line.get("message")).get("id"))
        return item_pb2.Item(
            item_id=given or self._new_id("message"),
            native_item_id=given,
            parent_id=parent,
            kind=item_pb2.ITEM_KIND_MESSAGE,
            role=role,
        )

    def _unknown(self, label: str, raw: _Raw) -> list[Draft]:
        text = native.dump(native.plain(raw[0])).decode()
        return whole(unknown_item(self._new_id("unknown"), label, text), raw)

    def _answered_call(self) -> str:
        """The call that a result without an id must be of: the oldest without one."""
        return next(iter(self.tools.calls), "") or self._new_id("call")

    def _new_id(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


def _error(error: error_pb2.Error, raw: _Raw) -> Draft:
    made = event()
    made.error.CopyFrom(error)
    return Draft(Kind.ERROR, made, raw)


def _is_last(stop: object, calls: bool) -> bool:
    """Whether the CLI waits for a prompt after a message that stopped so.

    It writes null where the model stopped for another reason than the two it knows, and waits then
    too unless a tool was called.
    """
    if isinstance(stop, str):
        return stop not in ("tool_use", "pause_turn")
    return not calls
