"""Replaying a transcript of OpenCode with its client's side: requests find their places."""

import json

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2
from agentstreamd.adapters.opencode.adapter import OpenCodeAdapter
from agentstreamd.laws import check
from agentstreamd.replay import replay
from tests.unit.adapters.opencode.opencode_events import (
    ROOT,
    Json,
    assistant,
    busy,
    event,
    idle,
    part,
    permission,
    post,
    step,
    text,
    tool,
    user,
)


def replayed(native: list[bytes], client: list[bytes]) -> list[event_pb2.Event]:
    events = list(replay(OpenCodeAdapter(), native, client_lines=client))
    assert check(events, complete=True) == []
    return events


def sent(*parts: Json | str, session: str = ROOT) -> bytes:
    """A prompt that does not choose its message's id."""
    told = [{"type": "text", "text": said} if isinstance(said, str) else said for said in parts]
    return post(f"/session/{session}/prompt_async", {"parts": told})


def turn(number: int, *first: bytes) -> list[bytes]:
    """A whole turn whose user's message has these parts."""
    answer, asked = f"msg_a{number}", f"msg_u{number}"
    return [
        user(asked),
        *first,
        busy(),
        assistant(answer, parent=asked),
        text("Yes.", f"prt_a{number}", end=True, message=answer),
        step(part_id=f"prt_s{number}", message=answer),
        assistant(answer, parent=asked, done=True, finish="stop"),
        idle(),
    ]


def said(number: int, words: str) -> bytes:
    return text(words, f"prt_u{number}", message=f"msg_u{number}")


def user_messages(events: list[event_pb2.Event]) -> list[tuple[str, str, bool]]:
    """Turn, text, and whether the daemon says it, of each message of the user's."""
    return [
        (
            event.turn_id,
            "".join(part.text.text for part in event.item_completed.item.content),
            event.source == event_pb2.EVENT_SOURCE_DAEMON,
        )
        for event in events
        if event.item_completed.item.role == item_pb2.ITEM_ROLE_USER
    ]


def test_a_prompt_without_an_id_of_its_own_is_shown_once() -> None:
    native = [*turn(1, said(1, "one")), *turn(2, said(2, "two"))]
    assert user_messages(replayed(native, [sent("one"), sent("two")])) == [
        ("turn-1", "one", True),
        ("turn-2", "two", True),
    ]


def test_a_prompt_that_the_server_never_took_up_is_not_taken_for_the_next() -> None:
    native = [*turn(1, said(1, "two")), *turn(2, said(2, "three"))]
    client = [sent("one"), sent("two"), sent("three")]
    assert user_messages(replayed(native, client)) == [
        ("turn-1", "two", True),
        ("turn-2", "three", True),
    ]


def test_a_prompt_while_a_turn_runs_is_put_into_it() -> None:
    whole = turn(1, said(1, "one"))
    native = [*whole[:-1], user("msg_u2"), said(2, "two"), busy(), whole[-1]]
    assert user_messages(replayed(native, [sent("one"), sent("two")])) == [
        ("turn-1", "one", True),
        ("turn-1", "two", True),
    ]


def test_a_prompt_of_another_session_is_none_of_this_one() -> None:
    native = [*turn(1, said(1, "one")), *turn(2, said(2, "typed elsewhere"))]
    client = [sent("one"), sent("two", session="ses_other")]
    assert user_messages(replayed(native, client)) == [
        ("turn-1", "one", True),
        ("turn-2", "typed elsewhere", False),
    ]


def test_a_subtask_is_a_prompt_too() -> None:
    subtask = {"type": "subtask", "prompt": "count", "description": "Count", "agent": "general"}
    native = [*turn(1, part("subtask", "prt_k", "msg_u1", **subtask)), *turn(2, said(2, "two"))]
    assert user_messages(replayed(native, [sent(subtask), sent("two")])) == [
        ("turn-1", "count", True),
        ("turn-2", "two", True),
    ]


def test_a_command_is_what_the_client_said_and_what_opencode_made_of_it() -> None:
    body = {"messageID": "msg_u1", "command": "review", "arguments": "all"}
    native = turn(1, said(1, "Review this: all"))
    events = replayed(native, [post(f"/session/{ROOT}/command", body)])
    assert user_messages(events) == [("turn-1", "/review all", True)]
    [begun] = [e.turn_started for e in events if e.HasField("turn_started")]
    assert begun.trigger == event_pb2.TURN_TRIGGER_COMMAND


def test_a_body_that_was_recorded_as_text_is_read() -> None:
    body = json.loads(sent("one"))
    body["body"] = json.dumps(body["body"])
    assert user_messages(replayed(turn(1, said(1, "one")), [json.dumps(body).encode()])) == [
        ("turn-1", "one", True)
    ]


def test_an_answer_that_comes_back_is_the_clients() -> None:
    whole = turn(1, said(1, "one"))
    running = tool("running", input={"command": "echo hi"}, message="msg_a1")
    replied = event("permission.replied", requestID="per_1", reply="once")
    native = [*whole[:4], running, permission(), replied, *whole[4:]]

    def resolved(reply: str) -> interaction_pb2.PermissionResolved:
        client = [sent("one"), post("/permission/per_1/reply", {"reply": reply})]
        [found] = (
            event.permission_resolved
            for event in replayed(native, client)
            if event.HasField("permission_resolved")
        )
        return found

    assert resolved("once").resolved_by == interaction_pb2.RESOLVED_BY_CLIENT
    assert resolved("reject").resolved_by == interaction_pb2.RESOLVED_BY_AGENT


def test_an_answer_in_words_of_ones_own_is_told_from_a_label() -> None:
    whole = turn(1, said(1, "one"))
    options = [{"label": "Red", "description": ""}, {"label": "Blue", "description": ""}]
    questions = [{"question": "Which?", "header": "Q", "options": options, "multiple": True}]
    asked = event("question.asked", id="que_1", questions=questions)
    native = [*whole[:4], asked, *whole[4:]]
    client = [sent("one"), post("/question/que_1/reply", {"answers": [["Blue", "or green"]]})]
    [resolved] = (
        event.question_resolved
        for event in replayed(native, client)
        if event.HasField("question_resolved")
    )
    [answer] = resolved.answer.answered.answers
    assert (list(answer.labels), answer.text) == (["Blue"], "or green")


def test_a_session_deleted_in_the_middle_leaves_nothing_open() -> None:
    whole = turn(1, said(1, "one"))
    running = tool("running", input={"command": "echo hi"}, message="msg_a1")
    deleted = event("session.deleted", info={"id": ROOT})
    events = replayed([*whole[:4], running, permission(), deleted], [sent("one")])
    [resolved] = [e.permission_resolved for e in events if e.HasField("permission_resolved")]
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    [ended] = [e.turn_ended for e in events if e.HasField("turn_ended")]
    assert ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    assert events[-1].session_ended.reason == event_pb2.SESSION_END_REASON_NOT_RESUMABLE
