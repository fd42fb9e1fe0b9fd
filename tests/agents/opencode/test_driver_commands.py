"""The driver of OpenCode on the real server: commands, and conversations that are compacted."""

import pytest

from agentstream.v1 import error_pb2, event_pb2, item_pb2
from agentstreamd.adapters.base import AgentFailed, NotDelivered
from agentstreamd.model import Kind
from tests.support.chat_completions_server import ChatCompletionsServer, error, hang, reply, text
from tests.support.fake_session import FakeSession
from tests.support.opencode_bench import OpenCodeBench

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED


def system_texts(session: FakeSession) -> list[str]:
    """What OpenCode itself put into the conversation."""
    items = [e.item_completed.item for e in session.of(Kind.ITEM_COMPLETED)]
    return [i.content[0].text.text for i in items if i.kind == item_pb2.ITEM_KIND_SYSTEM]


async def test_a_command_reaches_the_model_as_what_opencode_makes_of_it(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Written.")), reply(text("You are welcome.")))
    session = bench.session(model="fake/priced")
    driver = session.driver()
    await driver.send(session.prompt("/init only what is needed", command=True))
    ended = await session.turn_ended()
    assert (ended.status, ended.stop_reason) == (COMPLETED, "stop")
    [made] = system_texts(session)
    assert "AGENTS.md" in made
    assert "only what is needed" in made
    assert model.requests[0].prompt == made
    assert model.requests[0].body["model"] == "priced"
    await driver.send(session.prompt("/init is a fine command"))
    assert (await session.turn_ended()).status == COMPLETED
    assert model.requests[1].prompt == "/init is a fine command"


async def test_the_conversation_is_compacted_on_command(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Hello.")), reply(text("They greeted.")), reply(text("Going on.")))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    await session.turn_ended()
    await driver.send(session.prompt("/compact", command=True))
    assert (await session.turn_ended()).status == COMPLETED
    assert system_texts(session) == ["They greeted."]
    await driver.send(session.prompt("Go on"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_a_conversation_that_is_too_long_is_compacted_and_goes_on_in_the_same_turn(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(text("Hello.")),
        error(400, "This model's maximum context length is 10 tokens"),
        reply(text("They greeted.")),
        reply(text("Sorted.")),
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    await session.turn_ended()
    await driver.send(session.prompt("Sort the list"))
    assert (await session.turn_ended()).status == COMPLETED
    [said] = [e.error for e in session.of(Kind.ERROR)]
    assert said.code == error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED
    assert system_texts(session) == ["They greeted.", "Sort the list"], "not the user, twice"
    assert session.texts[-1] == "Sorted."
    roles = {e.item_started.item.role for e in session.of(Kind.ITEM_STARTED)}
    assert item_pb2.ITEM_ROLE_USER not in roles


async def test_a_command_that_does_not_exist_fails_and_says_which_do(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Hello.")))
    session = bench.session()
    driver = session.driver()
    with pytest.raises(AgentFailed, match=r"no command /nothing.*/compact, /init") as failed:
        await driver.send(session.prompt("/nothing at all", command=True))
    assert failed.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    with pytest.raises(AgentFailed, match="nothing to compact"):
        await driver.send(session.prompt("/compact", command=True))
    await driver.send(session.prompt("Hello"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_a_command_can_be_interrupted_and_takes_no_other_while_it_runs(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Let me see", hang())))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("/init", command=True))
    await session.text_delta("Let me see")
    with pytest.raises(NotDelivered):
        await driver.steer(session.prompt("/init", command=True))
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
