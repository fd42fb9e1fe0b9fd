"""What a person may want to see pass by: plan, diff, warnings, compaction, hooks. Pure."""

import re
from collections.abc import Callable
from typing import Any

from agentstream.v1 import agent_pb2, event_pb2, item_pb2
from agentstreamd.adapters.codex.native import (
    JsonObject,
    Message,
    as_object,
    dump_text,
    text_in,
    whole_in,
)
from agentstreamd.adapters.codex.permissions import mode_of
from agentstreamd.adapters.codex.redaction import without_instructions
from agentstreamd.adapters.codex.threads import Place
from agentstreamd.model import (
    Draft,
    Kind,
    completed,
    event,
    json_part,
    started,
    status_item,
    text_part,
    unknown_item,
    whole,
)

Raw = tuple[bytes, ...]

IGNORED = frozenset(
    {
        # What turns, requests and items say already.
        "thread/status/changed",
        "thread/compacted",  # the item contextCompaction says it
        # Of the program around the conversation, none of its own.
        "thread/readState/changed",
        "remoteControl/status/changed",
        "thread/prediction/updated",
        "thread/section/changed",
        "thread/attachment/updated",
        "thread/project/updated",
        "project/changed",
        "thread/queue/changed",
        "skills/changed",
        "app/list/updated",
        "account/updated",
        "account/login/completed",
        "account/gatewayOAuth/changed",
        "mcpServer/oauthLogin/completed",
        "windowsSandbox/setupCompleted",
        "windows/worldWritableWarning",
        # Answers to calls that the driver does not make.
        "command/exec/outputDelta",
        "process/outputDelta",
        "process/exited",
        "fs/changed",
        "fuzzyFileSearch/sessionUpdated",
        "fuzzyFileSearch/sessionCompleted",
        "thread/search/partial",
        "externalAgentConfig/import/progress",
        "externalAgentConfig/import/completed",
        "mcpServer/event/stream/notification",
        # Only on request, which the driver does not make: they carry the system prompts.
        "rawResponseItem/completed",
        "rawResponse/completed",
        # Voice, which has its own calls.
        "thread/realtime/started",
        "thread/realtime/itemAdded",
        "thread/realtime/item/started",
        "thread/realtime/item/transcript/delta",
        "thread/realtime/item/completed",
        "thread/realtime/transcript/delta",
        "thread/realtime/transcript/done",
        "thread/realtime/outputAudio/delta",
        "thread/realtime/sdp",
        "thread/realtime/error",
        "thread/realtime/closed",
    }
)
"""Notifications that are left out on purpose."""

_KNOWN = {
    "thread/goal/updated": "goal",
    "thread/goal/cleared": "goal",
    "thread/archived": "archived",
    "thread/unarchived": "unarchived",
    "thread/deleted": "deleted",
    "thread/closed": "closed",
    "thread/reverted": "reverted",
    "thread/environment/connected": "environment",
    "thread/environment/disconnected": "environment",
    "item/autoApprovalReview/started": "approval_review",
    "item/autoApprovalReview/completed": "approval_review",
    "autoApprovalReview/strictReviewRequired": "approval_review",
    "item/mcpToolCall/progress": "tool_progress",
    "model/verification": "model_verification",
    "model/safetyBuffering/updated": "safety_buffering",
    "modelProvider/authRecoveryStarted": "auth_recovery",
    "modelProvider/authRecoveryCompleted": "auth_recovery",
    "turn/moderationMetadata": "moderation",
    "account/rateLimits/updated": "rate_limits",
}
"""Notifications that become a status item of this label, with their parameters as JSON."""

_KEYED = frozenset({"goal", "rate_limits", "environment"})
"""Labels of snapshots: the latest wins."""

_STATUS_ITEMS = {
    "contextCompaction": ("compacting", "compacted", "compaction"),
    "enteredReviewMode": ("review_started", "review_started", ""),
    "exitedReviewMode": ("review_finished", "review_finished", ""),
    "subAgentActivity": ("sub_agent", "sub_agent", ""),
    "sleep": ("sleeping", "slept", ""),
}
"""Types of items that are status: label when started, label when completed, key."""

STATUS_TYPES = frozenset(_STATUS_ITEMS)
"""Types of items that become status items."""

_HOOKS_AT_MOST = 256

_FILE = re.compile(r"^diff --git ", re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Status:
    """Status items of all threads of a session."""

    def __init__(self, item_id: Callable[[str, str], str]) -> None:
        """`item_id` makes ids of thread and native id."""
        self._item_id = item_id
        self._count = 0
        self._diffs: dict[str, str] = {}
        self._mcp_servers: dict[str, tuple[str, str]] = {}
        self._rate_limits = ""
        self._hooks: dict[tuple[str, str], list[str]] = {}

    def next_id(self, label: str) -> str:
        """An id that no other item has."""
        self._count += 1
        return f"{label}:{self._count}"

    # Items

    def start(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """An item that is status begins."""
        return [started(self._item(item, place, done=False), raw)]

    def complete(self, item: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """It has ended."""
        return [completed(self._item(item, place, done=True), raw)]

    def _item(self, item: JsonObject, place: Place, *, done: bool) -> item_pb2.Item:
        kind, native_id = text_in(item, "type"), text_in(item, "id")
        before, after, key = _STATUS_ITEMS[kind]
        more: list[item_pb2.ContentPart] = []
        detail = ""
        match kind:
            case "subAgentActivity":
                detail = f"{text_in(item, 'kind')} {text_in(item, 'agentPath')}".strip()
                more.append(json_part("sub_agent", dump_text(_rest(item))))
            case "enteredReviewMode":
                detail = text_in(item, "review")
            case "exitedReviewMode" if done:
                more.append(text_part(text_in(item, "review")))
            case "sleep":
                detail = f"{(whole_in(item, 'durationMs') or 0) / 1000:g} s"
            case _:
                pass
        made = status_item(
            self._item_id(place.thread_id, native_id),
            after if done else before,
            detail,
            key=key,
            parent_id=place.under,
            more=more,
        )
        made.native_item_id = native_id
        return made

    # Notifications

    def on_plan(self, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """The whole plan of a turn, as the model has it now."""
        steps = params.get("plan")
        said = {"explanation": params.get("explanation"), "plan": steps}
        done = sum(
            1
            for step in (steps if isinstance(steps, list) else ())
            if as_object(step).get("status") == "completed"
        )
        total = len(steps) if isinstance(steps, list) else 0
        return self.say(
            "plan", f"{done} of {total} steps done", said, place, raw, key=_key("plan", place)
        )

    def on_diff(self, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """The whole diff of a turn; Codex repeats it."""
        diff, turn_id = text_in(params, "diff"), text_in(params, "turnId")
        if self._diffs.get(place.thread_id) == f"{turn_id}\n{diff}":
            return []
        self._diffs[place.thread_id] = f"{turn_id}\n{diff}"
        item = status_item(
            self.next_id("diff"),
            "diff",
            _files_of(diff),
            key=_key("diff", place),
            parent_id=place.under,
            more=[text_part(diff)],
        )
        return whole(item, raw)

    def on_hook(self, params: JsonObject, place: Place, raw: Raw, *, done: bool) -> list[Draft]:
        """A hook of the user's runs: one item, from its start to its end."""
        run = as_object(params.get("run"))
        how, run_id = text_in(run, "status"), text_in(run, "id")
        key = (place.thread_id, run_id)
        # One hook may run for several calls at once, under the same id.
        running = self._hooks.get(key, [])
        item_id = running.pop(0) if done and running else ""
        if not running:
            self._hooks.pop(key, None)
        made = status_item(
            item_id or self.next_id("hook"),
            "hook",
            f"{_words(text_in(run, 'eventName'))} hook {how}".strip(),
            parent_id=place.under,
            more=[json_part("hook", dump_text(_rest(params)))],
        )
        made.native_item_id = run_id
        if not done:
            if len(self._hooks) >= _HOOKS_AT_MOST:
                del self._hooks[next(iter(self._hooks))]
            self._hooks.setdefault(key, []).append(made.item_id)
            return [started(made, raw)]
        failed = how == "failed"
        return [completed(made, raw, failed=failed)] if item_id else whole(made, raw, failed=failed)

    def on_settings(self, params: JsonObject, place: Place, line: bytes) -> list[Draft]:
        """The thread's settings changed; they carry a prompt that is not to be kept."""
        settings = as_object(params.get("threadSettings"))
        if not place.is_root:
            return []
        made = event()
        if model := text_in(settings, "model"):
            made.session_updated.model = model
        mode = mode_of(
            settings.get("approvalPolicy"),
            as_object(settings.get("sandboxPolicy")).get("type"),
            as_object(settings.get("collaborationMode")).get("mode"),
        )
        if mode != agent_pb2.PERMISSION_MODE_UNSPECIFIED:
            made.session_updated.permission_mode = mode
        made.session_updated.SetInParent()
        return [Draft(Kind.SESSION_UPDATED, made, (without_instructions(line),))]

    def on_mcp_status(self, params: JsonObject, raw: Raw) -> list[Draft]:
        """An MCP server's state changed."""
        name = text_in(params, "name")
        self._mcp_servers[name] = (text_in(params, "status"), text_in(params, "error"))
        made = event()
        servers = made.session_updated.mcp_servers
        for server, (status, error) in self._mcp_servers.items():
            servers.servers.add(name=server, status=status, error=error)
        return [Draft(Kind.SESSION_UPDATED, made, raw)]

    def on_rerouted(self, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """Another model answers than was asked for."""
        target = text_in(params, "toModel")
        drafts: list[Draft] = []
        if place.is_root and target:
            drafts.append(session_updated(raw, model=target))
        detail = f"{text_in(params, 'fromModel')} to {target}"
        return drafts + self.say("model_rerouted", detail, _rest(params), place, raw)

    def warning(self, params: JsonObject, place: Place, raw: Raw) -> list[Draft]:
        """A warning, of the thread or of the program."""
        detail = text_in(params, "message") or text_in(params, "summary")
        more = _rest(params, "message", "summary")
        return self.say("warning", detail, more, place, raw)

    def on_known(self, message: Message, place: Place) -> list[Draft] | None:
        """One of the many that are rare; None where it is not known."""
        if message.method in IGNORED:
            return []
        label = _KNOWN.get(message.method)
        if label is None:
            return None
        params = message.params
        if label == "rate_limits":
            limits = as_object(params.get("rateLimits"))
            said = {k: v for k, v in limits.items() if v is not None and k != "limitId"}
            # Said after every answer of the model; empty for providers that have none.
            if not said or dump_text(said) == self._rate_limits:
                return []
            self._rate_limits = dump_text(said)
        return self.say(
            label,
            _detail(message.method, params),
            _rest(params),
            place,
            (message.line,),
            key=_key(label, place) if label in _KEYED else "",
        )

    def unknown(self, what: str, message: Message, place: Place) -> list[Draft]:
        """A message of a kind that is not known."""
        text = message.line.decode("utf-8", "replace")
        item = unknown_item(self.next_id("unknown"), what, text, parent_id=place.under)
        return whole(item, (message.line,))

    def unknown_item(
        self, item: JsonObject, message: Message, place: Place, *, done: bool
    ) -> list[Draft]:
        """An item of a type that is not known, verbatim."""
        made = unknown_item(
            self._item_id(place.thread_id, text_in(item, "id")),
            text_in(item, "type") or "item",
            message.line.decode("utf-8", "replace"),
            parent_id=place.under,
        )
        made.native_item_id = text_in(item, "id")
        raw = (message.line,)
        return [completed(made, raw)] if done else [started(made, raw)]

    def say(
        self,
        label: str,
        detail: str,
        said: JsonObject,
        place: Place,
        raw: Raw,
        *,
        key: str = "",
    ) -> list[Draft]:
        """A status item, whole; `said` goes along as JSON where it holds anything."""
        more = [json_part(label, dump_text(said))] if said else []
        item = status_item(
            self.next_id(label), label, detail, key=key, parent_id=place.under, more=more
        )
        return whole(item, raw)


def session_updated(raw: Raw, *, model: str = "", title: str = "", native_id: str = "") -> Draft:
    """`session_updated` for what is given."""
    made = event()
    updated: event_pb2.SessionUpdated = made.session_updated
    if model:
        updated.model = model
    if title:
        updated.title = title
    if native_id:
        updated.native_session_id = native_id
    return Draft(Kind.SESSION_UPDATED, made, raw)


def _key(label: str, place: Place) -> str:
    """A sub-agent has a plan, a diff and a goal of its own."""
    return label if place.is_root else f"{label}:{place.thread_id}"


def _detail(method: str, params: JsonObject) -> str:
    goal = as_object(params.get("goal"))
    if goal:
        return f"{text_in(goal, 'objective')} ({_words(text_in(goal, 'status'))})"
    if method == "thread/goal/cleared":
        return "cleared"
    return text_in(params, "message")


def _files_of(diff: str) -> str:
    count = len(_FILE.findall(diff))
    return f"{count} file{'' if count == 1 else 's'} changed" if count else ""


def _words(name: str) -> str:
    return _CAMEL.sub(" ", name).lower()


def _rest(said: JsonObject, *without: str) -> dict[str, Any]:
    left_out = {"threadId", "turnId", "type", "id", "startedAtMs", "completedAtMs", *without}
    return {k: v for k, v in said.items() if k not in left_out and v is not None}
