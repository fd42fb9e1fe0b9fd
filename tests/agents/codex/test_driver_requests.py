"""The driver of Codex: questions, tools of MCP servers, pictures, settings."""

import base64
import json
import sys
from pathlib import Path

from agentstream.v1 import (
    interaction_pb2,
    service_pb2,
    session_pb2,
)
from agentstreamd.adapters.base import Prompt
from agentstreamd.model import Kind
from tests.support import mcp_asking, mcp_echo
from tests.support.codex_driver import (
    ACCEPT_FOR_SESSION,
    BYPASS,
    COMPLETED,
    REJECT,
    NewSession,
    allowed,
    echo_server,
    shell,
)
from tests.support.responses_server import (
    ResponsesServer,
    call,
    output_of,
    reply,
    text,
    web_search,
)


async def test_questions_get_their_answers(new_session: NewSession, model: ResponsesServer) -> None:
    questions = [
        {
            "id": name,
            "header": name.title(),
            "question": f"Which {name}?",
            "options": [
                {"label": "Red", "description": "warm"},
                {"label": "Blue", "description": "cold"},
            ],
        }
        for name in ("color", "shade")
    ]
    model.script(
        reply(call("request_user_input", {"questions": questions}, id="call_q")),
        reply(text("Blue it is."), when=output_of("call_q")),
        reply(call("request_user_input", {"questions": questions[:1]}, id="call_r")),
        reply(text("Then not."), when=output_of("call_r")),
    )
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Paint it"))
    asked = (await session.next(Kind.QUESTION_REQUESTED)).question_requested
    assert [question.question_id for question in asked.questions] == ["color", "shade"]
    assert [option.label for option in asked.questions[0].options] == ["Red", "Blue"]
    assert asked.questions[1].free_text
    answer = interaction_pb2.QuestionAnswer()
    answer.answered.answers.add(question_id="color", labels=["Blue"])
    answer.answered.answers.add(question_id="shade", text="navy, almost bläck")
    await driver.answer(asked.request_id, answer)
    await session.turn_ended()
    told = json.loads(model.requests[1].outputs["call_q"])
    assert told["answers"]["color"]["answers"] == ["Blue"]
    assert told["answers"]["shade"]["answers"] == ["navy, almost bläck"]

    await driver.send(session.prompt("Paint another"))
    asked = (await session.next(Kind.QUESTION_REQUESTED)).question_requested
    dismissed = interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions())
    await driver.answer(asked.request_id, dismissed)
    assert (await session.turn_ended()).status == COMPLETED
    assert json.loads(model.requests[3].outputs["call_r"])["answers"] == {}


async def test_a_tool_of_an_mcp_server_is_asked_for_and_used(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(call("echo", {"text": "hé 1.0"}, id="call_m", namespace="mcp__echo")),
        reply(text("It echoes."), when=output_of("call_m")),
        reply(call("echo", {"text": "again"}, id="call_n", namespace="mcp__echo")),
        reply(text("It echoes."), when=output_of("call_n")),
        reply(call("fail", {}, id="call_f", namespace="mcp__echo")),
        reply(text("It fails."), when=output_of("call_f")),
        reply(call("image", {}, id="call_i", namespace="mcp__echo")),
        reply(text("A dot."), when=output_of("call_i")),
    )
    session = new_session(mcp_servers=[echo_server()])
    driver = session.driver()
    await driver.send(session.prompt("Echo"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_MCP_TOOL
    assert (asked.tool_name, asked.call_id) == ("echo/echo", "call_m")
    assert json.loads(asked.arguments_json) == {"text": "hé 1.0"}
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    await session.turn_ended()
    assert session.tool_results["call_m"].output == "hé 1.0"

    await driver.send(session.prompt("Echo again"))  # accepted for the session
    await session.turn_ended()
    assert session.tool_results["call_n"].output == "again"

    await driver.send(session.prompt("Fail"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert session.tool_results["call_f"].is_error
    assert session.tool_results["call_f"].output == "this tool always fails"

    await driver.send(session.prompt("Draw"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    images = [
        part.image
        for event in session.of(Kind.ITEM_COMPLETED)
        for part in event.item_completed.item.content
        if part.WhichOneof("part") == "image"
    ]
    assert [image.media_type for image in images] == ["image/png"]
    assert images[0].data == base64.b64decode(mcp_echo.PNG)
    servers = [e.session_updated.mcp_servers for e in session.of(Kind.SESSION_UPDATED)]
    assert any(s.name == "echo" and s.status == "ready" for u in servers for s in u.servers)


async def test_a_rejected_mcp_tool_is_not_used(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(call("echo", {"text": "x"}, id="call_m", namespace="mcp__echo")),
        reply(text("Then not."), when=output_of("call_m")),
    )
    session = new_session(mcp_servers=[echo_server()])
    driver = session.driver()
    await driver.send(session.prompt("Echo"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.tool_results["call_m"].is_error


async def test_a_form_of_an_mcp_server_is_filled_in(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(call("ask", {}, id="call_a", namespace="mcp__asking")),
        reply(text("Hello Änn."), when=output_of("call_a")),
        reply(call("ask", {}, id="call_b", namespace="mcp__asking")),
        reply(text("Then not."), when=output_of("call_b")),
    )
    stdio = session_pb2.McpStdio(command=sys.executable, args=[mcp_asking.__file__])
    session = new_session(mcp_servers=[session_pb2.McpServer(name="asking", stdio=stdio)])
    driver = session.driver()
    await driver.send(session.prompt("Ask"))
    form = (await session.next(Kind.FORM_REQUESTED)).form_requested
    assert (form.message, form.server_name, form.call_id) == ("Your name?", "asking", "call_a")
    assert json.loads(form.schema_json)["required"] == ["name"]
    filled = interaction_pb2.FormAnswer(
        action=interaction_pb2.FORM_ACTION_ACCEPT, content_json='{"name": "Änn"}'
    )
    await driver.answer(form.request_id, filled)
    await session.turn_ended()
    told = json.loads(session.tool_results["call_a"].output)
    assert (told["action"], told["content"]) == ("accept", {"name": "Änn"})

    await driver.send(session.prompt("Ask again"))
    form = (await session.next(Kind.FORM_REQUESTED)).form_requested
    declined = interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE)
    await driver.answer(form.request_id, declined)
    await session.turn_ended()
    assert json.loads(session.tool_results["call_b"].output)["action"] == "decline"
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_a_search_of_the_provider_is_shown(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(web_search("cats"), text("Cats.")))
    session = new_session()
    await session.driver().send(session.prompt("Look for cats"))
    await session.turn_ended()
    calls = [
        part.tool_call
        for event in session.of(Kind.ITEM_COMPLETED)
        for part in event.item_completed.item.content
        if part.WhichOneof("part") == "tool_call"
    ]
    [search] = calls
    assert search.name == "web_search"
    assert json.loads(search.arguments_json)["query"] == "cats"
    assert "ws_1" in session.tool_results


async def test_an_image_reaches_the_model(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(reply(text("A dot.")))
    session = new_session()
    image = service_pb2.InputImage(media_type="image/png", data=base64.b64decode(mcp_echo.PNG))
    parts = (service_pb2.InputPart(text="What is it?"), service_pb2.InputPart(image=image))
    await session.driver().send(Prompt("turn-1", "00000000-0000-4000-8000-000000000001", parts))
    await session.turn_ended()
    assert "data:image/png;base64," in json.dumps(model.requests[0].input)


async def test_settings_change_between_turns(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(text("One.")),
        reply(shell("touch a.txt")),
        reply(text("Done."), when=output_of("call_1")),
    )
    session = new_session(effort="low")
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    await driver.update(model="gpt-5.4", permission_mode=BYPASS)
    await driver.send(session.prompt("Touch it"))
    await session.turn_ended()
    assert (workspace / "a.txt").exists()
    assert model.requests[0].body["model"] == "gpt-5.5"
    assert model.requests[0].body["reasoning"]["effort"] == "low"
    assert model.requests[1].body["model"] == "gpt-5.4"
    said = [e.session_updated for e in session.of(Kind.SESSION_UPDATED)]
    assert any(u.model == "gpt-5.4" and u.permission_mode == BYPASS for u in said)
