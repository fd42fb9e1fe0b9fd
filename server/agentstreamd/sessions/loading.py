"""Making a session, and loading one from the log, also after a crash in the middle of its work."""

from dataclasses import dataclass

from agentstream.v1 import agent_pb2, event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.events.log import Reader
from agentstreamd.sessions import stored
from agentstreamd.sessions.confidential import secrets_of
from agentstreamd.sessions.journal import Journal
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.parts import Environment, SessionParts
from agentstreamd.sessions.prompts import message_id_json, user_item
from agentstreamd.sessions.runtime import restarted
from agentstreamd.sessions.stamp import Stamper
from agentstreamd.sessions.stored import Queued
from agentstreamd.sessions.turns import steered

REMEMBERED_EVENTS = 8192
"""How far back the stream is read for ids that are taken, when a session is loaded."""

_READ_EVENTS = 1024


def _keeper(
    config: session_pb2.SessionConfig, session_id: str, uid: str, environment: Environment
) -> StreamKeeper:
    stamper = Stamper(session_id, uid, store_raw=not config.discard_raw, secrets=secrets_of(config))
    return StreamKeeper(
        stamper,
        new_turn_id=lambda: f"turn_{environment.new_id()}",
        request_timeout_ns=config.request_timeout.ToNanoseconds(),
    )


def new_session(
    session_id: str, config: session_pb2.SessionConfig, environment: Environment
) -> SessionParts:
    """The parts of a session that is not in the log yet: its first write puts it there."""
    uid = environment.new_id()
    now_ns = environment.now_ns()
    record = session_pb2.Session(session_id=session_id, uid=uid)
    record.create_time.FromNanoseconds(now_ns)
    keeper = _keeper(config, session_id, uid, environment)
    keeper.stamper.set_time(now_ns)
    journal = Journal(
        environment.log,
        session_id,
        sequence=0,
        backlog_bytes=environment.config.commit_backlog_bytes,
        create_uid=uid,
    )
    return SessionParts(record, config, keeper, journal)


def started_payload(
    config: session_pb2.SessionConfig, agent_version: str
) -> event_pb2.SessionStarted:
    """`session_started` as the daemon says it where the agent does not."""
    return event_pb2.SessionStarted(
        agent=config.agent,
        agent_version=agent_version,
        working_directory=config.working_directory,
        model=config.model,
        mode=config.mode,
        permission_mode=config.permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT,
        resumed=bool(config.resume_native_session_id),
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A session as it was found in the log.

    Attributes:
        parts: What it is put together from.
        recovered: Work was under way when the daemon ended; it has been closed in the stream, which
            is still to be written.
        puts: State to write with it.
        deletes: Keys of state to delete with it.
        had_turn: A turn has ended; known only of a one-shot session.
    """

    parts: SessionParts
    recovered: bool
    puts: dict[str, bytes]
    deletes: list[str]
    had_turn: bool


async def load_session(reader: Reader, environment: Environment) -> Loaded:
    """Load a session from the log.

    What was under way when the daemon ended is closed: requests, items and the turn, as the laws
    of a stream ask for.
    """
    log, session_id = environment.log, reader.session_id
    record = session_pb2.Session.FromString(await log.get(session_id, stored.SESSION) or b"")
    config = session_pb2.SessionConfig.FromString(await log.get(session_id, stored.CONFIG) or b"")
    adapter_state = await log.get(session_id, stored.ADAPTER) or b""
    waiting = await log.get_prefix(session_id, stored.queue_key(""))
    intents = await log.get_prefix(session_id, stored.intent_key(""))
    queue = sorted((Queued.decode(v) for v in waiting.values()), key=lambda q: q.position)
    keeper = _keeper(config, session_id, record.uid, environment)
    keeper.started = True
    keeper.usage.CopyFrom(record.usage)
    keeper.stamper.native_session_id = record.native_session_id
    keeper.stamper.set_time(record.update_time.ToNanoseconds())
    known = await log.get(session_id, stored.SETTINGS) or b""
    keeper.settings.take(event_pb2.SessionUpdated.FromString(known))
    keeper.settings.dirty = False
    checkpoint = record.latest_sequence
    keeper.stamper.sequence = checkpoint
    if record.state == session_pb2.SESSION_STATE_ENDED and checkpoint == reader.latest:
        keeper.ended = True
    else:
        await _read_back(reader, keeper, checkpoint)
    journal = Journal(
        log,
        session_id,
        sequence=reader.latest,
        backlog_bytes=environment.config.commit_backlog_bytes,
    )
    steering = await log.get_prefix(session_id, stored.steer_key(""))
    puts: dict[str, bytes] = {}
    recovered = not keeper.ended and (not keeper.quiescent or bool(steering))
    if recovered:
        keeper.stamper.set_time(environment.now_ns())
        for key, value in steering.items():
            puts |= _take_in(keeper, key.removeprefix(stored.steer_key("")), Queued.decode(value))
        _close_cut_off(keeper, intents)
    parts = SessionParts(record, config, keeper, journal, queue, adapter_state)
    had_turn = config.one_shot and bool(await log.get_prefix(session_id, stored.turn_key("")))
    return Loaded(parts, recovered, puts, list(steering), had_turn)


async def _read_back(reader: Reader, keeper: StreamKeeper, checkpoint: int) -> None:
    """Remember ids of before the checkpoint, and restore what came after it."""
    cursor = max(reader.earliest - 1, checkpoint - REMEMBERED_EVENTS, 0)
    while cursor < reader.latest:
        kinds = None if cursor >= checkpoint else keeper.REMEMBERED_KINDS
        batch = await reader.read(cursor, max_events=_READ_EVENTS, kinds=kinds)
        for past in service_pb2.EventBatch.FromString(batch.data).events:
            if past.sequence <= checkpoint:
                keeper.remember(past)
            elif kinds is None:
                keeper.restore(past)
        # What a filter leaves out after the checkpoint must not be passed over.
        cursor = batch.last_sequence if kinds is None else min(batch.last_sequence, checkpoint)


def _take_in(keeper: StreamKeeper, message_id: str, message: Queued) -> dict[str, bytes]:
    """Accept a message that was on its way into a turn: the agent may have it."""
    request = message.request
    keeper.add_message(
        user_item(f"user_{message_id}", tuple(request.parts)),
        metadata_json=message_id_json(request.client_message_id, message_id),
    )
    if not request.client_message_id:
        return {}
    response = steered(message.shown.turn_id, message.position)
    value = stored.with_digest(stored.digest(request), response)
    return {stored.message_key(request.client_message_id): value}


def _close_cut_off(keeper: StreamKeeper, intents: dict[str, bytes]) -> None:
    for key in intents:
        keeper.resolve(
            key.removeprefix(stored.intent_key("")),
            interaction_pb2.REQUEST_OUTCOME_UNKNOWN_AFTER_CRASH,
            interaction_pb2.RESOLVED_BY_DAEMON,
            reason="the daemon ended while an answer was on its way to the agent",
            synthetic=True,
        )
    if keeper.turn_id:
        keeper.end_turn(event_pb2.TURN_STATUS_FAILED, restarted())
    keeper.close_all("the daemon was restarted")
