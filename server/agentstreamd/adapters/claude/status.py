"""Lines that report something in passing: status items, and what is ignored on purpose."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from agentstream.v1 import agent_pb2, event_pb2, item_pb2
from agentstreamd.adapters.claude.errors import text_in, whole_in
from agentstreamd.adapters.claude.native import verbatim
from agentstreamd.adapters.claude.threads import call_item_id
from agentstreamd.model import Draft, Kind, event, json_part, status_item, text_part, whole

IGNORED_LINES = {
    "control_response": "answers to the driver's own control requests; the driver acts on them",
    "keep_alive": "says nothing",
    "command_lifecycle": "progress of a prompt through the CLI's queue; turns say the same",
}
"""Types of lines that make no event, with the reason."""

IGNORED_SYSTEM = {
    "thinking_tokens": "an estimate for every few tokens; usage comes with the result",
    "session_state_changed": "turns and requests say the same",
    "status/requesting": "comes before each call of the model; the message that follows says it",
    "status/null": "the end of a status; what follows says it",
}
"""Subtypes of system lines that make no event, with the reason."""

PERMISSION_MODES = {
    "default": agent_pb2.PERMISSION_MODE_DEFAULT,
    "acceptEdits": agent_pb2.PERMISSION_MODE_ACCEPT_EDITS,
    "plan": agent_pb2.PERMISSION_MODE_PLAN,
    "bypassPermissions": agent_pb2.PERMISSION_MODE_BYPASS,
}
"""Permission modes by the CLI's name. It has others (`auto`, `dontAsk`) that have no equal."""

_ENVELOPE = frozenset({"type", "subtype", "session_id", "uuid"})


class _Known(NamedTuple):
    """How to show a line.

    `details`: names of members, the first that is a string says it. `key`: of the snapshot, to
    which the member named `key_of` is added.
    """

    label: str
    details: tuple[str, ...] = ()
    key: str = ""
    key_of: str = ""


_SYSTEM = {
    "task_started": _Known("task_started", ("description",), "task", "task_id"),
    "task_progress": _Known("task_progress", ("description",), "task", "task_id"),
    "task_updated": _Known("task_updated", (), "task", "task_id"),
    "task_notification": _Known("task_ended", ("summary",), "task", "task_id"),
    "background_tasks_changed": _Known("background_tasks", (), "background_tasks"),
    "hook_started": _Known("hook_started", ("hook_name",), "hook", "hook_id"),
    "hook_progress": _Known("hook_progress", ("hook_name",), "hook", "hook_id"),
    "hook_response": _Known("hook_ended", ("hook_name",), "hook", "hook_id"),
    "permission_denied": _Known("permission_denied", ("message",)),
    "informational": _Known("notice", ("content", "message", "text")),
    "notification": _Known("notification", ("text", "message", "title")),
    "model_refusal_fallback": _Known("model_refusal", ("content", "message")),
    "model_refusal_no_fallback": _Known("model_refusal", ("content", "message")),
    "plugin_install": _Known("plugin_install", ("name", "status"), "plugin_install"),
    "worker_shutting_down": _Known("worker_shutting_down", ("reason",)),
    "commands_changed": _Known("commands_changed", (), "commands"),
    "files_persisted": _Known("files_persisted"),
    "memory_recall": _Known("memory_recall"),
    "elicitation_complete": _Known("elicitation_complete"),
    "mirror_error": _Known("warning", ("error", "message")),
    "session_writes_lost": _Known("warning", ("message", "error")),
    "control_request_progress": _Known("progress", ("message", "status")),
    "active_goal": _Known("goal", ("goal", "content", "text"), "goal"),
    "conversation_reset": _Known("conversation_reset", ("reason", "trigger")),
}

_LINES = {
    "rate_limit_event": _Known("rate_limit", (), "rate_limit"),
    "auth_status": _Known("auth_status", ("error",), "auth_status"),
    "tool_progress": _Known("tool_progress", ("tool_name",), "tool_progress", "parent_tool_use_id"),
    "tool_use_summary": _Known("tool_use_summary", ("summary",)),
    "prompt_suggestion": _Known("prompt_suggestion", ("suggestion",)),
    "active_goal": _Known("goal", ("goal", "content", "text"), "goal"),
    "conversation_reset": _Known("conversation_reset", ("reason", "trigger")),
}


class StatusLines:
    """Maps status lines. Remembers which call started which task."""

    def __init__(self, next_id: Callable[[str], str]) -> None:
        """Make ids where the agent gives none with `next_id(kind)`."""
        self.denied_calls: set[str] = set()
        self._next_id = next_id
        self._mode = ""
        self._tasks: dict[str, str] = {}

    def parent_of_task(self, task_id: str) -> str:
        """The tool use that started a task, or ""; a sub-agent's id is its task's."""
        return self._tasks.get(task_id, "")

    def on_line(self, line: Mapping[str, Any], native: bytes) -> list[Draft] | None:
        """A line of a type of its own; None where it is not known."""
        known = _LINES.get(text_in(line, "type"))
        return None if known is None else self._show(known, line, native)

    def on_system(self, line: Mapping[str, Any], native: bytes) -> list[Draft] | None:
        """A system line; None where its subtype is not known."""
        subtype = text_in(line, "subtype")
        match subtype:
            case "status":
                return self._on_status(line, native)
            case "compact_boundary":
                return self._on_compact_boundary(line, native)
            case "local_command_output":
                text = text_in(line, "content") or text_in(line, "output")
                return whole(system_item(self._item_id("system", line), text), (native,))
            case "task_started":
                if tool_use_id := text_in(line, "tool_use_id"):
                    self._tasks[text_in(line, "task_id")] = tool_use_id
            case "permission_denied":
                self.denied_calls.add(text_in(line, "tool_use_id"))
        if subtype in IGNORED_SYSTEM:
            return []
        known = _SYSTEM.get(subtype)
        return None if known is None else self._show(known, line, native)

    def on_denials(self, denials: object, asked: set[str], native: bytes) -> list[Draft]:
        """What a result says was denied, as far as nobody was asked for it or told of it."""
        drafts = []
        for denial in denials if isinstance(denials, list) else ():
            if not isinstance(denial, dict):
                continue
            tool_use_id = text_in(denial, "tool_use_id")
            if tool_use_id in asked or tool_use_id in self.denied_calls:
                continue
            item = status_item(
                self._next_id("permission_denied"),
                "permission_denied",
                f"{text_in(denial, 'tool_name')} was not allowed to run, without asking.",
                parent_id=call_item_id(tool_use_id) if tool_use_id else "",
                more=[json_part("permission_denied", msgspec.json.encode(denial).decode())],
            )
            drafts += whole(item, (native,))
        self.denied_calls.clear()
        return drafts

    def say(self, label: str, detail: str, line: Mapping[str, Any], native: bytes) -> list[Draft]:
        """A status item with the line's members as details."""
        return self._show(_Known(label), {**line, "detail": detail}, native, detail=detail)

    def _show(
        self, known: _Known, line: Mapping[str, Any], native: bytes, *, detail: str = ""
    ) -> list[Draft]:
        detail = detail or next((said for d in known.details if (said := text_in(line, d))), "")
        patch = line.get("patch")
        changed = text_in(patch, "status") if isinstance(patch, dict) else ""
        if outcome := text_in(line, "status") or text_in(line, "outcome") or changed:
            detail = f"{detail}: {outcome}" if detail else outcome
        elif (elapsed := whole_in(line, "elapsed_time_seconds")) is not None:
            detail = f"{detail}: {elapsed} s"
        key = f"{known.key}:{text_in(line, known.key_of)}" if known.key_of else known.key
        item = status_item(
            self._item_id("status", line),
            known.label,
            detail,
            key=key,
            parent_id=self._parent_of(line),
            more=[json_part(known.label, _rest(native))],
        )
        failed = "failed" in (text_in(line, "status"), changed)
        failed = failed or text_in(line, "outcome") == "error"
        return whole(item, (native,), failed=failed)

    def on_mode(self, mode: str, raw: tuple[bytes, ...]) -> list[Draft]:
        """A permission mode that has no equal, or that follows one: the session's settings do not
        show the change.
        """
        before, self._mode = self._mode, mode
        if mode == before or {mode, before or mode} <= PERMISSION_MODES.keys():
            return []
        item = status_item(
            self._next_id("permission_mode"),
            "permission_mode",
            f"The permission mode is now {mode}.",
            key="permission_mode",
        )
        return whole(item, raw)

    def _on_status(self, line: Mapping[str, Any], native: bytes) -> list[Draft]:
        raw = (native,)
        drafts: list[Draft] = []
        if mode := text_in(line, "permissionMode"):
            drafts.append(mode_changed(mode, raw))
            drafts += self.on_mode(mode, raw)
        status = text_in(line, "status")
        if status == "compacting":
            item_id = self._item_id("status", line)
            detail = "The conversation is being compacted."
            drafts += whole(status_item(item_id, "compacting", detail, key="compaction"), raw)
        elif status and f"status/{status}" not in IGNORED_SYSTEM:
            drafts += self._show(_Known("status"), line, native)
        if text_in(line, "compact_result") not in ("", "success"):
            detail = text_in(line, "compact_error") or "The conversation could not be compacted."
            item = status_item(
                self._item_id("status", line), "compaction_failed", detail, key="compaction"
            )
            drafts += whole(item, raw, failed=True)
        return drafts

    def _on_compact_boundary(self, line: Mapping[str, Any], native: bytes) -> list[Draft]:
        said = line.get("compact_metadata")
        said = said if isinstance(said, dict) else {}
        before, after = whole_in(said, "pre_tokens"), whole_in(said, "post_tokens")
        detail = "The conversation was compacted"
        detail += f" ({text_in(said, 'trigger')})" if text_in(said, "trigger") else ""
        if before is not None:
            detail += f" from {before} tokens" + (f" to {after}" if after is not None else "")
        item = status_item(
            self._item_id("status", line),
            "compacted",
            f"{detail}.",
            key="compaction",
            more=[json_part("compacted", _rest(native))],
        )
        return whole(item, (native,))

    def _parent_of(self, line: Mapping[str, Any]) -> str:
        for name in ("parent_tool_use_id", "tool_use_id"):
            if tool_use_id := text_in(line, name):
                return call_item_id(tool_use_id)
        tool_use_id = self._tasks.get(text_in(line, "task_id"), "")
        return call_item_id(tool_use_id) if tool_use_id else ""

    def _item_id(self, kind: str, line: Mapping[str, Any]) -> str:
        uuid = text_in(line, "uuid")
        return f"{kind}:{uuid}" if uuid else self._next_id(kind)


def system_item(item_id: str, text: str, parent_id: str = "") -> item_pb2.Item:
    """Text that the CLI itself puts into the conversation."""
    item = item_pb2.Item(
        item_id=item_id,
        parent_id=parent_id,
        kind=item_pb2.ITEM_KIND_SYSTEM,
        role=item_pb2.ITEM_ROLE_SYSTEM,
    )
    item.content.append(text_part(text))
    return item


def mode_changed(mode: str, raw: tuple[bytes, ...]) -> Draft:
    """`session_updated` for another permission mode."""
    made = event()
    set_mode(made, mode)
    return Draft(Kind.SESSION_UPDATED, made, raw)


def set_mode(made: event_pb2.Event, mode: str) -> None:
    """Say the permission mode, one without equal only in the metadata."""
    made.session_updated.SetInParent()
    if mode in PERMISSION_MODES:
        made.session_updated.permission_mode = PERMISSION_MODES[mode]
    elif mode:
        made.metadata_json = msgspec.json.encode({"permissionMode": mode}).decode()


def _rest(native: bytes) -> str:
    """What a line says besides its type and ids, as a JSON object."""
    rest = {name: value for name, value in verbatim(native).items() if name not in _ENVELOPE}
    return msgspec.json.encode(rest).decode("utf-8", "replace")
