"""Replaying a recorded transcript: what a session would have been, offline.

The same normalizer and the same stream keeper as in the daemon, without its agent, its clock and
its log: the same transcript gives the same events, always.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    session_pb2,
)
from agentstreamd.adapters.base import Adapter, Answer, ClientAction
from agentstreamd.events.log import Record
from agentstreamd.model import Draft, Kind, event, status_item, unparsed, whole
from agentstreamd.process import Line, LineFramer, OversizedLine
from agentstreamd.replay_answers import fitting, outcome_of
from agentstreamd.sessions.keeper import StreamKeeper
from agentstreamd.sessions.prompts import user_item
from agentstreamd.sessions.requests import REQUESTED, RESOLVED, Pending, resolved_of
from agentstreamd.sessions.stamp import Stamper

EPOCH_NS = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z, Unix nanoseconds: when every replayed session begins."""

SESSION_ID = "replay"

_READ_BYTES = 256 * 1024

Clock = Callable[[int], int]
"""The time of the event with a sequence, Unix nanoseconds."""


def fixed_clock(sequence: int) -> int:
    """A microsecond for each event, from `EPOCH_NS` on."""
    return EPOCH_NS + sequence * 1000


def read_lines(file: BinaryIO) -> Iterator[Line]:
    r"""The lines of a transcript, split at `\n` bytes only; empty ones are left out."""
    return (line for _, line in numbered_lines(file))


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, Line]]:
    """The same, each with its number in the file, from 1 on."""
    return ((number, line) for number, line in enumerate(_all_lines(file), 1) if line != b"")


def _all_lines(file: BinaryIO) -> Iterator[Line]:
    framer = LineFramer()
    while chunk := file.read(_READ_BYTES):
        yield from framer.feed(chunk)
    yield from framer.finish()


def replay(
    adapter: Adapter,
    lines: Iterable[Line],
    *,
    client_lines: Sequence[bytes] | None = None,
    include_raw: bool = False,
    config: session_pb2.SessionConfig | None = None,
    clock: Clock = fixed_clock,
    on_blob: Callable[[str, bytes], None] | None = None,
) -> Iterator[event_pb2.Event]:
    """Replay a transcript, one line at a time: memory does not grow with its length.

    Args:
        adapter: The adapter of the agent that wrote it.
        lines: The native messages that the agent wrote, without line terminators.
        client_lines: The native messages that were written to the agent; None where they were not
            recorded. Then what started a turn, and who resolved a request, may stay unknown.
        include_raw: Fill `Event.raw`.
        config: The settings the session had, as far as they are known.
        clock: Gives the time of each event.
        on_blob: Gets the id and content of each blob that an event refers to.
    """
    player = _Player(adapter, client_lines, include_raw, config, clock, on_blob)
    yield from player.begin()
    for line in lines:
        yield from player.play(line)
    yield from player.end()


class _Player:
    def __init__(
        self,
        adapter: Adapter,
        client_lines: Sequence[bytes] | None,
        include_raw: bool,
        config: session_pb2.SessionConfig | None,
        clock: Clock,
        on_blob: Callable[[str, bytes], None] | None,
    ) -> None:
        self._adapter = adapter
        self._config = config or session_pb2.SessionConfig()
        self._normalizer = adapter.normalizer(self._config)
        self._clock = clock
        self._on_blob = on_blob
        self._has_client = client_lines is not None
        actions = adapter.client_actions(client_lines or ())
        self._prompts = deque(action for action in actions if action.prompt is not None)
        self._said: set[str] = set()
        self._answers: dict[str, deque[Answer]] = {}
        for action in actions:
            if action.answer is not None:
                self._answers.setdefault(action.request_id, deque()).append(action.answer)
        self._events: list[event_pb2.Event] = []
        self._asked: list[Pending] = []
        self._turns = 0
        self._stamper = Stamper(SESSION_ID, SESSION_ID, store_raw=include_raw)
        self._stamper.listener = self._on_event
        self._stamper.set_time(clock(1))
        self._keeper = StreamKeeper(self._stamper, new_turn_id=self._new_turn_id)

    def begin(self) -> list[event_pb2.Event]:
        config = self._config
        mode = config.permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT
        self._keeper.start_session(
            event_pb2.SessionStarted(
                agent=self._adapter.name,
                working_directory=config.working_directory,
                model=config.model,
                mode=config.mode,
                permission_mode=mode,
                resumed=bool(config.resume_native_session_id),
            )
        )
        return self._take()

    def play(self, line: Line) -> list[event_pb2.Event]:
        if isinstance(line, OversizedLine):
            drafts = [unparsed(line.head, "the line is too long", size_bytes=line.length)]
        else:
            drafts = self._normalizer.feed(line)
            self._drop_refused(line)
        self._apply(drafts)
        return self._take()

    def end(self) -> list[event_pb2.Event]:
        keeper = self._keeper
        self._apply(self._normalizer.finish())
        for pending in self._asked:
            self._answer(pending)
        if keeper.turn_id:
            message = "The transcript ends while a turn is running."
            item = status_item("agent_exited:end", "agent_exited", message)
            keeper.apply(whole(item, synthetic=True))
            keeper.end_turn(
                event_pb2.TURN_STATUS_FAILED,
                error_pb2.Error(message=message, code=error_pb2.ERROR_CODE_AGENT_EXITED),
            )
        made = event(synthetic=True)
        ended = made.session_ended
        ended.reason = event_pb2.SESSION_END_REASON_ONE_SHOT_DONE
        ended.ended_by = event_pb2.SESSION_ENDER_DAEMON
        ended.message = "end of transcript"
        keeper.apply([Draft(Kind.SESSION_ENDED, made)])
        return self._take()

    def _apply(self, drafts: Sequence[Draft]) -> None:
        keeper = self._keeper
        self._answer_asked(drafts)
        begun = False
        for draft in drafts:
            if draft.kind is Kind.TURN_STARTED and not keeper.turn_id and self._is_ours(draft):
                self._begin_turn(self._next_prompt(drafts))
                begun = True
                continue
            # What the agent says of the user in the same breath is that prompt: it may have no id.
            if self._is_echo(draft, drafts) or (begun and _is_user_message(draft)):
                continue
            if not self._has_client and keeper.pending:
                self._settle_unknown(draft)
            keeper.apply((draft,))
        self._asked += self._collect()

    def _drop_refused(self, line: bytes) -> None:
        """No turn is that of a prompt which the agent refused."""
        if self._prompts and (call := self._adapter.refused(line)):
            self._prompts = deque(action for action in self._prompts if action.call != call)

    def _is_ours(self, draft: Draft) -> bool:
        """Whether the turn is a prompt's: unless the agent knows that it began it by itself."""
        trigger = draft.event.turn_started.trigger
        known_as_ours = (event_pb2.TURN_TRIGGER_UNSPECIFIED, event_pb2.TURN_TRIGGER_CLIENT)
        return bool(self._prompts) and trigger in known_as_ours

    def _next_prompt(self, drafts: Sequence[Draft]) -> ClientAction:
        """The prompt that a turn begins with: the one that `drafts` repeat, else the oldest."""
        for draft in drafts:
            action = self._repeated(draft, drafts)
            if action is not None:
                self._said.add(_prompt_id(draft))
                break
        else:
            action = self._prompts[0]
        self._prompts.remove(action)
        return action

    def _repeated(self, draft: Draft, drafts: Sequence[Draft]) -> ClientAction | None:
        """The waiting prompt that the agent repeats with `draft`, by its id or, where it was sent
        without one, by its words.
        """
        message_id = _prompt_id(draft)
        words = "".join(_words_of(other) for other in drafts if _prompt_id(other) == message_id)
        for action in self._prompts:
            if message_id and _message_id(action) == message_id:
                return action
            if message_id and words and not _message_id(action) and _words(action) == words:
                return action
        return None

    def _is_echo(self, draft: Draft, drafts: Sequence[Draft]) -> bool:
        """Whether the agent repeats a prompt that the stream has. One that the agent takes up while
        a turn runs is put into that turn.
        """
        message_id = _prompt_id(draft)
        if not message_id or message_id in self._said:
            return bool(message_id)
        waiting = self._repeated(draft, drafts)
        if waiting is not None and waiting.prompt is not None and self._keeper.turn_id:
            self._prompts.remove(waiting)
            self._said.add(message_id)
            item_id = f"user-{self._keeper.turn_id}-{message_id}"
            self._keeper.add_message(user_item(item_id, waiting.prompt.parts))
        return message_id in self._said

    def _begin_turn(self, action: ClientAction) -> None:
        prompt = action.prompt
        assert prompt is not None
        self._said.add(prompt.message_id)
        trigger = (
            event_pb2.TURN_TRIGGER_COMMAND if prompt.command else event_pb2.TURN_TRIGGER_CLIENT
        )
        turn_id = self._new_turn_id()
        self._keeper.begin_turn(turn_id, trigger, user_item(f"user-{turn_id}", prompt.parts))
        self._keeper.apply(self._normalizer.sent(action.native))

    def _answer_asked(self, drafts: Sequence[Draft]) -> None:
        """Resolve requests by what the client answered, as soon as the agent says something else.

        Not before: an answer that came too late shows in the agent withdrawing its request.
        """
        if all(draft.kind in REQUESTED for draft in drafts):
            return
        resolved = {_resolved_by_agent(draft): draft for draft in drafts if draft.kind in RESOLVED}
        asked, self._asked = self._asked, []
        for pending in asked:
            by_agent = resolved.get(pending.adapter_id)
            if by_agent is None or self._repeats_answer(pending, by_agent):
                self._answer(pending)

    def _repeats_answer(self, pending: Pending, by_agent: Draft) -> bool:
        """Whether the agent's resolution is but the client's answer come back."""
        answers = self._answers.get(pending.adapter_id) or None
        outcome = resolved_of(by_agent.kind, by_agent.event).outcome
        return answers is not None and outcome_of(fitting(pending, answers[0])) == outcome

    def _answer(self, pending: Pending) -> None:
        answers = self._answers.get(pending.adapter_id)
        if answers:
            answer = fitting(pending, answers.popleft())
            self._keeper.resolve(
                pending.request.request_id,
                outcome_of(answer),
                interaction_pb2.RESOLVED_BY_CLIENT,
                answer=answer,
            )

    def _settle_unknown(self, draft: Draft) -> None:
        """Nobody recorded the answers: requests are resolved where the agent goes on after them."""
        call_id = _result_call_id(draft)
        turn_is_done = (
            draft.kind is Kind.TURN_ENDED
            and draft.event.turn_ended.status == event_pb2.TURN_STATUS_COMPLETED
        )
        for pending in list(self._keeper.pending.values()):
            request = pending.request
            if (turn_is_done and pending.turn_id) or (call_id and request.call_id == call_id):
                self._keeper.resolve(
                    request.request_id,
                    interaction_pb2.REQUEST_OUTCOME_UNKNOWN,
                    interaction_pb2.RESOLVED_BY_UNSPECIFIED,
                    reason="The transcript does not have the answer.",
                    synthetic=True,
                )

    def _new_turn_id(self) -> str:
        self._turns += 1
        return f"turn-{self._turns}"

    def _on_event(self, stamped: event_pb2.Event, record: Record) -> None:
        if record.raw:
            stamped.MergeFromString(record.raw)
        self._events.append(stamped)
        self._stamper.set_time(self._clock(stamped.sequence + 1))

    def _collect(self) -> list[Pending]:
        """Let go of what the keeper has collected for a log; returns the requests in it."""
        output = self._keeper.take()
        for blob_id, content in output.blobs:
            if self._on_blob is not None:
                self._on_blob(blob_id, content)
        return output.asked

    def _take(self) -> list[event_pb2.Event]:
        self._collect()
        events, self._events = self._events, []
        return events


def _message_id(action: ClientAction) -> str:
    return action.prompt.message_id if action.prompt is not None else ""


def _prompt_id(draft: Draft) -> str:
    """The agent's id of a message of the user's, if that is what `draft` reports; else empty."""
    item = _item_of(draft)
    if item is None or item.parent_id or item.kind != item_pb2.ITEM_KIND_MESSAGE:
        return ""
    return item.native_item_id if item.role == item_pb2.ITEM_ROLE_USER else ""


def _words(action: ClientAction) -> str:
    parts = action.prompt.parts if action.prompt is not None else ()
    return "\n".join(part.text for part in parts if part.text)


def _words_of(draft: Draft) -> str:
    item = _item_of(draft)
    parts = item.content if item is not None else ()
    return "\n".join(part.text.text for part in parts if part.text.text)


def _is_user_message(draft: Draft) -> bool:
    item = _item_of(draft)
    return (
        item is not None
        and item.kind == item_pb2.ITEM_KIND_MESSAGE
        and item.role == item_pb2.ITEM_ROLE_USER
    )


def _resolved_by_agent(draft: Draft) -> str:
    """The request that the agent itself resolves with `draft`; empty for none."""
    resolved = resolved_of(draft.kind, draft.event)
    if resolved.resolved_by != interaction_pb2.RESOLVED_BY_AGENT:
        return ""
    return resolved.request_id


def _item_of(draft: Draft) -> item_pb2.Item | None:
    match draft.kind:
        case Kind.ITEM_STARTED:
            return draft.event.item_started.item
        case Kind.ITEM_COMPLETED:
            return draft.event.item_completed.item
        case _:
            return None


def _result_call_id(draft: Draft) -> str:
    item = _item_of(draft)
    if item is None or item.kind != item_pb2.ITEM_KIND_TOOL_RESULT or not item.content:
        return ""
    return item.content[0].tool_result.call_id
