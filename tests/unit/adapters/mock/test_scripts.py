"""Every directive of a script, played inside the daemon: what becomes of it in the stream."""

import asyncio
import hashlib
import json

import pytest

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
    session_pb2,
)
from agentstreamd.adapters.base import Answer, NotDelivered, Prompt
from agentstreamd.adapters.mock.stage import PIXEL_PNG
from tests.unit.adapters.mock.conftest import NewSession
from tests.unit.adapters.mock.harness import REJECT, Session, accept_all, parts

EVERYTHING = """\
say Hello
think full all of it
think summary some of it
think redacted
message
think hm
say two
image
json data {"a": 1}
end
delta a
repeat 2 delta b
tool Bash {"command":"ls"} => output
call Hang
read a
write b text
edit c old => new
delete d
move e f
image tool
image url https://example.com/x.png
image path /tmp/x.png
retract one => two
status busy Working
status key=plan plan The plan
todo one | [x] two
system hi
unknown novelty {"a": 1}
lone_surrogate
garbage
ask permission command "rm x"
ask permission file_change x.py
ask permission tool Foo {"a": 1}
ask permission mcp_tool mcp__a__b {}
ask permission network example.com
ask permission plan "# Plan"
ask permission grant /dir
ask question multi "Which?" red|green ;; free "Why?" ;; secret free "Password?" ;; optional "Q?" a|b
ask form "Name?" {"type":"object"}
agent Explore look
say inner
end
error rate_limited retry slow down
model mock-2
mode scripted
permission_mode plan
title A title
tools A | B
mcp srv failed oops
usage {"input_tokens": "5"}
"""


async def test_a_script_can_make_every_kind_of_everything(new_session: NewSession) -> None:
    session = new_session()
    await session.turn(EVERYTHING)
    ended = event_pb2.SessionEnded(reason=event_pb2.SESSION_END_REASON_ENDED_BY_CLIENT)
    await session.turn(f"native {json.dumps({'type': 'session_ended', 'reason': ended.reason})}")
    assert session.violations() == []

    payloads = {event.WhichOneof("payload") for event in session.events}
    assert payloads == {field.name for field in event_pb2.Event.DESCRIPTOR.oneofs[0].fields}
    items = session.items()
    assert {item.kind for item in items} == set(item_pb2.ItemKind.values()) - {0}
    found = {part.WhichOneof("part") for item in items for part in item.content}
    assert found == {field.name for field in item_pb2.ContentPart.DESCRIPTOR.oneofs[0].fields}
    visibilities = {part.reasoning.visibility for item in items for part in item.content}
    assert visibilities == set(item_pb2.ReasoningVisibility.values())
    actions = {
        part.file_ref.action for item in items for part in item.content if part.HasField("file_ref")
    }
    assert actions == set(item_pb2.FileAction.values()) - {0}
    permissions = session.payloads("permission_requested")
    assert {one.permission_requested.kind for one in permissions} == set(
        interaction_pb2.PermissionKind.values()
    ) - {0}
    deltas = {one.item_delta.kind for one in session.payloads("item_delta")}
    assert deltas == set(event_pb2.DeltaKind.values()) - {0}


async def test_the_same_script_gives_the_same_stream(new_session: NewSession) -> None:
    streams = []
    for _ in range(2):
        session = new_session()
        await session.turn(EVERYTHING)
        streams.append([event.SerializeToString(deterministic=True) for event in session.events])
    assert streams[0] == streams[1]


async def test_a_plain_text_is_echoed_in_pieces(new_session: NewSession) -> None:
    session = new_session()
    ended = await session.turn("Hello there, agent")
    assert ended.status == event_pb2.TURN_STATUS_COMPLETED
    assert session.texts() == ["Hello there, agent"]
    assert len(session.payloads("item_delta")) == 3
    assert ended.usage.input_tokens == ended.usage.output_tokens == 18


async def test_images_and_files_are_echoed_by_size_and_digest(new_session: NewSession) -> None:
    session = new_session()
    image = service_pb2.InputPart(
        image=service_pb2.InputImage(media_type="image/png", data=PIXEL_PNG)
    )
    file = service_pb2.InputPart(
        file=service_pb2.InputFile(name="a.txt", media_type="text/plain", data=b"abc")
    )
    await session.start("Look", more=(image, file))
    await session.ended()
    assert session.texts() == [
        "Look\n"
        f"image image/png {len(PIXEL_PNG)} bytes sha256 {hashlib.sha256(PIXEL_PNG).hexdigest()}\n"
        f"file a.txt text/plain 3 bytes sha256 {hashlib.sha256(b'abc').hexdigest()}"
    ]


async def test_large_volumes_arrive_whole(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("repeat 3000 delta x\ntext 3MB\ntool Big => @2MB")
    assert session.violations() == []
    assert session.texts()[0] == "x" * 3000
    sizes = [
        part.external.size_bytes
        for item in session.items()
        for part in item.content
        if part.HasField("external")
    ]
    assert sizes == [3 * 2**20, 2 * 2**20]


@pytest.mark.parametrize(
    ("script", "status", "code", "message"),
    [
        ("fail overloaded too busy", "FAILED", "OVERLOADED", "too busy"),
        ("sya", "COMPLETED", None, ""),
        ("say x\nsya", "FAILED", "INVALID_REQUEST", "there is no directive 'sya'"),
        ("error nonsense", "FAILED", "INVALID_REQUEST", "there is no error code 'nonsense'"),
        ("delay soon", "FAILED", "INVALID_REQUEST", "delay needs a time"),
        ("spawn /tmp/x", "FAILED", "INVALID_REQUEST", "spawn needs agent_options[process]=true"),
    ],
)
async def test_a_turn_fails_as_the_script_says_or_since_it_is_wrong(
    new_session: NewSession, script: str, status: str, code: str | None, message: str
) -> None:
    session = new_session()
    ended = await session.turn(script)
    assert event_pb2.TurnStatus.Name(ended.status) == f"TURN_STATUS_{status}"
    assert error_pb2.ErrorCode.Name(ended.error.code) == f"ERROR_CODE_{code or 'UNSPECIFIED'}"
    assert message in ended.error.message
    assert session.violations() == []


def reject(event: event_pb2.Event) -> Answer | None:
    return REJECT if event.HasField("permission_requested") else accept_all(event)


async def test_what_follows_a_permission_depends_on_the_answer(new_session: NewSession) -> None:
    script = 'ask permission command "rm x"\non accept say yes\non reject say no'
    accepted, rejected = new_session(), new_session(session_id="t", respond=reject)
    await accepted.turn(script)
    await rejected.turn(script)
    assert accepted.texts() == ["ran rm x", "yes"]
    assert rejected.texts() == ["rejected: too dangerous", "no"]
    assert rejected.violations() == []


async def test_arguments_can_be_changed_when_accepting(new_session: NewSession) -> None:
    def change(event: event_pb2.Event) -> Answer:
        return interaction_pb2.PermissionAnswer(
            decision=interaction_pb2.PERMISSION_DECISION_ACCEPT,
            updated_arguments_json='{"command":"ls"}',
        )

    session = new_session(respond=change)
    await session.turn('ask permission command "rm x"')
    assert session.texts() == ['ran rm x with {"command":"ls"}']


async def test_what_is_accepted_for_the_session_is_not_asked_again(new_session: NewSession) -> None:
    def for_session(event: event_pb2.Event) -> Answer:
        return interaction_pb2.PermissionAnswer(
            decision=interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
        )

    session = new_session(respond=for_session)
    await session.turn("ask permission command a\nask permission command b")
    await session.turn("ask permission command c")
    assert session.texts() == ["ran a", "ran b", "ran c"]
    assert len(session.payloads("permission_requested")) == 1


async def test_a_rejection_can_end_the_turn(new_session: NewSession) -> None:
    def interrupting(event: event_pb2.Event) -> Answer:
        return interaction_pb2.PermissionAnswer(
            decision=interaction_pb2.PERMISSION_DECISION_REJECT, interrupt=True
        )

    session = new_session(respond=interrupting)
    ended = await session.turn("ask permission command a\nsay not reached")
    assert ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    assert session.texts() == ["rejected: no reason given"]
    assert session.violations() == []


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        (agent_pb2.PERMISSION_MODE_DEFAULT, 2),
        (agent_pb2.PERMISSION_MODE_ACCEPT_EDITS, 1),
        (agent_pb2.PERMISSION_MODE_BYPASS, 0),
    ],
)
async def test_the_permission_mode_decides_what_is_asked(
    new_session: NewSession, mode: agent_pb2.PermissionMode.ValueType, asked: int
) -> None:
    session = new_session(config=session_pb2.SessionConfig(permission_mode=mode))
    await session.turn("ask permission command a\nask permission file_change b")
    assert len(session.payloads("permission_requested")) == asked
    assert session.texts() == ["ran a", "changed b"]


async def test_the_permission_mode_can_be_changed_between_turns(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("say hi")
    await session.driver.update(model="mock-2", permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.turn("ask permission command a\nsettings")
    assert session.payloads("permission_requested") == []
    assert json.loads(session.texts()[-1])["model"] == "mock-2"


async def test_two_requests_can_wait_at_once(new_session: NewSession) -> None:
    session = new_session(respond=None)
    await session.start("parallel\nask permission command a\nask permission command b\nend")
    await session.until(lambda: len(session.keeper.pending) == 2)
    for request_id in reversed(list(session.keeper.pending)):
        await session.answer(request_id, REJECT)
    await session.ended()
    assert len(session.payloads("permission_resolved")) == 2
    assert session.violations() == []


async def test_a_secret_answer_shows_in_no_event(new_session: NewSession) -> None:
    session = new_session()
    await session.turn('ask question secret free "Password?"')
    assert session.texts() == ["q1: (4 characters)"]


async def test_a_sub_agents_items_stand_under_its_call(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("agent Outer\nsay a\nagent Inner\nsay b\nend\nend")
    parents = {
        part.text.text: item.parent_id
        for item in session.items()
        for part in item.content
        if part.HasField("text")
    }
    calls = [item.item_id for item in session.items() if item.kind == item_pb2.ITEM_KIND_TOOL_CALL]
    assert [parents["a"], parents["b"]] == calls
    assert session.violations() == []


async def test_the_agent_can_begin_a_turn_by_itself(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("spontaneous say on my own\ncompact\nsay first")
    await session.until(lambda: len(session.payloads("turn_ended")) == 3)
    triggers = [event.turn_started.trigger for event in session.payloads("turn_started")]
    assert triggers == [
        event_pb2.TURN_TRIGGER_CLIENT,
        event_pb2.TURN_TRIGGER_AGENT,
        event_pb2.TURN_TRIGGER_COMPACTION,
    ]
    assert session.texts()[:2] == ["first", "on my own"]
    assert session.violations() == []


async def test_work_in_the_background_is_outside_of_turns(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("background\nsay beside\nask permission command x\nend\nsay in turn")
    await session.until(lambda: "ran x" in session.texts())
    outside = [event.WhichOneof("payload") for event in session.events if not event.turn_id]
    assert {"item_completed", "permission_requested", "permission_resolved"} <= set(outside)
    assert session.violations() == []


async def test_a_message_can_be_put_into_the_running_turn(new_session: NewSession) -> None:
    session = new_session()
    await session.start("say before\nwait steer\nsay after")
    await session.streaming()
    await session.driver.steer(Prompt(session.keeper.turn_id, "steering", parts("say steered")))
    await session.ended()
    assert session.texts() == ["before", "steered", "after"]
    assert len(session.payloads("turn_ended")) == 1


async def test_steering_comes_too_late_when_no_turn_runs(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("say hi")
    with pytest.raises(NotDelivered):
        await session.driver.steer(Prompt("", "late", parts("say late")))


async def test_an_interrupt_ends_the_turn_and_the_session_goes_on(new_session: NewSession) -> None:
    session = new_session()
    await session.start("delta before\nwait interrupt\nsay not reached")
    await session.streaming()
    await session.driver.interrupt()
    assert (await session.ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    await session.turn("say again")
    assert session.texts() == ["before", "again"]
    assert session.violations() == []


async def test_an_interrupt_that_overtakes_the_prompt_ends_its_turn(
    new_session: NewSession,
) -> None:
    session = new_session()
    await session.start("wait interrupt")
    await session.driver.interrupt()
    assert (await session.ended()).status == event_pb2.TURN_STATUS_INTERRUPTED
    assert (await session.turn("say again")).status == event_pb2.TURN_STATUS_COMPLETED


async def test_an_interrupt_outside_of_a_turn_does_nothing(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("say hi")
    await session.driver.interrupt()
    assert (await session.turn("say ho")).status == event_pb2.TURN_STATUS_COMPLETED


async def test_an_agent_that_refuses_an_interrupt_goes_on(new_session: NewSession) -> None:
    session = new_session()
    await session.start("refuse interrupt\nsay before\nwait steer\nsay after")
    await session.streaming()
    await session.driver.interrupt()
    await session.driver.steer(Prompt(session.keeper.turn_id, "steering", parts("go on")))
    assert (await session.ended()).status == event_pb2.TURN_STATUS_COMPLETED


async def test_a_silent_agent_says_nothing_until_it_is_closed(new_session: NewSession) -> None:
    session = new_session()
    await session.start("say before\nsilent\nsay after")
    await session.streaming()
    await session.driver.interrupt()
    await session.driver.close()
    assert [exit.expected for exit in session.exits] == [True]
    assert "after" not in session.texts()
    await session.turn("say again")
    assert session.texts()[-1] == "again"


async def test_an_oversized_line_is_unparsed_and_the_session_goes_on(
    new_session: NewSession,
) -> None:
    session = new_session()
    await session.turn("oversized 65MB\nsay after")
    (unparsed,) = session.payloads("agent_unparsed")
    assert unparsed.agent_unparsed.size_bytes == 65 * 2**20
    assert session.texts() == ["after"]


@pytest.mark.parametrize("fault", ["garbage", "garbage [1]", "invalid_utf8"])
async def test_what_is_no_message_is_unparsed_and_the_turn_goes_on(
    new_session: NewSession, fault: str
) -> None:
    session = new_session()
    await session.turn(f"say before\n{fault}\nsay after")
    assert len(session.payloads("agent_unparsed")) == 1
    assert session.texts() == ["before", "after"]
    assert session.violations() == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/echo hi", "hi"),
        ("/compact", "The conversation was compacted."),
        ("/model mock-2", "The model is mock-2."),
        ("/dance", "There is no command /dance."),
    ],
)
async def test_commands(new_session: NewSession, command: str, said: str) -> None:
    session = new_session()
    prompt = Prompt("turn", "message", parts(command), command=True)
    item = item_pb2.Item(item_id="u", kind=item_pb2.ITEM_KIND_MESSAGE, role=item_pb2.ITEM_ROLE_USER)
    session.keeper.begin_turn("turn", event_pb2.TURN_TRIGGER_COMMAND, item)
    await session.driver.send(prompt)
    await session.ended()
    assert session.texts()[-1] == said
    assert session.violations() == []


async def test_text_that_looks_like_a_command_is_text(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("/compact")
    assert session.texts() == ["/compact"]


async def test_a_resumed_session_goes_on_counting(new_session: NewSession) -> None:
    session = new_session()
    await session.turn("recall")
    await session.driver.close()
    await session.turn("recall")
    resumed = new_session(session_id="other", resume="mock-s", state=session.state)
    await resumed.turn("recall")
    assert session.texts() == ["turn 1 of mock-s", "turn 2 of mock-s"]
    assert resumed.texts() == ["turn 3 of mock-s"]


async def test_answers_can_be_lost(new_session: NewSession) -> None:
    session = new_session(options={"lose_answers": "1"}, respond=None)
    await session.start("ask permission command x")
    await session.until(lambda: bool(session.keeper.pending))
    (request_id,) = session.keeper.pending
    with pytest.raises(NotDelivered):
        await session.answer(request_id, REJECT)
    await session.answer(request_id, REJECT)
    await session.ended()
    assert session.violations() == []


async def test_a_crash_of_a_shared_host_takes_all_its_sessions(new_session: NewSession) -> None:
    shared = {"shared_host": "true"}
    sessions: list[Session] = [
        new_session(session_id=name, options=shared) for name in ("a", "b", "c")
    ]
    for session in sessions[:2]:
        await session.start("say here\nwait interrupt")
        await session.streaming()
    await sessions[2].start("stderr oops\ncrash 11")
    await asyncio.gather(*(session.ended() for session in sessions))
    for session in sessions:
        (exit,) = session.exits
        assert (exit.signal, exit.expected, exit.stderr_head) == (11, False, "oops\n")
        assert session.payloads("turn_ended")[-1].turn_ended.status == event_pb2.TURN_STATUS_FAILED
        assert session.violations() == []
        await session.turn("say again")
        assert session.texts()[-1] == "again"


async def test_a_session_leaves_a_shared_host_and_the_others_go_on(new_session: NewSession) -> None:
    shared = {"shared_host": "true"}
    first, second = (new_session(session_id=name, options=shared) for name in ("a", "b"))
    await asyncio.gather(first.turn("say first"), second.turn("say second"))
    await first.driver.close()
    await second.turn("say still here")
    assert second.texts() == ["second", "still here"]
    assert second.exits == []


async def test_a_message_has_its_own_model_and_effort_for_its_turn(
    new_session: NewSession,
) -> None:
    session = new_session()
    await session.turn("settings", model="mock-2", effort="high")
    chosen = json.loads(session.texts()[-1])
    assert (chosen["model"], chosen["effort"]) == ("mock-2", "high")
    await session.turn("settings")
    usual = json.loads(session.texts()[-1])
    assert (usual["model"], usual["effort"]) == ("mock-1", "")
    models = [one.session_updated.model for one in session.payloads("session_updated")]
    assert [model for model in models if model] == ["mock-1", "mock-2", "mock-1"]
