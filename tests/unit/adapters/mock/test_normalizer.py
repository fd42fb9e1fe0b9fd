import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.mock.normalizer import IGNORED, MockNormalizer
from agentstreamd.model import Draft, Kind


def feed(*messages: dict[str, object]) -> list[Draft]:
    normalizer = MockNormalizer()
    return [draft for one in messages for draft in normalizer.feed(json.dumps(one).encode())]


def prompt(prompt_id: str) -> bytes:
    return json.dumps({"type": "prompt", "id": prompt_id}).encode()


def turn(kind: str, **fields: str) -> bytes:
    status = {"status": "TURN_STATUS_COMPLETED"} if kind == "turn_ended" else {}
    return json.dumps({"type": kind, **status, **fields}).encode()


def kinds(drafts: list[Draft]) -> list[Kind]:
    return [draft.kind for draft in drafts]


def test_a_payload_is_taken_as_its_proto_json() -> None:
    (draft,) = feed({"type": "error", "message": "slow", "code": "ERROR_CODE_RATE_LIMITED"})
    assert draft.kind is Kind.ERROR
    assert draft.event.error.message == "slow"
    assert draft.event.source == event_pb2.EVENT_SOURCE_AGENT


def test_drafts_carry_the_native_message() -> None:
    line = b'{"type":"title", "x": 1}'
    assert {draft.raw for draft in MockNormalizer().feed(line)} == {(line,)}


def test_metadata_is_kept() -> None:
    (draft,) = feed({"type": "error", "message": "x", "metadata": {"a": 1}})
    assert json.loads(draft.event.metadata_json) == {"a": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[]",
        b"{}",
        b'{"type":1}',
        b'{"type":"x","a":"\xff"}',
        b'{"type":"error","nonsense":1}',
        b'{"type":"item_delta"}',
        b'{"type":"item_delta","item_id":1,"kind":"text","text":"x"}',
        b'{"type":"item_started","item":[]}',
        b'{"type":"turn_started","trigger":"nobody"}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_unparsed(line: bytes) -> None:
    (draft,) = MockNormalizer().feed(line)
    assert draft.kind is Kind.AGENT_UNPARSED
    assert draft.event.agent_unparsed.size_bytes == len(line)
    assert draft.raw == (line,)


def test_an_unknown_type_becomes_an_unknown_item_with_the_message_verbatim() -> None:
    line = b'{"type":"novelty", "big": 12345678901234567890123}'
    started, completed = MockNormalizer().feed(line)
    item = completed.event.item_completed.item
    assert started.event.item_started.item.item_id == item.item_id
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN
    assert item.content[0].json.json == line.decode()


@pytest.mark.parametrize("kind", sorted(IGNORED))
def test_what_is_ignored_is_listed(kind: str) -> None:
    assert feed({"type": kind}) == []


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    line = rb'{"type":"error","message":"a\ud83d b \ud83d\ude00"}'
    (draft,) = MockNormalizer().feed(line)
    assert draft.event.error.message == "a\ufffd b 😀"


def test_the_turn_of_a_prompt_that_was_sent_is_the_sessions_to_start() -> None:
    normalizer = MockNormalizer()
    normalizer.sent(prompt("p"))
    assert normalizer.feed(turn("turn_started", prompt_id="p")) == []
    assert kinds(normalizer.feed(turn("turn_ended"))) == [Kind.TURN_ENDED]


def test_the_turn_of_a_prompt_that_is_not_known_has_no_known_trigger() -> None:
    (draft,) = MockNormalizer().feed(turn("turn_started", prompt_id="p"))
    assert draft.event.turn_started.trigger == event_pb2.TURN_TRIGGER_UNSPECIFIED


def test_a_turn_without_prompt_is_the_agents_own() -> None:
    (draft,) = MockNormalizer().feed(turn("turn_started"))
    assert draft.event.turn_started.trigger == event_pb2.TURN_TRIGGER_AGENT


def test_an_agents_turn_that_meets_a_prompt_goes_on_in_the_prompts_turn() -> None:
    normalizer = MockNormalizer()
    assert kinds(normalizer.feed(turn("turn_started"))) == [Kind.TURN_STARTED]
    normalizer.sent(prompt("p"))
    assert normalizer.feed(turn("turn_ended")) == []
    assert normalizer.feed(turn("turn_started", prompt_id="p")) == []
    assert kinds(normalizer.feed(turn("turn_ended"))) == [Kind.TURN_ENDED]


def test_an_agents_turn_that_begins_while_a_prompt_waits_is_merged_too() -> None:
    normalizer = MockNormalizer()
    normalizer.sent(prompt("p"))
    assert normalizer.feed(turn("turn_started")) == []
    assert normalizer.feed(turn("turn_ended")) == []
    assert normalizer.feed(turn("turn_started", prompt_id="p")) == []
    assert kinds(normalizer.feed(turn("turn_ended"))) == [Kind.TURN_ENDED]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
types = st.sampled_from(
    (
        *("hello", "turn_started", "turn_ended", "item_started", "item_delta", "item_completed"),
        *("error", "permission_requested", "session_updated", "session_ended", "x"),
    )
)
fields = st.dictionaries(
    st.sampled_from(["item", "item_id", "text", "kind", "trigger", "tools", "status", "usage"]),
    json_values,
)


@given(kind=types, rest=fields)
def test_odd_messages_never_raise(kind: str, rest: dict[str, object]) -> None:
    line = json.dumps({"type": kind, **rest}).encode()
    for draft in MockNormalizer().feed(line):
        assert draft.raw == (line,)
        draft.event.SerializeToString()


@given(st.binary(max_size=64))
def test_odd_bytes_never_raise(line: bytes) -> None:
    MockNormalizer().feed(line)
    MockNormalizer().sent(line)
