"""Where a turn of OpenCode ends, once, and how."""

import json

import pytest

from agentstream.v1 import error_pb2, event_pb2
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.model import Kind
from tests.unit.adapters.opencode.opencode_events import (
    CHILD,
    ROOT,
    Json,
    assistant,
    begun,
    busy,
    ends,
    event,
    feed,
    idle,
    of,
    own,
    part,
    post,
    prompt,
    step,
    text,
    tool,
    user,
)

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

ABORTED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
REFUSED = {"name": "APIError", "data": {"message": "no", "statusCode": 400}}
STOPPED = (step(), assistant(done=True, finish="stop"))


def failed(error: Json) -> bytes:
    return event("session.error", error=error)


def must_abort(normalizer: OpenCodeNormalizer) -> bool:
    return normalizer.turns.must_abort


def test_a_turn_ends_when_the_session_is_idle_and_its_messages_are_complete() -> None:
    normalizer, _ = begun()
    assert not ends(feed(normalizer, *STOPPED))
    [ended] = ends(feed(normalizer, idle()))
    assert ended.status == COMPLETED
    assert (ended.stop_reason, ended.native_turn_id) == ("stop", "msg_u")


def test_an_idle_before_the_last_message_waits_for_it() -> None:
    normalizer, _ = begun()
    drafts = feed(normalizer, failed(REFUSED), idle())
    assert not ends(drafts)
    assert len(of(drafts, Kind.ERROR)) == 1
    drafts = feed(normalizer, assistant(done=True, error=REFUSED))
    [ended] = ends(drafts)
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert ended.error.http_status == 400
    assert not of(drafts, Kind.ERROR), "the message says the same error again"


def test_the_second_idle_is_swallowed() -> None:
    normalizer, _ = begun(*STOPPED, idle())
    assert feed(normalizer, idle(), idle()) == []


def test_an_idle_left_from_the_turn_before_does_not_end_the_next() -> None:
    normalizer, _ = begun(*STOPPED, idle())
    normalizer.sent(prompt("msg_u2"))
    assert not ends(feed(normalizer, idle()))
    after = (
        user("msg_u2"),
        assistant("msg_a2", parent="msg_u2"),
        assistant("msg_a2", parent="msg_u2", done=True, finish=""),
    )
    assert not ends(feed(normalizer, *after))
    assert len(ends(feed(normalizer, idle()))) == 1


def test_what_follows_the_end_begins_no_turn() -> None:
    normalizer, _ = begun(*STOPPED, idle())
    later = feed(normalizer, user(summary={"diffs": []}), event("session.diff", diff=[]), idle())
    assert later == []


def test_each_step_is_a_message_and_all_are_one_turn() -> None:
    normalizer, drafts = begun(
        step("tool-calls"),
        assistant(done=True, finish="tool-calls"),
        assistant("msg_a2"),
        step(part_id="prt_s2"),
        assistant("msg_a2", done=True, finish="stop"),
    )
    drafts += feed(normalizer, idle())
    assert len(ends(drafts)) == 1
    starts = [e.item_started.item.item_id for e in of(drafts, Kind.ITEM_STARTED)]
    assert starts[0] == "msg_a"
    assert "msg_a2" in starts


@pytest.mark.parametrize("error_first", [True, False])
def test_an_abort_interrupts(error_first: bool) -> None:
    normalizer, _ = begun()
    normalizer.sent(post(f"/session/{ROOT}/abort"))
    done = assistant(done=True, error=ABORTED)
    natives = (failed(ABORTED), idle(), done, idle()) if error_first else (done, idle(), idle())
    drafts = feed(normalizer, *natives)
    [ended] = ends(drafts)
    assert ended.status == INTERRUPTED
    assert not ended.HasField("error")
    assert not of(drafts, Kind.ERROR)


@pytest.mark.parametrize(
    "rejected",
    [
        event("permission.replied", requestID="per_1", reply="reject"),
        event("question.rejected", requestID="que_1"),
    ],
)
def test_a_turn_that_a_rejection_ends_is_interrupted(rejected: bytes) -> None:
    after = (rejected, step("tool-calls"), assistant(done=True, finish="tool-calls"))
    normalizer, _ = begun(*after)
    [ended] = ends(feed(normalizer, idle()))
    assert ended.status == INTERRUPTED
    normalizer, _ = begun(*after, assistant("msg_a2"), step(part_id="prt_s2"))
    done = assistant("msg_a2", done=True, finish="stop")
    assert ends(feed(normalizer, done, idle()))[0].status == COMPLETED, "it went on"


def test_an_error_of_a_sub_agent_is_said_and_fails_no_turn() -> None:
    task = tool("running", "task", metadata={"sessionId": CHILD})
    refused = event("session.error", CHILD, error=REFUSED)
    aborted = event("session.error", CHILD, error=ABORTED)
    normalizer, drafts = begun(task, refused, aborted)
    [said] = of(drafts, Kind.ERROR)
    assert said.error.message == "no"
    assert json.loads(said.metadata_json) == {"sessionID": CHILD}
    drafts = feed(normalizer, *STOPPED, idle())
    assert ends(drafts)[0].status == COMPLETED


def test_an_error_keeps_what_the_provider_said() -> None:
    data = {"message": "no", "statusCode": 400, "responseBody": "{}", "isRetryable": False}
    _, drafts = begun(failed({"name": "APIError", "data": data}))
    [said] = of(drafts, Kind.ERROR)
    assert json.loads(said.metadata_json) == {"responseBody": "{}", "isRetryable": False}


def test_an_abort_during_a_retry_leaves_no_error_and_interrupts() -> None:
    retry = event("session.status", status={"type": "retry", "attempt": 1, "message": "later"})
    normalizer, _ = begun(retry)
    [ended] = ends(feed(normalizer, assistant(done=True), idle()))
    assert ended.status == INTERRUPTED


def test_an_abort_between_two_steps_interrupts() -> None:
    normalizer, _ = begun(step("tool-calls"), assistant(done=True, finish="tool-calls"))
    normalizer.sent(post(f"/session/{ROOT}/abort"))
    [ended] = ends(feed(normalizer, idle()))
    assert ended.status == INTERRUPTED


def test_an_error_before_any_message_ends_the_turn_when_the_driver_says_so() -> None:
    normalizer = OpenCodeNormalizer(session_id=ROOT)
    normalizer.sent(prompt())
    drafts = feed(
        normalizer, failed({"name": "UnknownError", "data": {"message": "Agent not found: x"}})
    )
    assert not ends(drafts)
    assert normalizer.turns.open
    assert not normalizer.turns.taken
    [ended] = ends(feed(normalizer, own("settled", turn="msg_u")))
    assert ended.status == FAILED
    assert "Agent not found" in ended.error.message


def test_a_stack_trace_after_the_end_is_not_the_error_of_the_next_turn() -> None:
    said = {"name": "UnknownError", "data": {"message": "Model not found: a/b."}}
    stack = {"name": "UnknownError", "data": {"message": "X: Model not found: a/b.\n    at y"}}
    normalizer = OpenCodeNormalizer()
    normalizer.sent(prompt())
    [ended] = ends(feed(normalizer, user(), busy(), failed(said), idle()))
    assert ended.error.code == error_pb2.ERROR_CODE_MODEL_NOT_FOUND
    normalizer.sent(prompt("msg_u2"))
    assert feed(normalizer, failed(stack)) == []
    drafts = feed(normalizer, user("msg_u2"), assistant(parent="msg_u2"), *STOPPED, idle())
    assert ends(drafts)[0].status == COMPLETED


def test_an_error_that_the_agent_gets_over_does_not_fail_the_turn() -> None:
    overflow = {"name": "ContextOverflowError", "data": {"message": "too long"}}
    normalizer, _ = begun(failed(overflow), assistant(done=True, finish=""))
    drafts = feed(
        normalizer,
        assistant("msg_a2"),
        step(part_id="prt_s2"),
        assistant("msg_a2", done=True, finish="stop"),
        idle(),
    )
    assert ends(drafts)[0].status == COMPLETED


def test_a_prompt_while_busy_joins_the_turn() -> None:
    normalizer, _ = begun(*STOPPED)
    normalizer.sent(prompt("msg_u2"))
    drafts = feed(
        normalizer,
        user("msg_u2"),
        assistant("msg_a2", parent="msg_u2"),
        step(part_id="prt_s2"),
        assistant("msg_a2", parent="msg_u2", done=True, finish="stop"),
        idle(),
        idle(),
    )
    assert len(ends(drafts)) == 1
    assert not of(drafts, Kind.TURN_STARTED)


def test_a_turn_that_nobody_here_began_is_begun() -> None:
    normalizer = OpenCodeNormalizer()
    drafts = feed(normalizer, user(), text("Hi", message="msg_u"), busy())
    [started] = of(drafts, Kind.TURN_STARTED)
    assert started.turn_started.native_turn_id == "msg_u"
    assert len(ends(feed(normalizer, assistant(), *STOPPED, idle()))) == 1


def test_usage_is_the_sum_of_all_steps_with_caches_and_reasoning() -> None:
    normalizer, _ = begun(step("tool-calls", "prt_s1", cost=0.25), step("stop", "prt_s2", cost=0.5))
    repeated = feed(normalizer, step("stop", "prt_s2", cost=0.5))
    [ended] = ends(feed(normalizer, assistant(done=True, finish="stop"), idle()))
    used = ended.usage
    assert (used.input_tokens, used.cache_read_tokens, used.cache_write_tokens) == (36, 10, 6)
    assert (used.output_tokens, used.reasoning_tokens) == (6, 2)
    assert used.cost_micro_usd == 750_000
    assert repeated == []


def test_a_cost_of_nothing_is_not_known() -> None:
    normalizer, _ = begun(*STOPPED)
    [ended] = ends(feed(normalizer, idle()))
    assert not ended.usage.HasField("cost_micro_usd")


def test_answers_that_break_off_again_and_again_are_stopped() -> None:
    normalizer = OpenCodeNormalizer(guards=Guards(unfinished_steps=2))
    normalizer.sent(prompt())
    feed(normalizer, user(), assistant(), step("unknown", "prt_1"))
    assert not must_abort(normalizer)
    drafts = feed(normalizer, step("unknown", "prt_2"), step("unknown", "prt_3"))
    assert must_abort(normalizer)
    assert len(of(drafts, Kind.ERROR)) == 1
    normalizer.sent(post(f"/session/{ROOT}/abort"))
    [ended] = ends(feed(normalizer, assistant(done=True, error=ABORTED), idle()))
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_PROVIDER_FAILED


def test_a_sub_agent_that_breaks_off_again_and_again_is_stopped_too() -> None:
    normalizer = OpenCodeNormalizer(guards=Guards(unfinished_steps=2))
    normalizer.sent(prompt())
    task = tool("running", "task", metadata={"sessionId": CHILD})
    feed(normalizer, user(), assistant(), task, assistant("msg_c", CHILD))
    for number in range(2):
        broken = part("step-finish", f"prt_{number}", "msg_c", CHILD, reason="unknown")
        feed(normalizer, broken)
    assert must_abort(normalizer)


def test_a_step_that_ends_well_resets_the_count() -> None:
    normalizer = OpenCodeNormalizer(guards=Guards(unfinished_steps=2))
    normalizer.sent(prompt())
    reasons = ("unknown", "tool-calls", "unknown")
    feed(normalizer, user(), assistant(), *(step(r, f"prt_{n}") for n, r in enumerate(reasons)))
    assert not normalizer.turns.must_abort


def test_endless_retries_are_stopped_with_their_reason() -> None:
    normalizer = OpenCodeNormalizer(guards=Guards(retries=2))
    normalizer.sent(prompt())
    feed(normalizer, user(), assistant())

    def retry(attempt: int) -> bytes:
        status = {"type": "retry", "attempt": attempt, "message": "Cannot connect to API"}
        return event("session.status", status=status)

    drafts = feed(normalizer, retry(1), retry(2))
    assert all(e.error.will_retry for e in of(drafts, Kind.ERROR))
    assert not must_abort(normalizer)
    feed(normalizer, retry(3))
    assert must_abort(normalizer)
    [ended] = ends(feed(normalizer, assistant(done=True), idle()))
    assert (ended.status, ended.error.code) == (FAILED, error_pb2.ERROR_CODE_NETWORK)


def test_a_turn_that_the_driver_gives_up_fails_with_its_reason() -> None:
    normalizer, _ = begun()
    given_up = own("failed", message="silent", code="ERROR_CODE_AGENT_PROTOCOL")
    [ended] = ends(feed(normalizer, given_up, own("settled", turn="msg_u")))
    assert (ended.status, ended.error.message) == (FAILED, "silent")


def test_a_settled_turn_that_is_over_ends_no_other() -> None:
    normalizer, _ = begun(*STOPPED, idle())
    normalizer.sent(prompt("msg_u2"))
    assert feed(normalizer, own("settled", turn="msg_u")) == []
    assert normalizer.turns.open


def test_a_prompt_that_did_not_arrive_leaves_no_turn() -> None:
    normalizer = OpenCodeNormalizer()
    normalizer.sent(prompt())
    normalizer.not_sent()
    assert not normalizer.turns.open


def test_a_finished_server_leaves_no_turn_and_no_request() -> None:
    normalizer, _ = begun()
    normalizer.finish()
    assert not normalizer.turns.open
    assert not ends(feed(normalizer, idle()))
