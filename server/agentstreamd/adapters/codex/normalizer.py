"""The normalizer: what `codex app-server` writes about one thread, to drafts of events. Pure.

One server works for many sessions; each has a normalizer for its thread, which also takes what its
sub-agents' threads say. The mapping, row by row, is in docs/mapping-codex.md. The work is shared:
`messages`, `tools` and `status` for items, `requests` for what is asked, `turns` for turns,
`threads` for whose is what.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentstreamd.adapters.base import Normalizer
from agentstreamd.adapters.codex import native
from agentstreamd.adapters.codex.echoes import Echoes
from agentstreamd.adapters.codex.messages import Messages
from agentstreamd.adapters.codex.native import (
    JsonObject,
    Message,
    as_object,
    objects_in,
    plain,
    text_in,
    texts_in,
)
from agentstreamd.adapters.codex.permissions import mode_of
from agentstreamd.adapters.codex.requests import NativeRequest, Requests
from agentstreamd.adapters.codex.status import STATUS_TYPES, Status, session_updated
from agentstreamd.adapters.codex.threads import Place, Threads
from agentstreamd.adapters.codex.tools import TOOL_TYPES, Tools
from agentstreamd.adapters.codex.turns import Turns
from agentstreamd.model import Draft, Kind, event, unparsed

_Handler = Callable[[Message, Place, tuple[bytes, ...]], list[Draft]]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A request of the server that nobody can answer, and that must be refused.

    Attributes:
        native_id: The JSON text of its id.
        method: What it asks.
    """

    native_id: str
    method: str


class CodexNormalizer(Normalizer):
    """Normalizes one session's part of what a server writes.

    Attributes:
        threads: Whose threads are whose; `threads.root` is the session's own.
        turns: The turns of the session's own thread.
        child_turns: The running turn of each sub-agent's thread.
    """

    def __init__(self, thread_id: str = "", *, hears_client: bool = True) -> None:
        """`thread_id` is the session's thread; empty for the first that is named. Of a recording
        not all that was written to the server is known: `hears_client` is false.
        """
        self.threads = Threads(thread_id)
        self.turns = Turns(hears_client)
        self.child_turns: dict[str, str] = {}
        self._messages = Messages(self.threads.item_id)
        self._tools = Tools(self.threads.item_id)
        self._status = Status(self.threads.item_id)
        self._requests = Requests(self._tools)
        self._unsupported: list[Unsupported] = []
        self._echoes = Echoes()
        self._inputs = 0
        self._handlers: dict[str, _Handler] = {
            "thread/started": self._on_thread_started,
            "turn/started": self._on_turn_started,
            "turn/completed": self._on_turn_completed,
            "item/started": self._on_item_started,
            "item/completed": self._on_item_completed,
            "item/agentMessage/delta": self._text_delta,
            "item/plan/delta": self._text_delta,
            "item/reasoning/summaryTextDelta": lambda m, p, r: self._delta("summary", m, p, r),
            "item/reasoning/textDelta": lambda m, p, r: self._delta("content", m, p, r),
            "item/reasoning/summaryPartAdded": lambda m, p, r: self._messages.on_part(m.params, p),
            "item/commandExecution/outputDelta": lambda m, p, r: self._tools.on_output(
                m.params, p, r
            ),
            "item/fileChange/outputDelta": lambda m, p, r: self._tools.on_output(m.params, p, r),
            "item/commandExecution/terminalInteraction": self._on_input,
            "item/fileChange/patchUpdated": self._on_patch,
            "turn/plan/updated": lambda m, p, r: self._status.on_plan(m.params, p, r),
            "turn/diff/updated": lambda m, p, r: self._status.on_diff(m.params, p, r),
            "hook/started": lambda m, p, r: self._status.on_hook(m.params, p, r, done=False),
            "hook/completed": lambda m, p, r: self._status.on_hook(m.params, p, r, done=True),
            "thread/tokenUsage/updated": self._on_usage,
            "thread/settings/updated": lambda m, p, r: self._status.on_settings(
                m.params, p, m.line
            ),
            "thread/name/updated": self._on_name,
            "mcpServer/startupStatus/updated": self._on_mcp_status,
            "model/rerouted": lambda m, p, r: self._status.on_rerouted(m.params, p, r),
            "serverRequest/resolved": self._on_resolved,
            "error": self._on_error,
            "warning": lambda m, p, r: self._status.warning(m.params, p, r),
            "guardianWarning": lambda m, p, r: self._status.warning(m.params, p, r),
            "configWarning": lambda m, p, r: self._status.warning(m.params, p, r),
            "deprecationNotice": lambda m, p, r: self._status.warning(m.params, p, r),
        }

    # The interface

    def feed(self, message: bytes) -> list[Draft]:
        """Take one line that the server wrote."""
        try:
            decoded = native.decode(message)
        except native.Unreadable as error:
            return [unparsed(message, str(error))] if message.strip() else []
        return self.take(decoded)

    def take(self, message: Message) -> list[Draft]:
        """Take one message that the server wrote."""
        try:
            return self._take(message)
        except Exception as error:
            # A line that no server was ever seen to write must not take the session down with it.
            return [unparsed(message.line, f"cannot be mapped: {error!r}")]

    def sent(self, message: bytes) -> list[Draft]:
        """Take one line that is written to the server, before the server can react to it."""
        said = plain(message)
        if not isinstance(said, dict):
            return []
        method, params = said.get("method"), as_object(said.get("params"))
        request_id = native.dump_text(said.get("id"))
        if method == "turn/start":
            self.turns.on_sent(request_id)
        elif method == "thread/compact/start":
            self.turns.on_compact_sent()
        elif method is None and ("result" in said or "error" in said):
            self._requests.on_answer(request_id)
        if method in ("turn/start", "turn/steer"):
            self._echoes.expect(params)
        return []

    def finish(self) -> list[Draft]:
        """The server's output has ended."""
        return self._settle_children(())

    def take_unsupported(self) -> list[Unsupported]:
        """Requests that must be refused, of the messages since the last call."""
        found, self._unsupported = self._unsupported, []
        return found

    def request(self, request_id: str) -> NativeRequest | None:
        """The native request that waits for an answer; None when it does not (any more)."""
        request = self._requests.pending.get(request_id)
        return None if request is None or request.answered else request

    # Messages

    def _take(self, message: Message) -> list[Draft]:
        if message.is_response:
            return self._on_response(message)
        thread_id = message.thread_id
        threads = self.threads
        if thread_id and not threads.root:
            threads.root = thread_id
        if message.method == "thread/started":
            self._claim(message.params, thread_id)
        if thread_id in threads.foreign:
            return []
        place = threads.place(thread_id)
        if place is None:
            waits = threads.hold(message)
            if waits and not message.is_request:
                return []
            return self._adopt(thread_id, self._maker_of_child())
        return self._handle(message, place)

    def _handle(self, message: Message, place: Place) -> list[Draft]:
        raw = (message.line,)
        if message.is_request:
            return self._on_request(message, place)
        handler = self._handlers.get(message.method)
        if handler is not None:
            if message.method.startswith("item/") and not _item_id(message):
                return [unparsed(message.line, "an item without an id")]
            return handler(message, place, raw)
        drafts = self._status.on_known(message, place)
        if drafts is not None:
            return drafts
        return self._status.unknown(message.method, message, place)

    def _on_response(self, message: Message) -> list[Draft]:
        """An answer to a request of the client; only those that name threads and turns matter."""
        if not message.id:
            # Neither a message nor an answer to one.
            return self._status.unknown("message", message, Place(self.threads.root, is_root=True))
        result = message.result
        self.turns.on_response(message.id, result)
        thread = as_object(result.get("thread"))
        thread_id = text_in(thread, "id")
        if not thread_id:
            return []
        if not self.threads.root:
            self.threads.root = thread_id
        if thread_id != self.threads.root or "approvalPolicy" not in result:
            self._claim(result, thread_id)
            return []
        made = event()
        made.native_session_id = thread_id
        updated = made.session_updated
        updated.native_session_id = thread_id
        updated.model = text_in(result, "model")
        updated.agent_version = text_in(thread, "cliVersion")
        mode = mode_of(
            result.get("approvalPolicy"), as_object(result.get("sandbox")).get("type"), None
        )
        if mode:
            updated.permission_mode = mode
        return [Draft(Kind.SESSION_UPDATED, made, (message.line,))]

    def _claim(self, said: JsonObject, thread_id: str) -> None:
        """A thread that began or was loaded is another session's, unless one of ours made it."""
        threads = self.threads
        if thread_id == threads.root or threads.place(thread_id) is not None:
            return
        parent = text_in(as_object(said.get("thread")), "parentThreadId")
        if parent != threads.root and parent not in threads.children:
            threads.disown(thread_id)

    def _on_request(self, message: Message, place: Place) -> list[Draft]:
        drafts = self._requests.on_request(message, place)
        if drafts is not None:
            return drafts
        self._unsupported.append(Unsupported(message.id, message.method))
        return self._status.say(
            "unsupported_request",
            f"Codex asks for something that is not supported here: {message.method}",
            {"method": message.method},
            place,
            (message.line,),
        )

    # Threads and turns

    def _on_thread_started(
        self, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        if not place.is_root:
            return []
        thread = as_object(message.params.get("thread"))
        return [session_updated(raw, model=text_in(thread, "model"), native_id=place.thread_id)]

    def _on_turn_started(
        self, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        turn = as_object(message.params.get("turn"))
        if place.is_root:
            return self.turns.start(turn, raw)
        self.child_turns[place.thread_id] = text_in(turn, "id")
        return []

    def _on_turn_completed(
        self, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        turn = as_object(message.params.get("turn"))
        self._requests.end_turn(place.thread_id)
        if not place.is_root:
            self.child_turns.pop(place.thread_id, None)
            return self._messages.end_turn(place.thread_id, raw, is_root=False)
        drafts = self._settle_children(raw)
        drafts += self._messages.end_turn(place.thread_id, raw, is_root=True)
        self._tools.end_turn()
        return drafts + self.turns.end(turn, raw)

    def _on_usage(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        self.turns.on_usage(place.thread_id, message.params, is_root=place.is_root)
        return []

    def _on_error(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        self._messages.cut(place.thread_id)
        return self.turns.error(message.params, raw, is_root=place.is_root)

    def _on_name(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        title = text_in(message.params, "threadName")
        return [session_updated(raw, title=title)] if place.is_root and title else []

    def _on_mcp_status(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        if not text_in(message.params, "name"):
            return [unparsed(message.line, "an MCP server without a name")]
        return self._status.on_mcp_status(message.params, raw) if place.is_root else []

    def _on_resolved(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        native_id = native.dump_text(message.params.get("requestId"))
        return self._requests.on_resolved(native_id, raw)

    # Items

    def _on_item_started(
        self, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        item = as_object(message.params.get("item"))
        kind = text_in(item, "type")
        if kind in TOOL_TYPES:
            drafts = self._tools.start(item, message.verbatim("item"), place, raw)
            return drafts + self._children_of(item, place)
        if kind in STATUS_TYPES:
            return self._status.start(item, place, raw) + self._children_of(item, place)
        if kind in ("agentMessage", "reasoning", "plan"):
            return self._messages.start(item, place, raw)
        if kind in ("userMessage", "hookPrompt"):
            return []  # whole when they complete
        return self._status.unknown_item(item, message, place, done=False)

    def _on_item_completed(
        self, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        item = as_object(message.params.get("item"))
        kind = text_in(item, "type")
        if kind in TOOL_TYPES:
            drafts = self._tools.complete(item, message.verbatim("item"), place, raw)
            return drafts + self._children_of(item, place)
        if kind in STATUS_TYPES:
            return self._status.complete(item, place, raw)
        match kind:
            case "agentMessage" | "reasoning" | "plan":
                return self._messages.complete(item, place, raw)
            case "userMessage":
                # A message that comes in the middle of an answer breaks it off.
                self._messages.cut(place.thread_id)
                if place.is_root and self._echoes.take(item):
                    return []
                return self._messages.user(item, place, raw)
            case "hookPrompt":
                return self._messages.hook_prompt(item, place, raw)
            case _:
                return self._status.unknown_item(item, message, place, done=True)

    def _text_delta(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        return self._messages.on_delta("text", message.params, place, raw)

    def _delta(
        self, kind: str, message: Message, place: Place, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        return self._messages.on_delta(kind, message.params, place, raw)

    def _on_input(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        self._inputs += 1
        return self._tools.on_input(message.params, place, raw, self._inputs)

    def _on_patch(self, message: Message, place: Place, raw: tuple[bytes, ...]) -> list[Draft]:
        """A patch while the model writes it: a snapshot, which may come before its item."""
        said = {"changes": objects_in(message.params, "changes")}
        item_id = self.threads.item_id(place.thread_id, text_in(message.params, "itemId"))
        return self._status.say("patch", "", said, place, raw, key=f"patch:{item_id}")

    # Sub-agents

    def _children_of(self, item: JsonObject, place: Place) -> list[Draft]:
        """Threads that an item names, and what they have said already."""
        item_id = self.threads.item_id(place.thread_id, text_in(item, "id"))
        drafts: list[Draft] = []
        for thread_id in (*texts_in(item, "receiverThreadIds"), text_in(item, "agentThreadId")):
            if thread_id and self.threads.place(thread_id) is None:
                drafts += self._adopt(thread_id, item_id)
        return drafts

    def _adopt(self, thread_id: str, under: str) -> list[Draft]:
        drafts: list[Draft] = []
        for message in self.threads.adopt(thread_id, under):
            place = self.threads.place(thread_id)
            if place is not None:
                drafts += self._handle(message, place)
        return drafts

    def _maker_of_child(self) -> str:
        """The item that most likely made a thread that no item has named."""
        return self._tools.newest_spawn()

    def _settle_children(self, raw: tuple[bytes, ...]) -> list[Draft]:
        drafts: list[Draft] = []
        for thread_id in self.threads.waiting:
            drafts += self._adopt(thread_id, self._maker_of_child())
        return drafts


def _item_id(message: Message) -> str:
    """The id of the item that a message is about; empty where it has none."""
    params = message.params
    if message.method in ("item/started", "item/completed"):
        return text_in(as_object(params.get("item")), "id")
    return text_in(params, "itemId")
