"""Messages of the user: prompts of ours, those of others, and what OpenCode puts between them."""

from agentstream.v1 import event_pb2
from agentstreamd.adapters.opencode.messages import Messages
from agentstreamd.adapters.opencode.native import Event, JsonObject, text_in
from agentstreamd.adapters.opencode.status import StatusLines
from agentstreamd.adapters.opencode.threads import Message, Thread
from agentstreamd.adapters.opencode.turns import Turns
from agentstreamd.model import Draft


class Users:
    """The users' messages of all threads of a session."""

    def __init__(self, turns: Turns, messages: Messages, status: StatusLines) -> None:
        self._turns = turns
        self._messages = messages
        self._status = status
        self._ours: set[str] = set()
        self._commands: set[str] = set()

    def sent(self, native_id: str, *, is_command: bool) -> None:
        """A prompt of ours, or a command, is on its way as the message `native_id`."""
        if native_id:
            self._ours.add(native_id)
            if is_command:
                self._commands.add(native_id)

    def begin(self, thread: Thread, message_id: str) -> Message:
        """A message is announced; its parts follow."""
        ours = message_id in self._ours
        if thread.root and ours and self._turns.open:
            self._turns.taken = True
        return Message(message_id, "user", thread, ours=ours)

    def on_part(self, message: Message, said: Event, part: JsonObject) -> list[Draft]:
        """Take a part of a message."""
        thread, kind = message.thread, text_in(part, "type")
        thread.compacted = thread.compacted or kind == "compaction"
        is_added = kind in ("text", "file") and self._is_added(message, part)
        if kind in ("text", "file") and not is_added:
            other = self._messages.incoming not in (None, message)
            drafts = self.close() if other else []
            self._messages.on_user_part(message, said, part)
            return drafts
        drafts = self.close()
        if thread.root and not message.ours and not message.shown:
            trigger = event_pb2.TURN_TRIGGER_UNSPECIFIED
            if kind == "compaction":
                trigger = event_pb2.TURN_TRIGGER_COMPACTION
            drafts += self._turns.begin((said.native,), message.message_id, trigger)
        if is_added:
            return drafts + self._messages.on_added(message, said, part)
        message.shown.add(text_in(part, "id"))
        return drafts + self._status.on_part(message, said, part)

    def close(self) -> list[Draft]:
        """Show the message whose parts have all come, and begin its turn."""
        message = self._messages.incoming
        drafts = self._messages.close_user()
        if message is None or not message.thread.root or not drafts:
            return drafts
        return self._turns.begin(drafts[0].raw, message.message_id) + drafts

    def _is_added(self, message: Message, part: JsonObject) -> bool:
        """Whether OpenCode itself put a part into the conversation."""
        if part.get("synthetic") is True:
            return True
        if message.message_id in self._commands:  # what it makes of a command
            return True
        # A prompt that it repeats after it compacted all before.
        return message.thread.compacted and not message.ours
