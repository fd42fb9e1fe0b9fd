import asyncio
import io
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstream.v1 import (
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    session_pb2,
)
from agentstreamd.adapters.mock.adapter import MockAdapter
from agentstreamd.adapters.mock.program import Program
from agentstreamd.adapters.mock.session import Quit
from agentstreamd.laws import check
from agentstreamd.process import Line, OversizedLine
from agentstreamd.replay import EPOCH_NS, read_lines, replay

Event = event_pb2.Event

SCRIPT = 'say Hello\nask permission command "rm x"\nask question "Which?" red|blue\nsay Done'


class Recording:
    """What the mock agent wrote, and what was written to it."""

    def __init__(self) -> None:
        self.agent = b""
        self.client: list[bytes] = []
        self._program = Program(self._on_output, Quit(self._on_end, print, is_process=False))
        self._seen = 0
        self._idle = asyncio.Event()
        self._unfinished = 0

    async def play(self, *scripts: str, turns: int | None = None) -> "Recording":
        """Send the scripts one after the other; wait for `turns` turns to end."""
        self._send({"type": "start"})
        self._unfinished = turns or len(scripts)
        for number, script in enumerate(scripts):
            self._send({"type": "prompt", "id": f"p{number}", "parts": [{"text": script}]})
        async with asyncio.timeout(10):
            await self._idle.wait()
        await self._program.close()
        return self

    @property
    def lines(self) -> list[Line]:
        return list(read_lines(io.BytesIO(self.agent)))

    def _send(self, message: dict[str, object]) -> None:
        line = json.dumps({**message, "session": "s"}).encode()
        self.client.append(line)
        self._program.receive(line)

    async def _on_output(self, data: bytes) -> None:
        self.agent += data
        for line in data.splitlines():
            message = json.loads(line)
            request_id = message.get("request_id")
            match message["type"]:
                case "permission_requested":
                    answer: dict[str, object] = {
                        "permission": {"decision": "PERMISSION_DECISION_ACCEPT"}
                    }
                case "question_requested":
                    answers = [{"question_id": "q1", "labels": ["red"]}]
                    answer = {"question": {"answered": {"answers": answers}}}
                case "turn_ended":
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._idle.set()
                    continue
                case _:
                    continue
            self._send({"type": "answer", "request_id": request_id, "answer": answer})

    def _on_end(self, exit_code: int | None, signal: int | None) -> None:
        self._idle.set()


def kinds(events: list[Event]) -> list[str]:
    return [str(event.WhichOneof("payload")) for event in events]


def of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event.WhichOneof("payload") == kind]


def replayed(
    lines: list[Line], client: list[bytes] | None = None, *, raw: bool = False
) -> list[Event]:
    events = list(replay(MockAdapter(), lines, client_lines=client, include_raw=raw))
    assert [str(one) for one in check(events, complete=True, raw=raw)] == []
    return events


async def test_a_transcript_becomes_the_stream_of_a_session() -> None:
    recording = await Recording().play(SCRIPT)
    events = replayed(recording.lines, recording.client)
    assert kinds(events)[:2] == ["session_started", "session_updated"]
    assert kinds(events)[-2:] == ["turn_ended", "session_ended"]
    assert events[0].synthetic
    ended = events[-1].session_ended
    assert ended.reason == event_pb2.SESSION_END_REASON_ONE_SHOT_DONE
    assert ended.message == "end of transcript"


async def test_the_same_transcript_gives_the_same_stream() -> None:
    recording = await Recording().play(SCRIPT)
    first, second = (replayed(recording.lines, recording.client, raw=True) for _ in range(2))
    assert first == second
    assert first[0].time.ToNanoseconds() == EPOCH_NS + 1000
    assert first[-1].time.ToNanoseconds() == EPOCH_NS + 1000 * len(first)


async def test_with_the_clients_side_turns_and_answers_are_the_clients() -> None:
    recording = await Recording().play(SCRIPT, "second")
    events = replayed(recording.lines, recording.client)
    triggers = [event.turn_started.trigger for event in of_kind(events, "turn_started")]
    assert triggers == [event_pb2.TURN_TRIGGER_CLIENT] * 2
    prompts = [
        event.item_completed.item.content[0].text.text
        for event in of_kind(events, "item_completed")
        if event.item_completed.item.role == item_pb2.ITEM_ROLE_USER
    ]
    assert prompts == [SCRIPT, "second"]
    (permission,) = of_kind(events, "permission_resolved")
    assert permission.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_CLIENT
    assert permission.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    (question,) = of_kind(events, "question_resolved")
    assert question.question_resolved.answer.answered.answers[0].labels == ["red"]


async def test_without_the_clients_side_what_it_did_is_unknown() -> None:
    recording = await Recording().play(SCRIPT)
    events = replayed(recording.lines)
    (started,) = of_kind(events, "turn_started")
    assert started.turn_started.trigger == event_pb2.TURN_TRIGGER_UNSPECIFIED
    for event in of_kind(events, "permission_resolved"):
        resolved = event.permission_resolved
        assert event.synthetic
        assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_UNKNOWN
        assert resolved.resolved_by == interaction_pb2.RESOLVED_BY_UNSPECIFIED
    # It is resolved where the agent goes on: before the result of the call it was about.
    after = kinds(events)[kinds(events).index("permission_resolved") + 1]
    assert after == "item_started"


async def test_a_turn_of_the_agents_own_does_not_take_the_clients_prompt() -> None:
    recording = await Recording().play("spontaneous say on my own\nsay first", turns=2)
    second = await Recording().play("say second")
    lines = [*recording.lines, *second.lines]
    client = [*recording.client, *second.client]
    triggers = [
        event.turn_started.trigger for event in of_kind(replayed(lines, client), "turn_started")
    ]
    assert triggers == [
        event_pb2.TURN_TRIGGER_CLIENT,
        event_pb2.TURN_TRIGGER_AGENT,
        event_pb2.TURN_TRIGGER_CLIENT,
    ]


ASKED = {
    "type": "permission_requested",
    "request_id": "r",
    "kind": "PERMISSION_KIND_COMMAND",
    "allowed_decisions": ["PERMISSION_DECISION_ACCEPT"],
}
WITHDRAWN = {
    "type": "permission_resolved",
    "request_id": "r",
    "outcome": "REQUEST_OUTCOME_CANCELLED",
    "resolved_by": "RESOLVED_BY_AGENT",
}
ANSWER = b"""{"type":"answer","request_id":"r",
"answer":{"permission":{"decision":"PERMISSION_DECISION_ACCEPT"}}}"""


def test_an_answer_that_came_too_late_resolves_nothing() -> None:
    lines: list[Line] = [json.dumps(one).encode() for one in (ASKED, WITHDRAWN)]
    (resolved,) = of_kind(replayed(lines, [ANSWER]), "permission_resolved")
    assert resolved.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_AGENT


def test_a_rejection_that_does_not_say_of_what_is_of_the_requests_kind() -> None:
    asked = {
        "type": "question_requested",
        "request_id": "r",
        "questions": [{"question_id": "q", "text": "Why?", "free_text": True}],
    }
    answer = ANSWER.replace(b"DECISION_ACCEPT", b"DECISION_REJECT")
    events = replayed([json.dumps(asked).encode()], [answer])
    (resolved,) = of_kind(events, "question_resolved")
    assert resolved.question_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
    assert resolved.question_resolved.answer.HasField("rejected")


def test_an_answer_at_the_end_of_a_transcript_counts() -> None:
    events = replayed([json.dumps(ASKED).encode()], [ANSWER])
    (resolved,) = of_kind(events, "permission_resolved")
    assert resolved.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_CLIENT


async def test_a_transcript_that_breaks_off_ends_its_turn_and_session() -> None:
    recording = await Recording().play(SCRIPT)
    for length in range(len(recording.lines)):
        for client in (None, recording.client):
            events = replayed(recording.lines[:length], client)
            ended = of_kind(events, "turn_ended")
            if of_kind(events, "turn_started"):
                assert ended[0].turn_ended.status == event_pb2.TURN_STATUS_FAILED
                assert ended[0].turn_ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
                labels = [
                    part.status.label
                    for event in of_kind(events, "item_completed")
                    for part in event.item_completed.item.content
                ]
                assert "agent_exited" in labels


async def test_raw_holds_every_line_that_led_to_an_event() -> None:
    recording = await Recording().play(SCRIPT)
    events = replayed(recording.lines, raw=True)
    raw = {native.text.encode() for event in events for native in event.raw}
    assert raw == set(recording.lines)
    assert not any(event.raw for event in replayed(recording.lines))


async def test_blobs_are_handed_out() -> None:
    recording = await Recording().play("tool Big => @2MB")
    blobs: dict[str, bytes] = {}
    events = list(replay(MockAdapter(), recording.lines, on_blob=blobs.__setitem__))
    (reference,) = (
        part.external
        for event in of_kind(events, "item_completed")
        for part in event.item_completed.item.content
        if part.HasField("external")
    )
    assert len(blobs[reference.blob_id]) == reference.size_bytes == 2 * 2**20


def test_the_settings_of_the_session_can_be_given() -> None:
    config = session_pb2.SessionConfig(working_directory="/project", model="m")
    started = next(replay(MockAdapter(), [], config=config)).session_started
    assert (started.working_directory, started.model) == ("/project", "m")


def test_an_empty_transcript_is_an_empty_session() -> None:
    assert kinds(replayed([])) == ["session_started", "session_ended"]


def test_a_line_that_is_too_long_is_unparsed() -> None:
    (unparsed,) = of_kind(replayed([OversizedLine(b"head", 10**9)]), "agent_unparsed")
    assert unparsed.agent_unparsed.size_bytes == 10**9


def test_events_come_as_the_lines_do() -> None:
    taken: list[int] = []

    def lines() -> Iterator[Line]:
        for number in range(3):
            taken.append(number)
            yield b'{"type":"error","message":"x"}'

    events = replay(MockAdapter(), lines())
    assert [next(events).WhichOneof("payload") for _ in range(2)] == ["session_started", "error"]
    assert taken == [0]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"b"]),
        ("a\u2028b\x0b\x85c\n".encode("utf-8"), ["a\u2028b\x0b\x85c".encode("utf-8")]),
        (b"\xff\xfe\n", [b"\xff\xfe"]),
    ],
)
def test_lines_end_at_line_feeds_only(data: bytes, lines: list[bytes]) -> None:
    assert list(read_lines(io.BytesIO(data))) == lines


# What a sane normalizer may say of an agent that does anything in any order: items of every kind,
# cut off, doubled, without start or end, under parents that are not there, answering any call.
numbers = st.integers(0, 2)
texts = st.sampled_from(["", "x", "yy", "😀"])
parents = st.sampled_from(["", "m0", "m1", "c0", "r0", "nobody"])


def message_item(number: int, parent_id: str, contents: list[str]) -> dict[str, object]:
    content: list[dict[str, object]] = [{"text": {"text": text}} for text in contents]
    if len(content) > 1:
        content[1] = {"reasoning": {"text": contents[1], "visibility": "REASONING_VISIBILITY_FULL"}}
    return {
        "item_id": f"m{number}",
        "parent_id": "" if parent_id == f"m{number}" else parent_id,
        "kind": "ITEM_KIND_MESSAGE",
        "role": "ITEM_ROLE_ASSISTANT",
        "content": content,
    }


def call_item(number: int, parent_id: str, call: int, is_known: bool) -> dict[str, object]:
    part = {"tool_call": {"name": "T", "arguments_json": "{}", "call_id": f"call{call}"}}
    return {
        "item_id": f"c{number}",
        "parent_id": "" if parent_id == f"c{number}" else parent_id,
        "kind": "ITEM_KIND_TOOL_CALL",
        "role": "ITEM_ROLE_ASSISTANT",
        "content": [part] if is_known else [],
    }


def result_item(number: int, parent_id: str, call: int, text: str) -> dict[str, object]:
    return {
        "item_id": f"r{number}",
        "parent_id": "" if parent_id == f"r{number}" else parent_id,
        "kind": "ITEM_KIND_TOOL_RESULT",
        "role": "ITEM_ROLE_TOOL",
        "content": [{"tool_result": {"call_id": f"call{call}", "output": text}}],
    }


def delta(number: int, index: int, kind: str, text: str) -> dict[str, object]:
    item_id, index, name = {
        "message": (f"m{number}", index, "reasoning" if index == 1 else "text"),
        "call": (f"c{number}", 0, "tool_arguments"),
        "result": (f"r{number}", 0, "tool_output"),
    }[kind]
    return {
        "type": "item_delta",
        "item_id": item_id,
        "content_index": index,
        "kind": name,
        "text": text,
    }


items = st.one_of(
    st.builds(message_item, numbers, parents, st.lists(texts, max_size=3)),
    st.builds(call_item, numbers, parents, numbers, st.just(True)),
    st.builds(result_item, numbers, parents, numbers, texts),
)
messages = st.one_of(
    st.builds(lambda one: {"type": "item_started", "item": one}, items),
    st.builds(
        lambda one: {"type": "item_started", "item": one},
        st.builds(call_item, numbers, parents, numbers, st.booleans()),
    ),
    st.builds(
        lambda one, failed: {"type": "item_completed", "item": one, "failed": failed},
        items,
        st.booleans(),
    ),
    st.builds(delta, numbers, numbers, st.sampled_from(["message", "call", "result"]), texts),
    st.sampled_from(
        [
            {"type": "turn_started"},
            {"type": "turn_started", "prompt_id": "p0"},
            {"type": "turn_ended", "status": "TURN_STATUS_COMPLETED"},
            {"type": "form_requested", "request_id": "r", "parent_id": "nobody"},
            {"type": "form_requested", "request_id": "s", "call_id": "call1"},
            {"type": "form_resolved", "request_id": "r", "outcome": "REQUEST_OUTCOME_CANCELLED"},
            {"type": "session_updated", "model": "m"},
            {"type": "novelty"},
        ]
    ),
)
PROMPT = b'{"type":"prompt","id":"p0","parts":[{"text":"hi"}]}'


@settings(max_examples=300, deadline=None)
@given(st.lists(messages, max_size=30), st.booleans(), st.booleans())
def test_whatever_an_agent_writes_the_laws_hold(
    natives: list[dict[str, object]], has_client: bool, raw: bool
) -> None:
    lines: list[Line] = [json.dumps(one).encode() for one in natives]
    replayed(lines, [PROMPT] if has_client else None, raw=raw)


async def test_output_that_was_taken_back_names_what_supersedes_it() -> None:
    recording = await Recording().play("retract Wrong => Right")
    wrong, right = (
        event.item_completed.item
        for event in of_kind(replayed(recording.lines, recording.client), "item_completed")
        if event.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
    )
    assert wrong.status == item_pb2.ITEM_STATUS_FAILED
    assert wrong.superseded_by == right.item_id
    assert [part.text.text for part in right.content] == ["Right"]
