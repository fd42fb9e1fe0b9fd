"""A draft: an event as a normalizer makes it, before it has its place in a stream."""

from dataclasses import dataclass
from enum import IntEnum

from agentstream.v1 import event_pb2


class Kind(IntEnum):
    """Payloads of an event; each value is the number of its field and of its EventKind."""

    SESSION_STARTED = event_pb2.EVENT_KIND_SESSION_STARTED
    SESSION_UPDATED = event_pb2.EVENT_KIND_SESSION_UPDATED
    SESSION_ENDED = event_pb2.EVENT_KIND_SESSION_ENDED
    TURN_STARTED = event_pb2.EVENT_KIND_TURN_STARTED
    TURN_ENDED = event_pb2.EVENT_KIND_TURN_ENDED
    ITEM_STARTED = event_pb2.EVENT_KIND_ITEM_STARTED
    ITEM_DELTA = event_pb2.EVENT_KIND_ITEM_DELTA
    ITEM_COMPLETED = event_pb2.EVENT_KIND_ITEM_COMPLETED
    PERMISSION_REQUESTED = event_pb2.EVENT_KIND_PERMISSION_REQUESTED
    PERMISSION_RESOLVED = event_pb2.EVENT_KIND_PERMISSION_RESOLVED
    QUESTION_REQUESTED = event_pb2.EVENT_KIND_QUESTION_REQUESTED
    QUESTION_RESOLVED = event_pb2.EVENT_KIND_QUESTION_RESOLVED
    FORM_REQUESTED = event_pb2.EVENT_KIND_FORM_REQUESTED
    FORM_RESOLVED = event_pb2.EVENT_KIND_FORM_RESOLVED
    ERROR = event_pb2.EVENT_KIND_ERROR
    AGENT_UNPARSED = event_pb2.EVENT_KIND_AGENT_UNPARSED


@dataclass(slots=True)
class Draft:
    """An event without sequence, time, ids of session and turn: the stream keeper fills those in.

    Attributes:
        kind: Which payload is set; saves looking it up for every event.
        event: The event with payload, `source`, `synthetic` and `metadata_json` set. The keeper
            takes it over and changes it; a normalizer does not use it again.
        raw: Native messages that led to the event, without line terminator. Events that come from
            the same native message should share the same tuple object: it is then stored once.
    """

    kind: Kind
    event: event_pb2.Event
    raw: tuple[bytes, ...] = ()


class Redacted(bytes):
    """A native message of which something was taken out before it was stored.

    Attributes:
        redactions: Names of what was taken out, for `NativeMessage.redactions`.
    """

    redactions: tuple[str, ...]

    def __new__(cls, message: bytes, redactions: tuple[str, ...]) -> "Redacted":
        """Mark `message`, which has its redactions made already."""
        made = super().__new__(cls, message)
        made.redactions = redactions
        return made
