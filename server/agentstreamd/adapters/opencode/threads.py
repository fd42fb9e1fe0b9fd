"""What is known of a native session: its messages, their text, where it stands in the stream.

A session of a client is one native session, the root, and one for each sub-agent: a thread each.
"""

from dataclasses import dataclass, field

from agentstream.v1 import event_pb2


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
        started: Its item was started.
        completed: It is complete.
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
    started: bool = False
    completed: bool = False
    finish: str = ""
    error: dict[str, object] | None = None
    slots: dict[str, Slot] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Thread:
    """A native session.

    Attributes:
        session_id: Its native id.
        root: It is the client's session itself.
        parent_item: The item its messages stand under: the sub-agent's call; empty for the root.
        directory: Where it works, where that was said.
        messages: Its messages by native id.
    """

    session_id: str
    root: bool
    parent_item: str = ""
    directory: str = ""
    messages: dict[str, Message] = field(default_factory=dict)
