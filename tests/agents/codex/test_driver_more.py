"""The driver of Codex: commands of its own, large and odd content, sub-agents."""

import json
from pathlib import Path

import pytest

from agentstream.v1 import (
    agent_pb2,
    item_pb2,
)
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.adapters.codex.adapter import CodexAdapter
from agentstreamd.model import Kind
from tests.support.codex_driver import (
    BYPASS,
    COMPLETED,
    INTERRUPTED,
    NewSession,
    allowed,
    shell,
    statuses,
)
from tests.support.responses_server import (
    ResponsesServer,
    call,
    hang,
    output_of,
    reply,
    says,
    text,
)


async def test_compaction_is_a_command(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(reply(text("One.")), reply(text("A summary.")), reply(text("After.")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    await driver.send(session.prompt("/compact", command=True))
    assert (await session.turn_ended()).status == COMPLETED
    assert [i.content[0].status.label for i in statuses(session)][-1] == "compacted"
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts[-1] == "After."
    with pytest.raises(AgentFailed, match="/nonsense"):
        await driver.send(session.prompt("/nonsense", command=True))


async def test_a_review_ends_its_turn(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    finding = json.dumps(
        {"findings": [], "overall_correctness": "patch is correct", "overall_explanation": "Fine."}
    )
    model.script(reply(text(finding)), reply(text("After.")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("/review look at it", command=True))
    assert (await session.turn_ended()).status == COMPLETED
    labels = [i.content[0].status.label for i in statuses(session)]
    assert "review_started" in labels
    finished = next(i for i in statuses(session) if i.content[0].status.label == "review_finished")
    assert "Fine." in finished.content[1].text.text
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts[-1] == "After."


async def test_text_that_looks_like_a_command_reaches_the_model(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("Hm.")))
    session = new_session()
    await session.driver().send(session.prompt("/compact"))
    await session.turn_ended()
    assert model.requests[0].prompt == "/compact"


async def test_large_output_comes_whole(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(
        reply(shell("sleep 0.5; head -c 900000 /dev/zero | tr '\\0' x")),
        reply(text("y" * 400_000), when=output_of("call_1")),
    )
    session = new_session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Much"))
    await session.turn_ended()
    assert session.tool_results["call_1"].output == "x" * 900_000
    assert session.texts == ["y" * 400_000]


async def test_text_survives_whatever_it_holds(
    new_session: NewSession, model: ResponsesServer
) -> None:
    odd = "a\u2028b\u0000c\u202eRTL 👩‍👩‍👧 \x1b[31m \\n \r\n end"
    model.script(reply(text(odd)))
    session = new_session()
    await session.driver().send(session.prompt(odd))
    await session.turn_ended()
    assert session.texts == [odd]
    assert model.requests[0].prompt == odd


async def test_a_sub_agents_work_stands_under_the_call_that_made_it(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    spawn = {"message": "CHILD TASK"}
    model.script(
        reply(
            call("spawn_agent", spawn, id="call_s", namespace="multi_agent_v1"),
            when=says("use a helper"),
        ),
        reply(shell("touch child.txt", id="call_c"), when=says("CHILD TASK")),
        reply(text("Child done."), when=output_of("call_c")),
        reply(hang(), when=output_of("call_s")),
    )
    session = new_session(model="mystery-model")
    driver = session.driver()
    await driver.send(session.prompt("use a helper"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.parent_id == "call_s"
    await driver.answer(asked.request_id, allowed())
    await session.until(
        lambda draft: (
            draft.kind is Kind.ITEM_COMPLETED
            and draft.event.item_completed.item.parent_id == "call_s"
            and draft.event.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
            and draft.event.item_completed.item.kind == item_pb2.ITEM_KIND_MESSAGE
        ),
        "message of the sub-agent",
    )
    assert (workspace / "child.txt").exists()
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    assert len(session.of(Kind.TURN_STARTED)) == 1


async def test_the_agent_is_described(adapter: CodexAdapter, codex_cli: Path) -> None:
    agent = await adapter.describe()
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    assert agent.executable_path == str(codex_cli)
    assert agent.version == "0.171.0"
    assert any(found.name.startswith("gpt-5") for found in agent.models)
