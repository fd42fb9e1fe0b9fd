"""The normalizer: OpenCode's events to drafts. Pure.

It takes the events of one client's session: those of its native session and of the sub-agents'
sessions below it, as `/event` or `/global/event` sends them; those of others are passed over. The
driver adds what it fetched itself in the same shape, and these:

- `agentstream.reconnected`: the event stream broke and is back; events may be missing;
- `agentstream.gone {requestID}`: a request is no longer pending on the server;
- `agentstream.settled {turn}`: the server says that the session is idle, and its messages were
  fetched: this turn is over;
- `agentstream.failed {message, code}`: the driver stops the turn for this reason.

The mapping, row by row, is in docs/mapping-opencode.md.
"""

from collections.abc import Callable, Iterable

from agentstream.v1 import error_pb2
from agentstreamd.adapters.base import Normalizer
from agentstreamd.adapters.opencode import client_side
from agentstreamd.adapters.opencode.messages import Messages
from agentstreamd.adapters.opencode.native import (
    Event,
    JsonObject,
    Unreadable,
    decode,
    dict_in,
    number_in,
    text_in,
)
from agentstreamd.adapters.opencode.requests import Ask, Grant, Requests
from agentstreamd.adapters.opencode.sessions import deleted_draft, named_draft, session_draft
from agentstreamd.adapters.opencode.status import StatusLines
from agentstreamd.adapters.opencode.threads import Message, Thread, Threads
from agentstreamd.adapters.opencode.tools import Tools
from agentstreamd.adapters.opencode.turns import Guards, Turns
from agentstreamd.adapters.opencode.users import Users
from agentstreamd.model import Draft, Kind, unparsed


class OpenCodeNormalizer(Normalizer):
    """Normalizes the events of one session.

    Attributes:
        turns: The turns, for the driver to look at.
        requests: The requests, for the driver to look at.
    """

    def __init__(
        self,
        *,
        session_id: str = "",
        mcp_servers: Iterable[str] = (),
        grants: Iterable[Grant] = (),
        guards: Guards | None = None,
    ) -> None:
        """Normalize the native session `session_id`; by default the first one that comes."""
        self.turns = Turns(guards or Guards())
        self._tools = Tools()
        self.requests = Requests(self._tools, frozenset(mcp_servers))
        self.requests.granted.update(grants)
        self._messages = Messages()
        self._status = StatusLines(self._next_id)
        self._threads = Threads(session_id)
        self._users = Users(self.turns, self._messages, self._status)
        self._count = 0
        self._handlers: dict[str, Callable[[Thread, Event], list[Draft]]] = {
            "message.part.delta": self._on_delta,
            "message.part.updated": self._on_part,
            "message.updated": self._on_message,
            "message.removed": self._status.on_removed,
            "message.part.removed": self._status.on_removed,
            "session.created": self._on_session,
            "session.updated": self._on_session,
            "session.deleted": self._on_deleted,
            "session.status": self._on_status,
            "session.idle": self._on_idle,
            "session.error": self._on_error,
            "session.compacted": self._status.on_compacted,
            "todo.updated": self._status.on_todo,
            "permission.asked": self.requests.on_permission,
            "permission.replied": self._on_permission_reply,
            "question.asked": self.requests.on_question,
            "question.replied": lambda _, said: self.requests.on_question_reply(said),
            "question.rejected": self._on_question_rejected,
        }

    @property
    def session_id(self) -> str:
        """The native session; empty until it is known."""
        return self._threads.root_id

    # The interface

    def feed(self, message: bytes) -> list[Draft]:
        """Take one event."""
        try:
            said = decode(message)
        except Unreadable as error:
            return [unparsed(message, str(error))]
        if said.type.startswith("agentstream."):
            return self._on_own(said)
        if said.is_noise:
            return []
        if said.session_id:
            was_known = bool(self.session_id)
            thread = self._threads.find(said, self._tools.of_child)
            if thread is None:
                return []
            named = [] if was_known or said.is_session else [named_draft(thread, said)]
            return named + self._handle(thread, said)
        if said.type == "session.error":
            return self._on_error(self._threads.root, said)
        return self._status.unknown(said)

    def sent(self, message: bytes) -> list[Draft]:
        """Take one request that is made to the server: `{method, path, body}` as JSON."""
        request = client_side.decode(message)
        if request is None:
            return []
        if request.action == "prompt":
            native_id = text_in(request.body, "messageID")
            self._users.sent(native_id, is_command=bool(text_in(request.body, "command")))
            self.turns.prompted(native_id)
        elif request.action == "abort":
            self.turns.aborting()
        elif request.request_id in self.requests.pending:
            self.requests.pending[request.request_id].answered = True
        return []

    def finish(self) -> list[Draft]:
        """Say what was held back; whatever runs or waits on the server is gone."""
        drafts = self.requests.release() + self._users.close()
        for session_id in self._threads.waiting:
            drafts += self._admit(session_id, "")
        self.turns.open = False
        self.requests.forget()
        self._messages.lost_connection(self._threads.all)
        return drafts

    # For the driver

    def not_sent(self, *, request_id: str = "") -> None:
        """What was `sent` last did not arrive: a prompt, or the answer to a request."""
        if not request_id:
            self.turns.withdrawn()
        elif request_id in self.requests.pending:
            self.requests.pending[request_id].answered = False

    def take_accepts(self) -> list[Ask]:
        """Requests to reply "once" to: covered by what was given for the session."""
        taken, self.requests.to_accept = self.requests.to_accept, []
        return taken

    # Threads

    def _admit(self, session_id: str, parent_item: str) -> list[Draft]:
        """It is known where a sub-agent stands: take what it said so far."""
        thread, waiting = self._threads.admit(session_id, parent_item)
        return [draft for said in waiting for draft in self._handle(thread, said)]

    def _handle(self, thread: Thread, said: Event) -> list[Draft]:
        handler = self._handlers.get(said.type)
        if handler is None:
            return self._status.unknown(said, thread.parent_item)
        if said.type in ("message.part.updated", "message.part.delta"):
            return handler(thread, said)
        return self._users.close() + handler(thread, said)

    # Messages

    def _on_message(self, thread: Thread, said: Event) -> list[Draft]:
        info = dict_in(said.properties, "info")
        message_id, role = text_in(info, "id"), text_in(info, "role")
        if not message_id or role not in ("user", "assistant"):
            return self._status.unknown(said, thread.parent_item)
        message = thread.messages.get(message_id)
        if role == "user":
            if message is None:
                thread.messages[message_id] = self._users.begin(thread, message_id)
            return self._status.on_diffs(said, info) if thread.root else []
        return self._on_assistant(thread, said, message_id, info)

    def _on_assistant(
        self, thread: Thread, said: Event, message_id: str, info: JsonObject
    ) -> list[Draft]:
        raw = (said.native,)
        begun: list[Draft] = []
        message = thread.messages.get(message_id)
        if message is None:
            begun = self._complete_deferred(thread)
            message = Message(message_id, "assistant", thread)
            message.summary = info.get("summary") is True
            thread.messages[message_id] = message
        if message.completed:
            return []
        message.answers = text_in(info, "parentID")
        message.finish = text_in(info, "finish")
        drafts = begun
        if thread.root:
            drafts += self.turns.begin(raw, message.answers)
            self.turns.on_message(message)
        drafts += self._messages.begin(message, raw)
        if number_in(dict_in(info, "time"), "completed") is None:
            return drafts
        if message.finish and not message.stepped and not dict_in(info, "error"):
            # The server writes a message down late: as it has become, before its parts have come.
            message.deferred = said
            return drafts
        return drafts + self._complete(message, said)

    def _complete(self, message: Message, said: Event) -> list[Draft]:
        info, raw = dict_in(said.properties, "info"), (said.native,)
        message.completed, message.deferred = True, None
        drafts: list[Draft] = []
        error = dict_in(info, "error")
        if error:
            message.error = error
            if message.thread.root:
                drafts += self.turns.on_error(error, raw)
        drafts += self._messages.complete(message, info, said.native)
        return drafts + (self._end_if_done(raw) if message.thread.root else [])

    def _complete_deferred(self, thread: Thread) -> list[Draft]:
        """Nothing more comes of messages that said so before their parts came."""
        drafts: list[Draft] = []
        for message in thread.messages.values():
            if message.deferred is not None:
                drafts += self._complete(message, message.deferred)
        return drafts

    def _on_delta(self, thread: Thread, said: Event) -> list[Draft]:
        message_id = text_in(said.properties, "messageID")
        if text_in(said.properties, "field") not in ("text", "") or not message_id:
            return self._status.unknown(said, thread.parent_item)
        shown = self._users.close()
        message, drafts = self._message_of(thread, message_id, said)
        return shown + drafts + self._messages.on_delta(message, said)

    def _on_part(self, thread: Thread, said: Event) -> list[Draft]:
        part = dict_in(said.properties, "part")
        message_id, kind = text_in(part, "messageID"), text_in(part, "type")
        if not message_id or not text_in(part, "id"):
            return self._status.unknown(said, thread.parent_item)
        known = thread.messages.get(message_id)
        if known is not None and known.role == "user":
            return self._users.on_part(known, said, part)
        shown = self._users.close()
        message, drafts = self._message_of(thread, message_id, said)
        drafts = shown + drafts
        match kind:
            case "text" | "reasoning":
                drafts += self._messages.on_text(message, said, part)
            case "tool":
                drafts += self._on_tool(message, said, part)
            case "step-finish":
                if not message.completed and not message.stepped:
                    message.steps.append(said.native)
                message.stepped = True
                drafts += self.turns.on_step(text_in(part, "id"), part, thread.session_id)
            case _:
                drafts += self._status.on_part(message, said, part)
        return drafts

    def _on_tool(self, message: Message, said: Event, part: JsonObject) -> list[Draft]:
        message.tools = True
        drafts = self._tools.on_part(message, said, part)
        tool = self._tools.of_call(text_in(part, "callID"))
        if tool is not None and tool.called:
            drafts += self.requests.on_called(tool.call_id)
        if tool is not None and tool.child and not self._threads.knows(tool.child):
            drafts += self._admit(tool.child, tool.part_id)
        return drafts

    def _message_of(
        self, thread: Thread, message_id: str, said: Event
    ) -> tuple[Message, list[Draft]]:
        """The message that a part is of, with a stub where it was not announced."""
        message = thread.messages.get(message_id)
        if message is not None:
            return message, []
        message = Message(message_id, "assistant", thread)
        thread.messages[message_id] = message
        drafts: list[Draft] = []
        if thread.root:
            drafts += self.turns.begin((said.native,))
            self.turns.on_message(message)
        return message, drafts + self._messages.begin(message, (said.native,), stub=True)

    # The session

    def _on_session(self, thread: Thread, said: Event) -> list[Draft]:
        info = dict_in(said.properties, "info")
        thread.directory = text_in(info, "directory") or thread.directory
        if not thread.root:
            return []
        return [session_draft(thread, said, info), *self._status.on_revert(said, info)]

    def _on_deleted(self, thread: Thread, said: Event) -> list[Draft]:
        if not thread.root:
            return []
        self.turns.must_abort = self.turns.open  # deleting it does not stop it
        return [deleted_draft(said)]

    def _on_status(self, thread: Thread, said: Event) -> list[Draft]:
        status = dict_in(said.properties, "status")
        match text_in(status, "type"):
            case "busy":
                return self.turns.begin((said.native,)) if thread.root else []
            case "retry":
                drafts, error = self._status.on_retry(thread, said, status)
                if thread.root:
                    drafts = self.turns.begin((said.native,)) + drafts
                return drafts + self.turns.on_retry(error.attempt, error)
            case "idle":
                return []  # session.idle follows each
            case _:
                return self._status.unknown(said, thread.parent_item)

    def _on_idle(self, thread: Thread, said: Event) -> list[Draft]:
        drafts = self._complete_deferred(thread)
        thread.compacted = False
        if not thread.root:
            return drafts
        drafts += self.requests.release() + self.turns.on_idle((said.native,))
        return self._forget_if_over(drafts)

    def _on_error(self, thread: Thread, said: Event) -> list[Draft]:
        error, raw = dict_in(said.properties, "error"), (said.native,)
        if thread.root:
            return self.turns.on_error(error, raw)
        return self.turns.on_child_error(error, raw, thread.whose)

    def _on_permission_reply(self, _: Thread, said: Event) -> list[Draft]:
        if text_in(said.properties, "reply") == "reject":
            self.turns.on_rejection()
        return self.requests.on_permission_reply(said)

    def _on_question_rejected(self, _: Thread, said: Event) -> list[Draft]:
        self.turns.on_rejection()
        return self.requests.on_question_reply(said)

    def _end_if_done(self, raw: tuple[bytes, ...]) -> list[Draft]:
        return self._forget_if_over(self.turns.end_if_done(raw))

    def _forget_if_over(self, drafts: list[Draft]) -> list[Draft]:
        if any(draft.kind is Kind.TURN_ENDED for draft in drafts):
            # The server never takes back what an abort left unanswered.
            self.requests.forget()
        return drafts

    # What the driver says

    def _on_own(self, said: Event) -> list[Draft]:
        match said.type:
            case "agentstream.reconnected":
                self._messages.lost_connection(self._threads.all)
                return []
            case "agentstream.gone":
                return self.requests.on_gone(text_in(said.properties, "requestID"))
            case "agentstream.failed":
                code = error_pb2.ErrorCode.Value(text_in(said.properties, "code"))
                return self.turns.fail(text_in(said.properties, "message"), code)
            case "agentstream.settled":
                turn = text_in(said.properties, "turn")
                if turn and turn != self.turns.native_id:
                    return []
                drafts = self._users.close() + self.requests.release()
                drafts += self._complete_deferred(self._threads.root)
                return self._forget_if_over(drafts + self.turns.end(()))
            case _:
                return self._status.unknown(said)

    def _next_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}:{self._count}"
