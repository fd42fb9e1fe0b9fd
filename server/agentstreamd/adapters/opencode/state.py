"""What outlives a server and a daemon: what was given for the session, where the session is."""

from collections.abc import Iterable
from typing import Any

import msgspec

from agentstreamd.adapters.opencode.requests import Grant

MAX_STATE_BYTES = 60 * 1024
"""Below the 64 KiB a driver may save; the oldest grants are dropped (and asked for again) first."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The saved state of a driver.

    Attributes:
        directory: The native session's directory, as the server says it.
        grants: Permission and pattern of each rule that was accepted for the session, oldest first.
    """

    directory: str = ""
    grants: tuple[Grant, ...] = ()

    @classmethod
    def load(cls, saved: bytes) -> "Remembered":
        """Read a saved state; one that cannot be read counts as none."""
        try:
            return msgspec.json.decode(saved, type=cls) if saved else cls()
        except msgspec.MsgspecError:
            return cls()

    def dump(self) -> bytes:
        """The state as it is saved, at most `MAX_STATE_BYTES`."""
        kept = self
        while len(dumped := msgspec.json.encode(kept)) > MAX_STATE_BYTES and kept.grants:
            kept = kept.replaced(grants=kept.grants[max(1, len(kept.grants) // 8) :])
        return dumped

    def replaced(self, **fields: Any) -> "Remembered":
        """A copy with other values of these fields."""
        return msgspec.structs.replace(self, **fields)

    def granted(self, grants: Iterable[Grant]) -> "Remembered":
        """Add what was given for the session."""
        return self.replaced(grants=tuple(dict.fromkeys((*self.grants, *grants))))
