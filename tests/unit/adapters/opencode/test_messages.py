"""Messages of OpenCode: text as it grows, what is whole, what comes too early or twice."""

import json

import pytest

from agentstream.v1 import event_pb2, item_pb2
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.model import Kind
from tests.unit.adapters.opencode.opencode_events import (
    CHILD,
    assistant,
    begun,
    busy,
    delta,
    deltas,
    event,
    feed,
    idle,
    items,
    of,
    own,
    part,
    post,
    prompt,
    step,
    text,
    tool,
    user,
    wrapped,
)


def messages(drafts: list) -> list[item_pb2.Item]:  # type: ignore[type-arg]
    return [item for item in items(drafts) if item.kind == item_pb2.ITEM_KIND_MESSAGE]


def test_text_and_reasoning_are_parts_in_order() -> None:
    normalizer, drafts = begun(
        text("", "prt_r", kind="reasoning"),
        delta("Hm", "prt_r"),
        text("Hm", "prt_r", kind="reasoning", end=True),
        text("", "prt_x"),
        delta("Hel", "prt_x"),
        delta("lo", "prt_x"),
        text("Hello", "prt_x", end=True),
        step(),
        assistant(done=True, finish="stop"),
    )
    grown = [e.item_delta for e in of(drafts, Kind.ITEM_DELTA)]
    assert [(d.content_index, d.kind, d.text) for d in grown] == [
        (0, event_pb2.DELTA_KIND_REASONING, "Hm"),
        (1, event_pb2.DELTA_KIND_TEXT, "Hel"),
        (1, event_pb2.DELTA_KIND_TEXT, "lo"),
    ]
    [message] = messages(drafts)
    assert message.item_id == message.native_item_id == "msg_a"
    assert message.content[0].reasoning.text == "Hm"
    assert message.content[1].text.text == "Hello"
    assert normalizer.session_id == "ses_root"


def test_the_global_form_says_the_same_and_its_twins_are_ignored() -> None:
    natives = (text(""), delta("Hi"), text("Hi", end=True), step(), assistant(done=True))
    _, plain = begun(*natives)
    twin = json.dumps({"payload": {"type": "sync", "syncEvent": {"type": "message.updated.1"}}})
    both = [native for one in natives for native in (wrapped(one), twin.encode())]
    _, other = begun(*both)
    assert [d.event for d in plain] == [d.event for d in other]


def test_events_of_the_api_to_come_are_read() -> None:
    info = {"id": "ses_root", "version": "2", "directory": "/repo"}
    said = {"type": "session.created", "location": {"directory": "/repo"}}
    native = json.dumps({**said, "data": {"sessionID": "ses_root", "info": info}}).encode()
    [started] = of(feed(OpenCodeNormalizer(), native), Kind.SESSION_STARTED)
    assert started.session_started.agent_version == "2"


def test_an_echo_of_a_prompt_is_no_item() -> None:
    _, drafts = begun(text("Hello", message="msg_u", end=True))
    assert [e.item_started.item.item_id for e in of(drafts, Kind.ITEM_STARTED)] == ["msg_a"]


def test_a_message_of_somebody_else_is_an_item_with_all_its_parts() -> None:
    normalizer = OpenCodeNormalizer()
    picture = part("file", "prt_2", "msg_u", mime="image/png", url="data:image/png;base64,aGk=")
    drafts = feed(normalizer, user(), text("Look", message="msg_u"), picture, busy())
    [message] = messages(drafts)
    assert message.role == item_pb2.ITEM_ROLE_USER
    assert message.content[0].text.text == "Look"
    assert message.content[1].image.data == b"hi"


def test_a_turn_of_somebody_else_begins_with_its_whole_message() -> None:
    normalizer = OpenCodeNormalizer(session_id="ses_root")
    early = feed(normalizer, user(), text("Look", message="msg_u"))
    assert early == []
    drafts = feed(normalizer, delta("Hi"))  # its announcement was missed
    assert [d.kind for d in drafts[:3]] == [
        Kind.TURN_STARTED,
        Kind.ITEM_STARTED,
        Kind.ITEM_COMPLETED,
    ]
    assert drafts[0].event.turn_started.native_turn_id == "msg_u"


def test_the_native_session_is_named_by_its_first_event_whatever_that_is() -> None:
    normalizer = OpenCodeNormalizer()
    [named] = feed(normalizer, user(), user("msg_u2"))
    assert named.event.session_updated.native_session_id == "ses_root"


def test_text_that_opencode_adds_to_a_prompt_is_of_the_system() -> None:
    _, drafts = begun(text("Called the tool", "prt_y", message="msg_u", synthetic=True, end=True))
    [added] = items(drafts)
    assert added.kind == item_pb2.ITEM_KIND_SYSTEM


def test_a_command_is_shown_as_what_opencode_makes_of_it() -> None:
    normalizer = OpenCodeNormalizer()
    body = {"messageID": "msg_u", "command": "init", "arguments": ""}
    normalizer.sent(post("/session/ses_root/command", body))
    [item] = items(feed(normalizer, user(), text("Write AGENTS.md", message="msg_u"), busy()))
    assert (item.kind, item.content[0].text.text) == (item_pb2.ITEM_KIND_SYSTEM, "Write AGENTS.md")


def test_a_compaction_is_a_turn_whose_summary_is_of_the_system() -> None:
    normalizer = OpenCodeNormalizer()
    drafts = feed(
        normalizer,
        user(),
        part("compaction", "prt_c", "msg_u", auto=False),
        assistant(summary=True),
        text(""),
        delta("In short"),
        text("In short", end=True),
        step(),
        assistant(done=True, finish="stop", summary=True),
        event("session.compacted"),
        idle(),
    )
    [started] = of(drafts, Kind.TURN_STARTED)
    assert started.turn_started.trigger == event_pb2.TURN_TRIGGER_COMPACTION
    [summary] = [i for i in items(drafts) if i.item_id == "msg_a"]
    assert summary.kind == item_pb2.ITEM_KIND_SYSTEM
    assert summary.content[0].text.text == "In short"


def test_a_prompt_that_opencode_repeats_after_it_compacted_is_not_the_users() -> None:
    repeated = (user("msg_again"), text("Hello", "prt_again", message="msg_again"))
    compaction = (user("msg_c"), part("compaction", "prt_c", "msg_c", auto=True))
    normalizer, drafts = begun(*compaction, *repeated, busy())
    [item] = [i for i in items(drafts) if i.item_id == "prt_again"]
    assert (item.kind, item.content[0].text.text) == (item_pb2.ITEM_KIND_SYSTEM, "Hello")
    feed(normalizer, assistant(done=True), idle())
    typed = text("And you", "prt_2", message="msg_2")
    [message] = messages(feed(normalizer, user("msg_2"), typed, busy()))
    assert message.role == item_pb2.ITEM_ROLE_USER


def test_a_delta_before_its_message_gets_a_stub() -> None:
    normalizer = OpenCodeNormalizer()
    drafts = feed(normalizer, delta("Hi"))
    [started] = of(drafts, Kind.ITEM_STARTED)
    assert started.synthetic
    assert started.source == event_pb2.EVENT_SOURCE_DAEMON
    assert deltas(drafts) == ["Hi"]


def test_a_message_written_down_late_is_complete_when_its_step_is() -> None:
    normalizer = OpenCodeNormalizer()
    normalizer.sent(prompt())
    done = assistant(done=True, finish="stop")
    drafts = feed(normalizer, user(), busy(), done)
    assert not items(drafts)
    drafts = feed(normalizer, text(""), delta("Hi"), text("Hi", end=True), step(), done, done)
    [message] = messages(drafts)
    assert message.content[0].text.text == "Hi"


def test_a_message_without_a_step_is_complete_when_the_session_is_idle() -> None:
    normalizer = OpenCodeNormalizer()
    normalizer.sent(prompt())
    drafts = feed(normalizer, user(), assistant(done=True, finish="tool-calls"), idle())
    assert len(messages(drafts)) == 1
    assert len(of(drafts, Kind.TURN_ENDED)) == 1


def test_a_broken_off_message_fails_with_what_was_said() -> None:
    error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    _, drafts = begun(text(""), delta("Hal"), assistant(done=True, error=error))
    [message] = messages(drafts)
    assert message.status == item_pb2.ITEM_STATUS_FAILED
    assert message.content[0].text.text == "Hal"


@pytest.mark.parametrize("finish", ["unknown", ""])
def test_an_answer_whose_model_never_came_to_an_end_is_not_whole(finish: str) -> None:
    broken = (step("unknown"),) if finish else ()
    _, drafts = begun(text(""), delta("Hal"), *broken, assistant(done=True, finish=finish))
    [message] = messages(drafts)
    assert message.status == item_pb2.ITEM_STATUS_FAILED


def test_a_message_of_tools_alone_needs_no_reason_to_be_whole() -> None:
    """A command that a person runs in OpenCode is such a message."""
    _, drafts = begun(tool("completed", output="x"), assistant(done=True))
    assert messages(drafts)[0].status == item_pb2.ITEM_STATUS_COMPLETED


def test_a_message_says_what_it_answers_and_used_and_why_it_failed() -> None:
    error = {"name": "APIError", "data": {"message": "no", "responseBody": "{}"}}
    tokens = {"input": 1, "output": 2}
    _, drafts = begun(assistant(done=True, modelID="m", tokens=tokens, error=error))
    told = json.loads(of(drafts, Kind.ITEM_COMPLETED)[0].metadata_json)
    assert told == {"parentID": "msg_u", "modelID": "m", "tokens": tokens, "error": error}


def test_the_end_of_a_step_is_part_of_its_message() -> None:
    normalizer, _ = begun(text("Hi", end=True))
    ended = step()
    assert feed(normalizer, ended, ended) == []
    done = assistant(done=True, finish="stop")
    [completed] = feed(normalizer, done)
    assert completed.raw == (text("Hi", end=True), ended, done)


def test_after_a_reconnect_the_missing_text_is_one_synthetic_delta() -> None:
    normalizer, drafts = begun(text(""), delta("one "))
    drafts += feed(
        normalizer,
        own("reconnected"),
        text("", fetched=True),
        delta("three "),  # "two " was missed
        text("one two three ", end=True),
    )
    grown = of(drafts, Kind.ITEM_DELTA)
    assert [e.item_delta.text for e in grown] == ["one ", "two three "]
    assert [e.synthetic for e in grown] == [False, True]


def test_what_is_fetched_again_is_not_said_again() -> None:
    natives = (
        text(""),
        delta("Hi"),
        text("Hi", end=True),
        tool("pending"),
        tool("running", input={"command": "x"}),
        tool("completed", input={"command": "x"}, output="y"),
        step("tool-calls"),
        assistant(done=True, finish="tool-calls"),
    )
    normalizer, _ = begun(*natives)
    assert feed(normalizer, own("reconnected"), user(), assistant(), *natives) == []


def test_a_part_that_began_unseen_waits_for_its_whole() -> None:
    normalizer, _ = begun()
    feed(normalizer, own("reconnected"))
    assert deltas(feed(normalizer, delta("b", "prt_9"))) == []
    drafts = feed(normalizer, text("ab", "prt_9", end=True), step(), assistant(done=True))
    assert deltas(drafts) == ["ab"]


def test_half_a_surrogate_pair_waits_for_the_other() -> None:
    _, drafts = begun(text(""), delta("a\ud83d"), delta("\ude00b"))
    assert deltas(drafts) == ["a", "\U0001f600b"]


def test_line_separators_stay_as_they_are() -> None:
    _, drafts = begun(text(""), delta("a\u2028b\u0085c"))
    assert deltas(drafts) == ["a\u2028b\u0085c"]


def test_a_sub_agents_messages_wait_for_the_call_that_runs_it() -> None:
    normalizer, drafts = begun(tool("pending", "task"))
    child = {"id": CHILD, "parentID": "ses_root", "title": "x"}
    early = feed(
        normalizer,
        event("session.created", CHILD, info=child),
        user("msg_cu", CHILD),
        part("text", "prt_c", "msg_cu", CHILD, text="count"),
        assistant("msg_ca", CHILD, parent="msg_cu"),
    )
    assert early == []
    drafts = feed(
        normalizer,
        tool("running", "task", input={"prompt": "count"}, metadata={"sessionId": CHILD}),
    )
    under = {
        e.item_started.item.item_id: e.item_started.item.parent_id
        for e in of(drafts, Kind.ITEM_STARTED)
    }
    assert under["msg_cu"] == under["msg_ca"] == "prt_t"


def test_an_idle_sub_agent_does_not_end_the_turn() -> None:
    normalizer, _ = begun(tool("running", "task", metadata={"sessionId": CHILD}))
    drafts = feed(normalizer, event("session.idle", CHILD), event("session.error", CHILD))
    assert not of(drafts, Kind.TURN_ENDED)


def test_another_session_is_passed_over() -> None:
    normalizer, _ = begun()
    other = {"id": "ses_other", "title": "x"}
    drafts = feed(
        normalizer, event("session.created", "ses_other", info=other), user("m", "ses_other")
    )
    assert drafts == []
    assert normalizer.finish() == []


def test_what_is_not_json_is_unparsed() -> None:
    normalizer = OpenCodeNormalizer()
    [draft] = normalizer.feed(b"{not json")
    assert draft.kind is Kind.AGENT_UNPARSED
    assert draft.raw == (b"{not json",)


@pytest.mark.parametrize(
    "native",
    [event("something.new", a=1), part("something-new", a=1), delta("x", field="other")],
)
def test_what_is_not_known_is_an_item_of_kind_unknown(native: bytes) -> None:
    _, drafts = begun(native)
    [item] = items(drafts)
    assert item.kind == item_pb2.ITEM_KIND_UNKNOWN


def test_what_is_not_known_of_another_shape_is_kept_whole() -> None:
    native = b'{"type": "something.new", "detail": 7}'
    [item] = items(feed(OpenCodeNormalizer(), native))
    assert item.content[0].json.json == native.decode()


def test_a_deleted_session_is_over_and_its_turn_is_stopped() -> None:
    normalizer, _ = begun()
    drafts = feed(normalizer, event("session.deleted", info={"id": "ses_root"}))
    assert of(drafts, Kind.SESSION_ENDED)
    assert normalizer.turns.must_abort
