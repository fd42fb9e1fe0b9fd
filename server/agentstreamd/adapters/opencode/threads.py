"""What is known of a native session: its messages, their text, where it stands in the stream.

A session of a client is one native session, the root, and one for each sub-agent: a thread each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from agentstream.v1 import event_pb2
from agentstreamd.adapters.opencode.native import Event, dict_in, text_in

WAITING_EVENTS = 1024
"""Events of a sub-agent that wait until it is known which call runs it, at most."""


@dataclass(slots=True)
class Slot:
    """A text or reasoning part of an assistant's message.

    Attributes:
        index: Its content index in the message item.
        kind: What its deltas add to.
        text: What was sent of it.
        final: The whole text, once it is known.
        gapped: Its beginning was not seen: deltas may be missing, so none are passed on.
        raw: The native message that the whole text came with.
    """

    index: int
    kind: event_pb2.DeltaKind.ValueType
    text: str = ""
    final: str | None = None
    gapped: bool = False
    raw: bytes = b""


@dataclass(slots=True)
class Message:
    """A message.

    Attributes:
        message_id: Its native id.
        role: `user` or `assistant`.
        thread: The native session it is in.
        answers: For an assistant's message: the user's message it answers.
        ours: It is the echo of a prompt.
        summary: It sums up the conversation, for a compaction.
        started: Its item was started.
        completed: It is complete.
        stepped: Its step of the model has ended: its parts are whole.
        steps: The native messages that said so.
        tools: It has parts that are tools.
        deferred: The event that called it complete while its parts were still to come.
        finish: Why the model stopped; empty when it has not, or nobody says.
        error: The native error it ended with, if it did.
        slots: Its text and reasoning parts by native id, in order.
        shown: Parts of a user's message by native id, once shown or kept.
    """

    message_id: str
    role: str
    thread: "Thread"
    answers: str = ""
    ours: bool = False
    summary: bool = False
    started: bool = False
    completed: bool = False
    stepped: bool = False
    steps: list[bytes] = field(default_factory=list)
    tools: bool = False
    deferred: Event | None = None
    finish: str = ""
    error: dict[str, object] | None = None
    slots: dict[str, Slot] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    @property
    def broke_off(self) -> bool:
        """It is complete, but not whole: its model never came to an end, or was stopped."""
        if self.error is not None or self.finish == "unknown":
            return True
        # An abort between two attempts to reach the model leaves nothing but this.
        return not (self.finish or self.stepped or self.tools)


@dataclass(slots=True)
class Thread:
    """A native session.

    Attributes:
        session_id: Its native id.
        root: It is the client's session itself.
        parent_item: The item its messages stand under: the sub-agent's call; empty for the root.
        directory: Where it works, where that was said.
        compacted: It was compacted since it was idle: what OpenCode goes on with are no prompts.
        messages: Its messages by native id.
    """

    session_id: str
    root: bool
    parent_item: str = ""
    directory: str = ""
    compacted: bool = False
    messages: dict[str, Message] = field(default_factory=dict)

    @property
    def whose(self) -> dict[str, object]:
        """What tells a sub-agent's events from the root's where nothing else does."""
        return {} if self.root else {"sessionID": self.session_id}


class Threads:
    """The threads of one client's session, and what waits until its thread is known.

    Attributes:
        root_id: The native session; empty until it is known.
    """

    def __init__(self, root_id: str) -> None:
        """The threads of the native session `root_id`; of the first that comes, if empty."""
        self.root_id = root_id
        self._known: dict[str, Thread] = {}
        self._waiting: dict[str, list[Event]] = {}
        self._foreign: set[str] = set()

    @property
    def all(self) -> list[Thread]:
        """All that are known."""
        return list(self._known.values())

    @property
    def root(self) -> Thread:
        """The root."""
        return self._known.get(self.root_id) or Thread(self.root_id, root=True)

    @property
    def waiting(self) -> list[str]:
        """Sub-agents of which it is not known where they stand."""
        return list(self._waiting)

    def knows(self, session_id: str) -> bool:
        """Whether it is known where a native session stands."""
        return session_id in self._known

    def find(self, said: Event, call_of: Callable[[str], str]) -> Thread | None:
        """The thread of an event; None where the event waits, or is none of this session's.

        `call_of` gives the item of the call that runs a sub-agent, or nothing.
        """
        session_id = said.session_id
        thread = self._known.get(session_id)
        if thread is not None or session_id in self._foreign:
            return thread
        parent = text_in(dict_in(said.properties, "info"), "parentID") if said.is_session else ""
        if not self.root_id and not parent:
            self.root_id = session_id
        if session_id == self.root_id:
            return self._add(session_id, "")
        call = call_of(session_id)
        if call:
            return self._add(session_id, call)
        if said.is_session and not parent:
            self._foreign.add(session_id)
            self._waiting.pop(session_id, None)
            return None
        waiting = self._waiting.setdefault(session_id, [])
        if len(waiting) < WAITING_EVENTS:
            waiting.append(said)
        return None

    def admit(self, session_id: str, parent_item: str) -> tuple[Thread, list[Event]]:
        """It is known where a sub-agent stands; what waited for that comes along."""
        return self._add(session_id, parent_item), self._waiting.pop(session_id, [])

    def _add(self, session_id: str, parent_item: str) -> Thread:
        root = session_id == self.root_id
        thread = self._known[session_id] = Thread(session_id, root, parent_item)
        return thread
