"""What a person may want to see pass by: steps, todo lists, retries, compaction, changed files."""

from collections.abc import Callable, Sequence

from agentstream.v1 import error_pb2, item_pb2
from agentstreamd.adapters.opencode.errors import classify, error_draft
from agentstreamd.adapters.opencode.native import (
    Event,
    JsonObject,
    dict_in,
    dump,
    int_in,
    list_in,
    text_in,
    texts,
)
from agentstreamd.adapters.opencode.threads import Message, Thread
from agentstreamd.model import Draft, file_ref_part, json_part, status_item, unknown_item, whole

IGNORED_PARTS = frozenset({"step-start", "step-finish", "snapshot"})
"""Parts that say nothing by themselves; left out on purpose."""

_DIFF_ACTIONS = {
    "added": item_pb2.FILE_ACTION_WRITE,
    "deleted": item_pb2.FILE_ACTION_DELETE,
}


class StatusLines:
    """Makes status items, and items of what is not known.

    `next_id` makes an item id, new in the session, from a kind.
    """

    def __init__(self, next_id: Callable[[str], str]) -> None:
        self._next_id = next_id
        self._diffs: dict[str, int] = {}
        self._revert: JsonObject = {}
        self._seen: set[str] = set()

    def on_part(self, message: Message, event: Event, part: JsonObject) -> list[Draft]:
        """Take a part that is neither text nor a tool; each is said once."""
        kind, part_id = text_in(part, "type"), text_in(part, "id")
        if kind in IGNORED_PARTS or part_id in self._seen:
            return []
        self._seen.add(part_id)
        told = {k: v for k, v in part.items() if k not in ("id", "messageID", "sessionID", "type")}
        parent = message.message_id if message.started else message.thread.parent_item
        more: list[item_pb2.ContentPart] = [json_part(kind, dump(told))]
        key = ""
        hidden: JsonObject = {}
        match kind:
            case "patch":
                names = texts(list_in(part, "files"))
                label, detail = "files_changed", _changed(len(names))
                more = [file_ref_part(name, item_pb2.FILE_ACTION_PATCH) for name in names if name]
                hidden = {"hash": text_in(part, "hash")}
            case "compaction":
                label, key = "compacting", "compaction"
                detail = "The conversation is being compacted."
            case "subtask":
                label, detail = "subtask", text_in(part, "description")
            case "agent":
                label, detail = "agent_mentioned", text_in(part, "name")
            case "retry":
                label, key = "retrying", "retry"
                detail = text_in(dict_in(dict_in(part, "error"), "data"), "message")
            case _:
                item = unknown_item(part_id, f"part {kind}", dump(part), parent_id=parent)
                item.native_item_id = part_id
                return whole(item, (event.native,))
        return self._say(
            part_id,
            label,
            detail,
            event,
            native_id=part_id,
            key=key,
            parent=parent,
            more=more,
            hidden=hidden,
        )

    def on_todo(self, thread: Thread, event: Event) -> list[Draft]:
        """The todo list has changed."""
        todos = [todo for todo in list_in(event.properties, "todos") if isinstance(todo, dict)]
        done = sum(text_in(todo, "status") == "completed" for todo in todos)
        # A sub-agent has a list of its own.
        key = "todo" if thread.root else f"todo:{thread.session_id}"
        return self._say(
            self._next_id("todo"),
            "todo",
            f"{done} of {len(todos)} done",
            event,
            key=key,
            parent=thread.parent_item,
            more=[json_part("todo", dump(todos))],
        )

    def on_retry(
        self, thread: Thread, event: Event, status: JsonObject
    ) -> tuple[list[Draft], error_pb2.Error]:
        """The server will try to reach the model again."""
        message = text_in(status, "message") or "The model could not be reached."
        error = error_pb2.Error(message=message, will_retry=True)
        error.code = classify("", None, message) or error_pb2.ERROR_CODE_PROVIDER_FAILED
        attempt = int_in(status, "attempt")
        if attempt is not None:
            error.attempt = attempt
        told = {k: v for k, v in status.items() if k not in ("type", "attempt", "message")}
        return [error_draft(error, (event.native,), told={**told, **thread.whose})], error

    def on_compacted(self, thread: Thread, event: Event) -> list[Draft]:
        """The conversation was compacted."""
        return self._say(
            self._next_id("compacted"),
            "compacted",
            "The conversation was compacted.",
            event,
            key="compaction",
            parent=thread.parent_item,
        )

    def on_diffs(self, event: Event, info: JsonObject) -> list[Draft]:
        """A turn's changes of files, all together, where the server has worked them out."""
        diffs = [d for d in list_in(dict_in(info, "summary"), "diffs") if isinstance(d, dict)]
        message_id, said = text_in(info, "id"), hash(dump(diffs))
        # Those of an earlier turn come again with the next one.
        if said == self._diffs.get(message_id, hash("[]")):
            return []
        self._diffs[message_id] = said
        more = [
            file_ref_part(
                text_in(diff, "file"),
                _DIFF_ACTIONS.get(text_in(diff, "status"), item_pb2.FILE_ACTION_PATCH),
                text_in(diff, "patch"),
            )
            for diff in diffs
            if text_in(diff, "file")
        ]
        return self._say(
            self._next_id("diff"),
            "diff",
            _changed(len(diffs)),
            event,
            key="diff",
            more=more,
            hidden={"messageID": message_id},
        )

    def on_revert(self, event: Event, info: JsonObject) -> list[Draft]:
        """Somebody took the conversation back, and the files with it; or that is over."""
        revert = dict_in(info, "revert")
        if revert == self._revert:
            return []
        self._revert = revert
        label, detail = "reverted", "The conversation and its files were taken back."
        if not revert:
            label, detail = "revert_over", "What was taken back is back again, or gone for good."
        more = [json_part("revert", dump(revert))] if revert else []
        return self._say(self._next_id("revert"), label, detail, event, key="revert", more=more)

    def on_removed(self, thread: Thread, event: Event) -> list[Draft]:
        """A message or part was taken out of the native conversation."""
        label = "part_removed" if "part" in event.type else "message_removed"
        return self._say(
            self._next_id(label),
            label,
            text_in(event.properties, "partID") or text_in(event.properties, "messageID"),
            event,
            parent=thread.parent_item,
        )

    def unknown(self, event: Event, parent: str = "") -> list[Draft]:
        """An event of a type that is not known."""
        said = (
            dump(event.properties) if event.properties else event.native.decode("utf-8", "replace")
        )
        item = unknown_item(self._next_id("unknown"), event.type, said, parent_id=parent)
        return whole(item, (event.native,))

    def _say(
        self,
        item_id: str,
        label: str,
        detail: str,
        event: Event,
        *,
        native_id: str = "",
        key: str = "",
        parent: str = "",
        more: Sequence[item_pb2.ContentPart] = (),
        hidden: JsonObject | None = None,
    ) -> list[Draft]:
        item = status_item(item_id, label, detail, key=key, parent_id=parent, more=more)
        item.native_item_id = native_id
        return whole(item, (event.native,), metadata_json=dump(hidden) if hidden else "")


def _changed(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'} changed"
