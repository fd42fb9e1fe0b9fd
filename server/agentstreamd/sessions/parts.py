"""What a session is put together from."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agentstream.v1 import event_pb2, session_pb2
from agentstreamd.events.log import EventLog, Record
from agentstreamd.sessions.config import SessionsConfig
from agentstreamd.sessions.journal import Journal
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.stored import Queued

Watch = Callable[[str, str], Callable[[event_pb2.Event, Record], None]]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a session works with, apart from what is its own.

    Attributes:
        log: The event log.
        config: Settings of the sessions layer.
        now_ns: The time, Unix nanoseconds.
        new_id: Makes ids that were never used before.
        watch: Gives who is shown every event of a session, by its id and agent; None for nobody.
    """

    log: EventLog
    config: SessionsConfig
    now_ns: Callable[[], int]
    new_id: Callable[[], str]
    watch: Watch | None = None


@dataclass(slots=True)
class SessionParts:
    """The parts a session is put together from.

    Attributes:
        record: The session as answers show it, without what changes all the time.
        config: Its settings as they are now, secrets included.
        keeper: Its stream.
        journal: The way of its events into the log.
        queue: Messages that wait.
        adapter_state: What its last driver saved.
    """

    record: session_pb2.Session
    config: session_pb2.SessionConfig
    keeper: StreamKeeper
    journal: Journal
    queue: list[Queued] = field(default_factory=list)
    adapter_state: bytes = b""
