"""Codex by the driver: what a message brings beside its text."""

import base64

import pytest

from agentstream.v1 import agent_pb2, error_pb2, service_pb2
from agentstreamd.adapters.base import AgentFailed
from tests.support import mcp_echo
from tests.support.codex_driver import COMPLETED, NewSession
from tests.support.responses_server import ResponsesRequest, ResponsesServer, reply, text

Choice = tuple[str, str | None]

# Not of another generation: between those Codex has the model sum up the conversation first.
OTHER = "gpt-5.4-mini"


def chosen(request: ResponsesRequest) -> Choice:
    """Model and effort that Codex asked the model for."""
    return request.body["model"], (request.body.get("reasoning") or {}).get("effort")


@pytest.mark.parametrize("config", [{}, {"model": "gpt-5.4", "effort": "low"}])
async def test_a_messages_model_and_effort_hold_for_its_turn_alone(
    new_session: NewSession, model: ResponsesServer, config: dict[str, str]
) -> None:
    model.script(*(reply(text("Yes.")) for _ in range(5)))
    session = new_session(**config)
    driver = session.driver()
    for prompt in (
        session.prompt("usual"),
        session.prompt("other", model=OTHER, effort="high"),
        session.prompt("usual"),
        session.prompt("effort alone", effort="high"),
        session.prompt("usual"),
    ):
        await driver.send(prompt)
        assert (await session.turn_ended()).status == COMPLETED
    usual, other, *rest = [chosen(request) for request in model.requests]
    assert other == (OTHER, "high")
    assert rest == [usual, (usual[0], "high"), usual]
    if config:
        assert usual == ("gpt-5.4", "low")


@pytest.mark.parametrize("config", [{}, {"model": "gpt-5.4", "effort": "low"}])
async def test_a_new_process_goes_on_with_the_sessions_model(
    new_session: NewSession, model: ResponsesServer, config: dict[str, str]
) -> None:
    model.script(*(reply(text("Yes.")) for _ in range(3)))
    session = new_session(**config)
    first = session.driver()
    await first.send(session.prompt("usual"))
    await session.turn_ended()
    await first.send(session.prompt("other", model=OTHER, effort="high"))
    await session.turn_ended()
    await first.close()
    await session.driver().send(session.prompt("usual"))
    await session.turn_ended()
    usual, other, after = [chosen(request) for request in model.requests]
    assert other == (OTHER, "high")
    assert after == usual


async def test_a_change_of_the_sessions_model_holds_after_a_message_with_its_own(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(*(reply(text("Yes.")) for _ in range(2)))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("other", model=OTHER))
    await session.turn_ended()
    await driver.update(model="gpt-5.4")
    await driver.send(session.prompt("usual"))
    await session.turn_ended()
    assert [chosen(request)[0] for request in model.requests] == [OTHER, "gpt-5.4"]


async def test_a_message_has_its_own_model_while_planning(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(*(reply(text("Yes.")) for _ in range(3)))
    session = new_session(permission_mode=agent_pb2.PERMISSION_MODE_PLAN, effort="low")
    driver = session.driver()
    for prompt in (
        session.prompt("usual"),
        session.prompt("other", model=OTHER, effort="high"),
        session.prompt("usual"),
    ):
        await driver.send(prompt)
        await session.turn_ended()
    usual, other, after = [chosen(request) for request in model.requests]
    assert other == (OTHER, "high")
    assert after == usual


@pytest.mark.parametrize("field", ["model", "effort"])
async def test_a_model_or_effort_with_control_characters_is_refused(
    new_session: NewSession, field: str
) -> None:
    session = new_session()
    with pytest.raises(AgentFailed) as failed:
        await session.driver().send(session.prompt("hi", **{field: "a\nb"}))  # type: ignore[arg-type]
    assert failed.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST


async def test_images_reach_the_model_whole(
    new_session: NewSession, model: ResponsesServer
) -> None:
    data = base64.b64decode(mcp_echo.PNG)
    model.script(reply(text("A dot.")))
    session = new_session()
    prompt = session.prompt("What is it?")
    image = service_pb2.InputImage(media_type="image/png", data=data)
    whole = type(prompt)(
        prompt.turn_id, prompt.message_id, (*prompt.parts, service_pb2.InputPart(image=image))
    )
    await session.driver().send(whole)
    assert (await session.turn_ended()).status == COMPLETED
    [sent] = [
        part
        for item in model.requests[0].input
        for part in item.get("content", [])
        if part["type"] == "input_image"
    ]
    assert sent["image_url"] == f"data:image/png;base64,{base64.b64encode(data).decode()}"
