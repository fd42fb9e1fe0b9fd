"""Which thread is whose: the session's own, its sub-agents', and those of other sessions. Pure."""

from dataclasses import dataclass, field

from agentstreamd.adapters.codex.native import Message

HELD_MESSAGES = 256
"""So many messages of a sub-agent wait for the item that made it; then it stands at the top."""

_REMEMBERED_IDS = 16384


@dataclass(frozen=True, slots=True)
class Place:
    """Where what a thread says belongs.

    Attributes:
        thread_id: The thread.
        under: The item it stands under: for a sub-agent the one that made it, else empty.
        is_root: It is the session's own thread.
    """

    thread_id: str
    under: str = ""
    is_root: bool = False


@dataclass(slots=True)
class Threads:
    """The threads that were seen.

    Attributes:
        root: The session's own; empty until it is known.
        foreign: Threads of other sessions of the same server: nothing of theirs is ours.
    """

    root: str = ""
    foreign: set[str] = field(default_factory=set)
    _children: dict[str, Place] = field(default_factory=dict)
    _held: dict[str, list[Message]] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)

    @property
    def children(self) -> list[str]:
        """The sub-agents' threads."""
        return list(self._children)

    @property
    def waiting(self) -> list[str]:
        """Threads whose messages are held back."""
        return list(self._held)

    def place(self, thread_id: str) -> Place | None:
        """Where a thread belongs; None while that is not known, or where it is foreign."""
        if thread_id == self.root or not thread_id:
            return Place(self.root, is_root=True)
        return self._children.get(thread_id)

    def hold(self, message: Message) -> bool:
        """Keep a message of a thread that nobody has named yet; False where that is too many."""
        held = self._held.setdefault(message.thread_id, [])
        held.append(message)
        return len(held) < HELD_MESSAGES

    def adopt(self, thread_id: str, under: str) -> list[Message]:
        """A sub-agent's thread is known now; returns what it has said so far."""
        if not thread_id or thread_id == self.root or thread_id in self.foreign:
            return []
        self._children.setdefault(thread_id, Place(thread_id, under))
        return self._held.pop(thread_id, [])

    def disown(self, thread_id: str) -> None:
        """A thread is another session's."""
        self.foreign.add(thread_id)
        self._held.pop(thread_id, None)

    def item_id(self, thread_id: str, native_id: str) -> str:
        """The id in the stream of a thread's item.

        Model servers make ids that are unique within a thread at best: what a sub-agent calls the
        same as its parent, or another sub-agent, gets its thread's id as a suffix.
        """
        owner = self._owners.setdefault(native_id, thread_id)
        if len(self._owners) > _REMEMBERED_IDS:
            del self._owners[next(iter(self._owners))]
        return native_id if owner == thread_id else f"{native_id}@{thread_id}"
