"""Claude Code through the daemon: sub-agents, background work, and messages that wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2, service_pb2, session_pb2
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    main_thread,
    reply,
    result_of,
    says,
    sub_agent,
    task_notification,
    text,
    tool_use,
)
from tests.support.e2e import COMPLETED, QUEUE, REJECT, Bench, Session, refused
from tests.support.laboratory import CLAUDE_VERSIONS
from tests.support.model_server import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

QUEUED = service_pb2.MESSAGE_DISPOSITION_QUEUED


def task(prompt: str, *, background: bool = False) -> Json:
    return {
        "description": "Look around",
        "prompt": prompt,
        "subagent_type": "general-purpose",
        "run_in_background": background,
    }


def labelled(item: item_pb2.Item, *labels: str) -> bool:
    return any(part.status.label in labels for part in item.content)


def ancestors(session: Session, item: item_pb2.Item) -> list[str]:
    """What contains the item, from the inside out, by call id or kind."""
    items = {one.item_id: one for one in session.items}
    found = []
    while item.parent_id:
        item = items[item.parent_id]
        call = item.content[0].tool_call.call_id if item.content else ""
        found.append(call or item_pb2.ItemKind.Name(item.kind).removeprefix("ITEM_KIND_").lower())
    return found


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """A pipe at `path` that something waits for: `read word < path`."""
    os.mkfifo(path)
    opened = os.open(path, os.O_RDWR)
    try:
        yield opened
    finally:
        os.close(opened)


@EVERY_CLAUDE
async def test_a_sub_agents_work_stands_under_its_call(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        reply(text("Sending."), tool_use("Agent", task("Look"), id="toolu_task"), when=main_thread),
        reply(
            text("Looking."),
            tool_use("Bash", {"command": "touch found"}, id="toolu_touch"),
            when=sub_agent,
        ),
        reply(text("Nothing here."), when=sub_agent),
        reply(text("It found nothing."), when=result_of("toolu_task")),
    )
    session = await bench.session()
    await session.send("Send someone")
    asked = await session.permission()
    assert asked.command == "touch found"
    assert asked.call_id == "toolu_touch"
    await session.decide(asked)
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert (bench.workspace / "found").exists()

    outer = session.call("toolu_task")
    assert asked.parent_id == outer.item_id
    assert ancestors(session, session.call("toolu_touch")) == [
        "message",
        "toolu_task",
        "message",
    ]
    assert ancestors(session, session.result("toolu_touch"))[:2] == ["toolu_touch", "message"]
    under = [i for i in session.items if i.parent_id == outer.item_id]
    said = [(i.role, i.content[0].text.text) for i in under if i.content[0].HasField("text")]
    assert (item_pb2.ITEM_ROLE_USER, "Look") in said
    assert (item_pb2.ITEM_ROLE_ASSISTANT, "Looking.") in said
    assert (item_pb2.ITEM_ROLE_ASSISTANT, "Nothing here.") in said
    assert "Nothing here." in session.result("toolu_task").content[0].tool_result.output
    assert session.texts[-1] == "It found nothing."
    assert ended.usage.output_tokens == 80  # the sub-agent's included


@EVERY_CLAUDE
async def test_two_sub_agents_ask_at_once_and_are_answered_in_reverse_order(
    bench: Bench, model: AnthropicServer
) -> None:
    names = ("a", "b")
    model.script(
        reply(
            *(tool_use("Agent", task(f"Touch {n}"), id=f"toolu_task_{n}") for n in names),
            when=main_thread,
        ),
        *(
            reply(
                tool_use("Bash", {"command": f"touch {n}"}, id=f"toolu_{n}"),
                when=lambda r, n=n: r.is_sub_agent and f"Touch {n}" in r.prompt,  # type: ignore[misc]
            )
            for n in names
        ),
        *(reply(text(f"Touched {n}."), when=result_of(f"toolu_{n}")) for n in names),
        reply(text("Both."), when=result_of("toolu_task_a")),
    )
    session = await bench.session()
    await session.send("Send two")
    first, second = await session.permission(), await session.permission()
    assert {first.call_id, second.call_id} == {"toolu_a", "toolu_b"}
    await session.decide(second, REJECT, message="Not you.")
    await session.decide(first)
    assert (await session.turn_ended()).status == COMPLETED
    for asked, exists in ((first, True), (second, False)):
        assert (bench.workspace / asked.call_id[-1]).exists() == exists
        outer = session.call(f"toolu_task_{asked.call_id[-1]}")
        assert asked.parent_id == outer.item_id


@EVERY_CLAUDE
async def test_the_end_of_a_background_task_is_a_turn_of_the_agents_own(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate("in the agent's own turn")
    command = {"command": "read word < go", "run_in_background": True}
    model.script(
        reply(tool_use("Bash", command, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
        reply(text("It has ", gate, "ended."), when=task_notification),
        reply(text("Yours."), when=says("And mine?")),
    )
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    with fifo(bench.workspace / "go") as go:
        assert (await session.turn("Work in the background")).status == COMPLETED
        assert (await session.get()).state == session_pb2.SESSION_STATE_IDLE
        os.write(go, b"now\n")
        await gate.reached()
        await session.delta("It has ")
    own = session.of("turn_started")[1]
    assert own.turn_started.trigger == event_pb2.TURN_TRIGGER_AGENT
    with pytest.raises(aio.AioRpcError) as failed:
        await session.send("And mine?")
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "TURN_IN_PROGRESS")
    mine = await session.send("And mine?", when_busy=QUEUE)
    assert mine.disposition == QUEUED
    gate.open()
    assert (await session.turn_ended(mine.turn_id)).status == COMPLETED
    ends = [e.turn_id for e in session.of("turn_ended")]
    assert ends == [ends[0], own.turn_id, mine.turn_id]
    triggers = [e.turn_started.trigger for e in session.of("turn_started")]
    assert triggers[2] == event_pb2.TURN_TRIGGER_QUEUE
    assert session.texts == ["Started.", "It has ended.", "Yours."]


@EVERY_CLAUDE
async def test_a_background_task_that_ends_in_a_turn_loses_no_message(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate("in the client's turn")
    command = {"command": "read word < go; echo ready > done", "run_in_background": True}
    model.script(
        reply(text("Told."), when=task_notification, repeat=True),
        reply(tool_use("Bash", command, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
        reply(text("I am ", gate, "here."), when=says("Still there?")),
        reply(text("Yours."), when=says("And mine?")),
    )
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    with fifo(bench.workspace / "go") as go:
        await session.turn("Work in the background")
        asked = await session.send("Still there?")
        await gate.reached()
        mine = await session.send("And mine?", when_busy=QUEUE)
        os.write(go, b"now\n")
        await session.find(
            "item_completed",
            lambda e: labelled(e.item_completed.item, "task_updated", "task_ended"),
        )
        gate.open()
    assert (await session.turn_ended(asked.turn_id)).status == COMPLETED
    assert (await session.turn_ended(mine.turn_id)).status == COMPLETED
    assert "I am here." in session.texts
    assert "Yours." in session.texts
    prompts = [request.prompt for request in model.requests]
    assert sum("And mine?" in prompt for prompt in prompts) == 1


@EVERY_CLAUDE
async def test_what_a_background_sub_agent_asks_when_its_turn_is_over_does_not_wait_for_ever(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate("in the sub-agent")
    model.script(
        reply(
            tool_use("Agent", task("Touch it", background=True), id="toolu_task"),
            when=main_thread,
        ),
        reply(
            text("Now ", gate),
            tool_use("Bash", {"command": "touch x"}, id="toolu_x"),
            when=sub_agent,
        ),
        reply(text("Started."), when=result_of("toolu_task")),
        reply(text("Touched."), when=result_of("toolu_x")),
        reply(text("It is done."), when=task_notification),
    )
    session = await bench.session()
    assert (await session.turn("Send someone")).status == COMPLETED
    await gate.reached()
    gate.open()
    asked = await session.next("permission_requested")
    assert asked.turn_id == ""
    assert asked.permission_requested.parent_id == session.call("toolu_task").item_id
    await session.decide(asked.permission_requested)
    own = await session.find(
        "turn_started", lambda e: e.turn_started.trigger == event_pb2.TURN_TRIGGER_AGENT
    )
    assert (await session.turn_ended(own.turn_id)).status == COMPLETED
    assert (bench.workspace / "x").exists()
    assert session.texts[-1] == "It is done."


@EVERY_CLAUDE
async def test_what_a_background_sub_agent_asks_is_denied_when_the_turn_ends_before_its_answer(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate("in the client's turn")
    model.script(
        reply(
            tool_use("Agent", task("Touch it", background=True), id="toolu_task"),
            when=main_thread,
        ),
        reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x"), when=sub_agent),
        reply(text("Started, ", gate, "and more."), when=result_of("toolu_task")),
        reply(text("I may not."), when=result_of("toolu_x")),
        reply(text("It may not."), when=task_notification),
    )
    session = await bench.session()
    sent = await session.send("Send someone")
    asked = await session.next("permission_requested")
    assert asked.turn_id == sent.turn_id
    await gate.reached()
    gate.open()
    assert (await session.turn_ended(sent.turn_id)).status == COMPLETED
    [resolved] = session.of("permission_resolved")
    assert resolved.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    # The sub-agent does not wait for ever.
    own = await session.find(
        "turn_started", lambda e: e.turn_started.trigger == event_pb2.TURN_TRIGGER_AGENT
    )
    assert (await session.turn_ended(own.turn_id)).status == COMPLETED
    assert not (bench.workspace / "x").exists()
    assert session.texts[-1] == "It may not."


@EVERY_CLAUDE
async def test_messages_wait_in_order_while_a_turn_runs(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate()
    model.script(
        reply(text("One ", gate, "by one."), when=says("First")),
        reply(text("Two."), when=says("Second")),
        reply(text("Three."), when=says("Third")),
    )
    session = await bench.session()
    first = await session.send("First", client_message_id="m-1")
    await session.delta("One ")
    later = [
        await session.send(prompt, when_busy=QUEUE, client_message_id=f"m-{number}")
        for number, prompt in enumerate(("Second", "Third"), 2)
    ]
    again = await session.send("Second", when_busy=QUEUE, client_message_id="m-2")
    assert again == later[0]
    assert [m.disposition for m in later] == [QUEUED, QUEUED]
    now = await session.get()
    assert now.turn_id == first.turn_id
    assert [(m.preview, m.turn_id) for m in now.queue] == [
        ("Second", later[0].turn_id),
        ("Third", later[1].turn_id),
    ]
    with pytest.raises(aio.AioRpcError) as failed:
        await session.send("Fourth")
    assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "TURN_IN_PROGRESS")
    gate.open()
    for message in (first, *later):
        assert (await session.turn_ended(message.turn_id)).status == COMPLETED
    assert session.texts == ["One by one.", "Two.", "Three."]
    assert [r.prompt for r in model.requests] == ["First", "Second", "Third"]
    triggers = [e.turn_started.trigger for e in session.of("turn_started")]
    assert triggers == [
        event_pb2.TURN_TRIGGER_CLIENT,
        event_pb2.TURN_TRIGGER_QUEUE,
        event_pb2.TURN_TRIGGER_QUEUE,
    ]
    queues = [
        [m.preview for m in e.session_updated.queue.messages]
        for e in session.of("session_updated")
        if e.session_updated.HasField("queue")
    ]
    assert queues == [["Second"], ["Second", "Third"], ["Third"], []]


async def test_a_request_of_a_sub_agent_is_cancelled_with_its_turn(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        reply(tool_use("Agent", task("Touch it"), id="toolu_task"), when=main_thread),
        reply(tool_use("Bash", {"command": "touch x"}, id="toolu_x"), when=sub_agent),
    )
    session = await bench.session()
    await session.send("Send someone")
    asked = await session.permission()
    await session.interrupt()
    [resolved] = session.of("permission_resolved")
    assert resolved.permission_resolved.request_id == asked.request_id
    assert resolved.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert session.result("toolu_x").status == item_pb2.ITEM_STATUS_FAILED
    assert not (bench.workspace / "x").exists()
