"""What a session's settings are now, and which of an update's fields really change them."""

from typing import Any

from agentstream.v1 import agent_pb2, event_pb2

_TEXTS = ("model", "mode", "title", "native_session_id", "agent_version")
_MESSAGES = ("labels", "queue", "tools", "mcp_servers")


class Settings:
    """The settings that `session_started` and `session_updated` have said so far.

    Attributes:
        known: All of them.
        dirty: They changed since somebody last set this to False.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self.known = event_pb2.SessionUpdated()
        self.dirty = False

    @property
    def model(self) -> str:
        """The model; empty when not known."""
        return self.known.model

    @property
    def permission_mode(self) -> agent_pb2.PermissionMode.ValueType:
        """The permission mode; unspecified when not known."""
        return self.known.permission_mode

    def begin(self, payload: event_pb2.SessionStarted) -> None:
        """Take what `session_started` says."""
        for name in ("model", "mode", "agent_version"):
            if getattr(payload, name):
                setattr(self.known, name, getattr(payload, name))
        self.known.permission_mode = payload.permission_mode
        self.dirty = True

    def take(self, update: event_pb2.SessionUpdated) -> None:
        """Take what `session_updated` says."""
        self.dirty = True
        self._take(update)

    def _take(self, update: Any) -> None:
        for name in _TEXTS:
            if update.HasField(name):
                setattr(self.known, name, getattr(update, name))
        for name in _MESSAGES:
            if update.HasField(name):
                getattr(self.known, name).CopyFrom(getattr(update, name))
        if update.permission_mode:
            self.known.permission_mode = update.permission_mode

    def changes(self, update: event_pb2.SessionUpdated) -> event_pb2.SessionUpdated | None:
        """The fields of `update` that differ from what is known, which then is; None for none."""
        changed = self._changes(update)
        if not changed.ByteSize():
            # A field that is set has a size, also when it is empty: nothing at all changed.
            return None
        self.take(changed)
        return changed

    def _changes(self, update: Any) -> event_pb2.SessionUpdated:
        # By name, for fields alike: the generated types know each name only by itself.
        known: Any = self.known
        changed = event_pb2.SessionUpdated()
        for name in _TEXTS:
            value = getattr(update, name)
            if update.HasField(name) and not (
                known.HasField(name) and getattr(known, name) == value
            ):
                setattr(changed, name, value)
        for name in _MESSAGES:
            if update.HasField(name) and not (
                known.HasField(name) and getattr(known, name) == getattr(update, name)
            ):
                getattr(changed, name).CopyFrom(getattr(update, name))
        if update.permission_mode and update.permission_mode != self.known.permission_mode:
            changed.permission_mode = update.permission_mode
        return changed
