"""Stamping: a draft gets its place in the stream and becomes a record for the log."""

from collections.abc import Callable, Sequence

from agentstream.v1 import event_pb2
from agentstreamd.events.log import Record
from agentstreamd.model import Draft, Kind
from agentstreamd.redaction import redacted
from agentstreamd.sessions.sizes import (
    ENVELOPE_BYTES,
    MAX_EVENT_BYTES,
    RAW_INLINE_BYTES,
    Blobs,
    fill_native,
    shrink,
)

_NANOSECONDS = 1_000_000_000
_WITH_ERROR = frozenset({Kind.ERROR, Kind.TURN_ENDED, Kind.SESSION_ENDED})


class Stamper:
    """Numbers, dates and serializes the events of one session.

    Attributes:
        sequence: Sequence of the last event stamped.
        native_session_id: The agent's id of the session, as far as known.
        records: Records stamped and not yet taken.
        blobs: Blobs that belong to them.
        listener: When set, is shown every stamped event (replaying a transcript reads them here).
    """

    def __init__(
        self,
        session_id: str,
        uid: str,
        *,
        store_raw: bool,
        sequence: int = 0,
        secrets: Sequence[str] = (),
    ) -> None:
        """Go on after `sequence`; native messages are left out unless `store_raw`.

        `secrets` are values that errors are not to show.
        """
        self._secrets = tuple(secrets)
        self.session_id = session_id
        self.sequence = sequence
        self.native_session_id = ""
        self.records: list[Record] = []
        self.blobs = Blobs({})
        self.listener: Callable[[event_pb2.Event, Record], None] | None = None
        self._event_id_prefix = f"{uid}-"
        self._store_raw = store_raw
        self._seconds = 0
        self._nanos = 0
        self._last_ns = 0
        self._raw_key: tuple[bytes, ...] = ()
        self._raw_encoded = b""

    def set_time(self, now_ns: int) -> None:
        """The time of the events that follow, Unix nanoseconds; never goes back within a stream."""
        if now_ns < self._last_ns:
            now_ns = self._last_ns
        self._last_ns = now_ns
        self._seconds, self._nanos = divmod(now_ns, _NANOSECONDS)

    @property
    def time_ns(self) -> int:
        """The time of the last event, Unix nanoseconds."""
        return self._last_ns

    def stamp(self, draft: Draft, turn_id: str) -> int:
        """Make `draft` the next event; returns its sequence."""
        event = draft.event
        self.sequence = sequence = self.sequence + 1
        event.event_id = self._event_id_prefix + str(sequence)
        event.sequence = sequence
        time = event.time
        time.seconds = self._seconds
        time.nanos = self._nanos
        event.session_id = self.session_id
        if self.native_session_id:
            event.native_session_id = self.native_session_id
        if turn_id:
            event.turn_id = turn_id
        if draft.kind in _WITH_ERROR:
            self._redact(event)
        encoded = event.SerializeToString()
        if len(encoded) > MAX_EVENT_BYTES - ENVELOPE_BYTES:
            shrink(event, self.blobs)
            encoded = event.SerializeToString()
        raw = b""
        if draft.raw and self._store_raw:
            raw = self._raw_encoded if draft.raw is self._raw_key else self._encode_raw(draft.raw)
        record = Record(encoded, raw, draft.kind)
        self.records.append(record)
        if self.listener is not None:
            self.listener(event, record)
        return sequence

    def _encode_raw(self, raw: tuple[bytes, ...]) -> bytes:
        carrier = event_pb2.Event()
        room = MAX_EVENT_BYTES // 2
        for message in raw:
            inline = len(message) <= min(room, RAW_INLINE_BYTES)
            if inline:
                room -= len(message)
            fill_native(carrier.raw.add(), message, self.blobs, inline=inline)
        self._raw_key = raw
        self._raw_encoded = carrier.SerializeToString()
        return self._raw_encoded

    def redacted(self, text: str) -> str:
        """Text of an agent without what is, or looks like, a secret."""
        return redacted(text, self._secrets)

    def _redact(self, event: event_pb2.Event) -> None:
        """Take secrets out of what went wrong: agents quote keys that are refused."""
        match event.WhichOneof("payload"):
            case "error":
                event.error.message = self.redacted(event.error.message)
            case "turn_ended" if event.turn_ended.error.message:
                error = event.turn_ended.error
                error.message = self.redacted(error.message)
            case "session_ended":
                ended = event.session_ended
                ended.message = self.redacted(ended.message)
                ended.stderr_head = self.redacted(ended.stderr_head)
                ended.stderr_tail = self.redacted(ended.stderr_tail)
            case _:
                pass
