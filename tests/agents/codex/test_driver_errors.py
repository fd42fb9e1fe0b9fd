"""The driver of Codex: errors of the provider, cut answers, deaths."""

import json
from pathlib import Path

import pytest

from agentstream.v1 import (
    error_pb2,
    item_pb2,
)
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support.codex_driver import COMPLETED, FAILED, INTERRUPTED, NewSession, server_of
from tests.support.responses_server import (
    Gate,
    ResponsesServer,
    cut,
    error,
    failed,
    hang,
    reply,
    says,
    text,
)


@pytest.mark.parametrize(
    ("status", "kind", "code", "requests"),
    [
        (400, "invalid_request_error", error_pb2.ERROR_CODE_INVALID_REQUEST, 1),
        (401, "authentication_error", error_pb2.ERROR_CODE_AUTHENTICATION, 2),
        (429, "rate_limit_error", error_pb2.ERROR_CODE_RATE_LIMITED, 2),
        (500, "server_error", error_pb2.ERROR_CODE_PROVIDER_FAILED, 4),
    ],
)
async def test_an_error_of_the_provider_fails_the_turn_once(
    new_session: NewSession,
    model: ResponsesServer,
    status: int,
    kind: str,
    code: int,
    requests: int,
) -> None:
    model.script(error(status, "bad thing", type=kind, repeat=True))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Go"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert ended.error.code == code
    final = [e.error for e in session.of(Kind.ERROR) if not e.error.will_retry]
    assert [e.message for e in final] == [ended.error.message]
    retried = [e.error for e in session.of(Kind.ERROR) if e.error.will_retry]
    assert all((e.attempt, e.max_attempts) == (1, 1) for e in retried)
    model.forget_script()
    model.script(reply(text("Better.")))
    await driver.send(session.prompt("And now?"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_a_used_up_quota_and_a_full_context_are_told_apart(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(failed("insufficient_quota"), failed("context_length_exceeded"))
    session = new_session()
    driver = session.driver()
    codes = []
    for _ in range(2):
        await driver.send(session.prompt("Go"))
        codes.append((await session.turn_ended()).error.code)
    assert codes == [
        error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
        error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    ]


async def test_a_refused_connection_fails_the_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    session = new_session()
    async with model.refusing():
        await session.driver().send(session.prompt("Go"))
        ended = await session.turn_ended()
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_NETWORK


async def test_an_answer_that_is_cut_is_superseded_by_its_repetition(
    new_session: NewSession, model: ResponsesServer
) -> None:
    gate = Gate()
    model.script(reply(text("half of ", gate, cut())), reply(text("The whole.")))
    session = new_session()
    await session.driver().send(session.prompt("Go"))
    await session.text_delta("half of ")
    gate.open()
    assert (await session.turn_ended()).status == COMPLETED
    [retry] = [e.error for e in session.of(Kind.ERROR)]
    assert retry.will_retry
    half, whole = [
        e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
        if e.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
    ]
    assert (half.content[0].text.text, half.superseded_by) == ("half of ", whole.item_id)
    assert whole.content[0].text.text == "The whole."


async def test_a_server_that_dies_ends_the_turns_of_all_its_sessions(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    model.script(
        reply(text("left ", hang()), when=says("left")),
        reply(text("right ", hang()), when=says("right")),
    )
    sessions = {name: new_session() for name in ("left", "right")}
    drivers = {name: session.driver() for name, session in sessions.items()}
    for name, session in sessions.items():
        await drivers[name].send(session.prompt(name))
        await session.text_delta(f"{name} ")
    server = server_of(processes)
    server.kill()
    for session in sessions.values():
        exit = await session.exit()
        assert not exit.expected
        assert exit.signal == 9
        assert exit.resumable
    model.script(reply(text("Again left.")), reply(text("Again right.")))
    for name, session in sessions.items():
        await drivers[name].send(session.prompt("and on"))
        assert (await session.turn_ended()).status == COMPLETED
        assert session.texts[-1] == f"Again {name}."
    assert server_of(processes) is not server
    assert "left" in json.dumps(model.requests[2].input)


async def test_closing_leaves_the_server_to_the_others(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    gate = Gate()
    model.script(
        reply(text("going ", hang()), when=says("gone")),
        reply(text("staying ", gate, "on"), when=says("stay")),
    )
    gone, stays = new_session(), new_session()
    leaving, staying = gone.driver(), stays.driver()
    await leaving.send(gone.prompt("be gone"))
    await staying.send(stays.prompt("stay"))
    await gone.text_delta("going ")
    await stays.text_delta("staying ")
    await leaving.close(forget=True)
    await leaving.close(forget=True)
    assert gone.of(Kind.TURN_ENDED)[0].turn_ended.status == INTERRUPTED
    assert [exit.expected for exit in gone.exits] == [True]
    gate.open()
    assert (await stays.turn_ended()).status == COMPLETED
    server_of(processes)


@pytest.fixture
def broken_configuration(codex_env: dict[str, str]) -> None:
    Path(codex_env["CODEX_HOME"], "config.toml").write_text("model = [broken")


@pytest.mark.usefixtures("broken_configuration")
async def test_a_configuration_that_codex_cannot_read_fails_the_message(
    new_session: NewSession,
) -> None:
    session = new_session()
    with pytest.raises(AgentFailed, match="configuration") as raised:
        await session.driver().send(session.prompt("Go"))
    assert raised.value.code == error_pb2.ERROR_CODE_AGENT_START_FAILED
    assert not session.exits
