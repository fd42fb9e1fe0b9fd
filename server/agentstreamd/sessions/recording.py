"""The way of a session's stream from the keeper into the log, with the state that belongs to it."""

from collections.abc import Callable, Sequence

from agentstream.v1 import agent_pb2, service_pb2, session_pb2
from agentstreamd.sessions import stored
from agentstreamd.sessions.keeper import EndedTurn, Output
from agentstreamd.sessions.parts import SessionParts
from agentstreamd.sessions.requests import Pending, respond_response


class Recording:
    """Writes what the keeper makes, and tells who must know.

    Attributes:
        keeper: The stream.
        journal: The way of its events into the log.
        config: The session's settings as they are now, secrets included.
        answer_digests: Digests of the answers to requests that are about to be resolved.
        on_asked: Told of each request that comes.
        on_resolved: Told of the id of each request that is resolved.
        on_turn_ended: Told of each turn that ends.
        on_running: Told whether a turn runs, each time that this changes.
        on_rest: Told when nothing is under way in the stream any more.
    """

    def __init__(self, parts: SessionParts, now_ns: Callable[[], int]) -> None:
        """Write the stream of `parts`; `now_ns` is the time, Unix nanoseconds."""
        self.keeper = parts.keeper
        self.journal = parts.journal
        self.config = parts.config
        self.answer_digests: dict[str, bytes] = {}
        self.on_asked: Callable[[Pending], None] = lambda pending: None
        self.on_resolved: Callable[[str], None] = lambda request_id: None
        self.on_turn_ended: Callable[[EndedTurn], None] = lambda ended: None
        self.on_running: Callable[[bool], None] = lambda running: None
        self.on_rest: Callable[[], None] = lambda: None
        self._record = parts.record
        self._now_ns = now_ns
        self._was_quiescent = True
        self._was_running = False

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._record.session_id

    @property
    def uid(self) -> str:
        """The session's uid."""
        return self._record.uid

    def tick(self) -> None:
        """Set the time of the events that follow."""
        self.keeper.stamper.set_time(self._now_ns())

    def flush(self, puts: dict[str, bytes] | None = None, deletes: Sequence[str] = ()) -> int:
        """Hand what the keeper made to the log, with state that belongs to it; gives a ticket."""
        output = self.keeper.take()
        state = output.puts
        if puts:
            state.update(puts)
        removed = list(deletes)
        if output.resolved:
            self._keep_resolutions(output, state, removed)
        for ended in output.ended:
            state[stored.turn_key(ended.turn_id)] = interrupt_response(ended).SerializeToString()
        if stored.SETTINGS in state:
            self._follow_settings(state)
        quiescent = self.keeper.quiescent
        comes_to_rest = quiescent and not self._was_quiescent
        if quiescent or self._was_quiescent:
            self._was_quiescent = quiescent
            record = self.describe()
            if quiescent:
                # A restart reads on from here: all before it is closed and summed up.
                record.latest_sequence = self.keeper.stamper.sequence
            state[stored.SESSION] = record.SerializeToString()
        running = bool(self.keeper.turn_id)
        if running != self._was_running:
            self._was_running = running
            self.on_running(running)
        ticket = self.journal.write(output.records, puts=state, deletes=removed, blobs=output.blobs)
        for pending in output.asked:
            self.on_asked(pending)
        for ended in output.ended:
            self.on_turn_ended(ended)
        if comes_to_rest:
            self.on_rest()
        return ticket

    def _keep_resolutions(
        self, output: Output, state: dict[str, bytes], removed: list[str]
    ) -> None:
        for request_id, resolved, sequence in output.resolved:
            answered = self.answer_digests.pop(request_id, b"")
            response = respond_response(resolved, sequence)
            state[stored.resolution_key(request_id)] = stored.with_digest(answered, response)
            removed.append(stored.intent_key(request_id))
            self.on_resolved(request_id)

    def _follow_settings(self, state: dict[str, bytes]) -> None:
        """A mode that the agent changed by itself holds for its next process, too."""
        mode = self.keeper.settings.permission_mode
        if mode and mode != (self.config.permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT):
            self.config.permission_mode = mode
            state[stored.CONFIG] = self.config.SerializeToString()

    async def committed(self, ticket: int) -> None:
        """Wait until a flush is durable. Raises `SessionError` LOG_UNAVAILABLE."""
        await self.journal.committed(ticket)

    async def sync(self) -> None:
        """Wait until all there is now is durable. Raises `SessionError` LOG_UNAVAILABLE."""
        await self.journal.committed(self.journal.written)

    def describe(self) -> session_pb2.Session:
        """The session's record, brought up to date."""
        record, keeper = self._record, self.keeper
        record.config.CopyFrom(stored.without_secrets(self.config))
        record.state = self._state()
        record.update_time.FromNanoseconds(keeper.stamper.time_ns)
        record.native_session_id = keeper.stamper.native_session_id
        record.agent_version = keeper.settings.known.agent_version
        record.usage.CopyFrom(keeper.usage)
        return record

    def _state(self) -> session_pb2.SessionState.ValueType:
        keeper = self.keeper
        if keeper.ended:
            return session_pb2.SESSION_STATE_ENDED
        if not keeper.turn_id:
            return session_pb2.SESSION_STATE_IDLE
        if any(pending.turn_id == keeper.turn_id for pending in keeper.pending.values()):
            return session_pb2.SESSION_STATE_WAITING
        return session_pb2.SESSION_STATE_RUNNING


def interrupt_response(ended: EndedTurn) -> service_pb2.InterruptTurnResponse:
    """The end of a turn as `InterruptTurn` returns it."""
    return service_pb2.InterruptTurnResponse(
        turn_id=ended.turn_id, sequence=ended.sequence, status=ended.status
    )
