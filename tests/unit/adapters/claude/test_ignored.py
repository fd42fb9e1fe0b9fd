"""What makes no event on purpose is listed, and nothing else."""

import pytest

from agentstreamd.adapters.claude.ignored import ignored
from agentstreamd.adapters.claude.messages import IGNORED_DELTAS, IGNORED_EVENTS
from agentstreamd.adapters.claude.status import IGNORED_LINES
from tests.unit.adapters.claude.claude_lines import (
    answer,
    assistant,
    block_delta,
    feed,
    init,
    line,
    result,
    streamed,
    system,
    text_block,
    text_delta,
    user,
)


@pytest.mark.parametrize(
    "native",
    [
        *(line(type=name) for name in IGNORED_LINES if name != "control_response"),
        answer("r1", {}),
        *(streamed({"type": name}) for name in IGNORED_EVENTS),
        *(block_delta(0, type=name) for name in IGNORED_DELTAS),
        system("thinking_tokens", estimated_tokens=3),
        system("session_state_changed", state="idle"),
        system("status", status="requesting"),
        system("status", status=None, compact_result="success"),
    ],
)
def test_what_is_ignored_says_nothing_and_has_a_reason(native: bytes) -> None:
    assert ignored(native)
    assert feed(native) == []


def test_what_is_left_out_in_some_cases_has_a_reason() -> None:
    assert ignored(user("hello", isReplay=True))
    assert ignored(line(type="control_cancel_request", request_id="r1"))
    assert ignored(text_delta(0, ""))
    assert ignored(block_delta(0, type="input_json_delta", partial_json=""))
    assert ignored(streamed({"type": "content_block_start", "index": 1}))


@pytest.mark.parametrize(
    "native",
    [
        init(),
        result(),
        user("hello"),
        assistant("m1", text_block("Hi")),
        text_delta(0, "Hi"),
        block_delta(0, type="input_json_delta", partial_json="{"),
        block_delta(0, type="new_delta"),
        streamed({"type": "new_event"}),
        system("status", status="compacting"),
        system("compact_boundary"),
        system("new_subtype"),
        line(type="new_type"),
        line(type="stream_event"),
        b"not json",
        b"[]",
    ],
)
def test_what_says_something_or_is_not_known_is_not_ignored(native: bytes) -> None:
    assert ignored(native) == ""
