"""The driver of OpenCode on the real server: turns, and what goes with their messages."""

import base64
import json
from pathlib import Path

import pytest

from agentstream.v1 import (
    agent_pb2,
    event_pb2,
    item_pb2,
    service_pb2,
)
from agentstreamd.adapters.base import NotDelivered, Prompt
from agentstreamd.adapters.opencode.calls import Call
from agentstreamd.adapters.opencode.driver import OpenCodeDriver
from agentstreamd.model import Draft, Kind
from tests.support import mcp_echo
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    Gate,
    reasoning,
    reply,
    says,
    text,
)
from tests.support.hermetic import make_workspace
from tests.support.opencode_bench import (
    OpenCodeBench,
    allowed,
    command,
)

COMPLETED = event_pb2.TURN_STATUS_COMPLETED


async def test_a_turn_streams_to_its_end(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(reasoning("Hm, ", "so."), text("Hel", "lo, ", "Wörld\u2028!")))
    session = bench.session(system_prompt="Always greet. MARK")
    await session.driver().send(session.prompt("Greet the world"))
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert ended.stop_reason == "stop"
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert session.deltas == ["Hel", "lo, ", "Wörld\u2028!"]
    assert session.texts == ["Hello, Wörld\u2028!"]
    assert model.requests[0].prompt == "Greet the world"
    assert "MARK" in model.requests[0].system
    assert session.native_session_id.startswith("ses_")
    assert not session.of(Kind.AGENT_UNPARSED)
    # The echo of the prompt is no news: the session has written it.
    roles = {e.item_started.item.role for e in session.of(Kind.ITEM_STARTED)}
    assert item_pb2.ITEM_ROLE_USER not in roles


async def test_reasoning_tokens_are_output_and_cached_ones_input(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    model.script(reply(text("Hi."), usage=usage))
    session = bench.session(model="fake/priced")
    await session.driver().send(session.prompt("Hi"))
    used = (await session.turn_ended()).usage
    assert (used.input_tokens, used.cache_read_tokens) == (100, 60)
    assert (used.output_tokens, used.reasoning_tokens) == (50, 30)
    assert used.cost_micro_usd > 0


async def test_sessions_in_two_directories_share_a_server(
    bench: OpenCodeBench, model: ChatCompletionsServer, tmp_path: Path
) -> None:
    gate = Gate()
    model.script(
        reply(text("One ", gate, "ended."), when=says("first")),
        *command("call_2", "pwd > where.txt"),
    )
    other = make_workspace(tmp_path / "wörk space")
    first, second = bench.session(), bench.session(directory=other)
    await first.driver().send(first.prompt("the first"))
    await first.text_delta("One ")
    driver = second.driver()
    await driver.send(second.prompt("the other"))
    asked = (await second.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed())
    assert (await second.turn_ended()).status == COMPLETED
    assert (other / "where.txt").read_text().strip() == str(other)
    gate.open()
    assert (await first.turn_ended()).status == COMPLETED
    assert first.texts == ["One ended."]
    assert second.texts == ["Done."]
    assert bench.server_pid()
    assert not first.of(Kind.PERMISSION_REQUESTED)


async def test_an_image_and_a_file_reach_the_model(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("A dot.")))
    session = bench.session()
    png = base64.b64decode(mcp_echo.PNG)
    prompt = Prompt(
        "turn-1",
        "00000000-0000-4000-8000-000000000001",
        (
            service_pb2.InputPart(text="Look"),
            service_pb2.InputPart(image=service_pb2.InputImage(media_type="image/png", data=png)),
            service_pb2.InputPart(
                file=service_pb2.InputFile(
                    name="note.txt", media_type="text/plain", data="Grüße".encode()
                )
            ),
        ),
    )
    await session.driver().send(prompt)
    assert (await session.turn_ended()).status == COMPLETED
    said = json.dumps(model.requests[0].messages, ensure_ascii=False)
    assert mcp_echo.PNG in said
    assert "Grüße" in said


async def test_a_message_can_be_put_into_the_running_turn(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(
        reply(text("Working", gate, ".")), reply(text("And that too."), when=says("that too"))
    )
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Work"))
    await session.text_delta("Working")
    await driver.steer(session.prompt("Do that too"))
    gate.open()
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Working.", "And that too."]
    assert len(session.of(Kind.TURN_ENDED)) == 1
    with pytest.raises(NotDelivered):
        await driver.steer(session.prompt("Too late"))


async def test_the_model_and_the_permission_mode_change_with_the_next_message(
    bench: OpenCodeBench, model: ChatCompletionsServer, workspace: Path
) -> None:
    model.script(reply(text("One.")), *command("call_1"))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("Hello"))
    await session.turn_ended()
    await driver.update(model="fake/priced", permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await driver.send(session.prompt("Write"))
    assert (await session.turn_ended()).status == COMPLETED
    assert model.requests[1].body["model"] == "priced"
    assert (workspace / "a.txt").exists()
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_what_somebody_takes_back_is_said_and_gone_with_the_next_message(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    model.script(*(reply(text(f"Answer {n}.")) for n in range(3)))
    session = bench.session()
    driver = session.driver()
    await driver.send(session.prompt("One"))
    await session.turn_ended()
    await driver.send(session.prompt("Two"))
    taken_back = (await session.turn_ended()).native_turn_id
    assert isinstance(driver, OpenCodeDriver)
    assert driver.server is not None
    path = f"/session/{session.native_session_id}/revert"
    call = Call("POST", path, {"messageID": taken_back})
    await driver.server.call(call, session.config.working_directory)
    await session.until(lambda d: _label(d) == "reverted", "what was taken back")
    await driver.send(session.prompt("Two, otherwise"))
    assert (await session.turn_ended()).status == COMPLETED
    labels = [_label(draft) for draft in session.drafts]
    assert labels.count("message_removed") == 2
    assert "revert_over" in labels
    assert "Answer 1." not in json.dumps(model.requests[2].messages)


def _label(draft: Draft) -> str:
    content = draft.event.item_completed.item.content
    return content[0].status.label if content else ""
