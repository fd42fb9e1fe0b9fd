"""Claude Code through the daemon: what it says, and what it is told."""

import asyncio
import base64
import json

import pytest

from agentstream.v1 import event_pb2, item_pb2, service_pb2
from tests.support import mcp_echo
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    redacted_thinking,
    reply,
    result_of,
    says,
    text,
    thinking,
    tool_use,
)
from tests.support.e2e import COMPLETED, Bench
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

AGENT = event_pb2.EVENT_SOURCE_AGENT
DAEMON = event_pb2.EVENT_SOURCE_DAEMON


@EVERY_CLAUDE
async def test_text_streams_in_the_order_of_the_laws(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("Hel", "lo, ", "Wörld"), input_tokens=100, output_tokens=20))
    session = await bench.session(system_prompt="Always greet. MARK")
    sent = await session.send("Greet the world", client_message_id="m-1")
    ended = await session.turn_ended()
    assert sent.sequence == 1

    started = await session.find("turn_started")
    assert started.sequence == sent.sequence + 1
    assert started.turn_id == sent.turn_id
    assert started.turn_started.trigger == event_pb2.TURN_TRIGGER_CLIENT
    assert started.turn_started.client_message_id == "m-1"

    user, assistant = (i for i in session.items if i.kind == item_pb2.ITEM_KIND_MESSAGE)
    assert user.role == item_pb2.ITEM_ROLE_USER
    assert [part.text.text for part in user.content] == ["Greet the world"]
    assert [part.text.text for part in assistant.content] == ["Hello, Wörld"]
    assert assistant.native_item_id.startswith("msg_")
    deltas = [e for e in session.of("item_delta") if e.item_delta.item_id == assistant.item_id]
    assert [e.item_delta.text for e in deltas] == ["Hel", "lo, ", "Wörld"]
    assert all((e.source, e.synthetic) == (AGENT, False) for e in deltas)

    assert ended.status == COMPLETED
    assert ended.stop_reason == "end_turn"
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert ended.usage.cost_micro_usd > 0
    assert (await session.get()).usage == ended.usage
    assert "MARK" in model.requests[0].system
    assert model.requests[0].prompt == "Greet the world"


@EVERY_CLAUDE
async def test_the_session_says_what_the_agent_is(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("Yes.")))
    session = await bench.session(model="sonnet", title="Greeting", labels={"for": "tests"})
    await session.turn("Are you there?")
    began = session.events[0].session_started
    assert (began.agent, began.working_directory) == ("claude", str(bench.workspace))
    assert not began.resumed
    said = [e.session_updated for e in session.of("session_updated")]
    assert any(update.native_session_id for update in said) or session.created.native_session_id
    assert any("Bash" in update.tools.names for update in said)
    now = await session.get()
    assert now.native_session_id
    assert now.agent_version[0].isdigit()
    assert now.config.title == "Greeting"
    assert now.config.env == dict.fromkeys(bench.env, "")
    turn_ended = await session.find("turn_ended")
    assert turn_ended.native_session_id == now.native_session_id


@EVERY_CLAUDE
async def test_thinking_is_reasoning_with_deltas(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(thinking("Hm, ", "a greeting."), redacted_thinking(), text("Hello.")))
    session = await bench.session()
    await session.turn("Greet the world")
    [message] = [i for i in session.items if i.role == item_pb2.ITEM_ROLE_ASSISTANT]
    full, redacted, said = message.content
    assert full.reasoning.text == "Hm, a greeting."
    assert full.reasoning.visibility == item_pb2.REASONING_VISIBILITY_FULL
    assert redacted.reasoning.text == ""
    assert redacted.reasoning.visibility == item_pb2.REASONING_VISIBILITY_REDACTED
    assert said.text.text == "Hello."
    deltas = [e.item_delta for e in session.of("item_delta")]
    assert [(d.content_index, d.kind, d.text) for d in deltas] == [
        (0, event_pb2.DELTA_KIND_REASONING, "Hm, "),
        (0, event_pb2.DELTA_KIND_REASONING, "a greeting."),
        (2, event_pb2.DELTA_KIND_TEXT, "Hello."),
    ]


@EVERY_CLAUDE
async def test_turns_follow_each_other_in_one_conversation(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("Noted.")), reply(text("Blue.")), reply(text("Blue, still.")))
    session = await bench.session()
    turns = [await session.send("My color is blue")]
    await session.turn_ended(turns[-1].turn_id)
    for prompt in ("Which was it?", "Sure?"):
        turns.append(await session.send(prompt))
        assert (await session.turn_ended(turns[-1].turn_id)).status == COMPLETED
    assert session.texts == ["Noted.", "Blue.", "Blue, still."]
    assert len({turn.turn_id for turn in turns}) == 3
    assert "My color is blue" in json.dumps(model.requests[2].body["messages"])
    assert (await session.get()).usage.output_tokens == 60


@EVERY_CLAUDE
async def test_an_image_and_a_file_in_the_prompt_reach_the_model(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("A dot.")))
    session = await bench.session()
    png = base64.b64decode(mcp_echo.PNG)
    image = service_pb2.InputImage(media_type="image/png", data=png)
    file = service_pb2.InputFile(name="notes.md", media_type="text/markdown", data=b"# Grue\n")
    parts = [service_pb2.InputPart(image=image), service_pb2.InputPart(file=file)]
    assert (await session.turn("What is it?", *parts)).status == COMPLETED
    [request] = model.requests
    [sent] = [b["source"] for b in request.news if b["type"] == "image"]
    assert sent["media_type"] == "image/png"
    [document] = [b for b in request.news if b["type"] == "document"]
    assert document["source"]["data"] == "# Grue\n"
    user = session.items[0]
    assert user.role == item_pb2.ITEM_ROLE_USER
    assert user.content[1].image.data == png


UNUSUAL = (
    "Grüße, \U0001f419, 日本, nel:\u0085 ls:\u2028 ps:\u2029 nul:\\u0000 \ufeffcr:\r\n tab:\t end"
)


@EVERY_CLAUDE
async def test_characters_that_break_lines_elsewhere_come_through(
    bench: Bench, model: AnthropicServer
) -> None:
    pieces = [UNUSUAL[i : i + 3] for i in range(0, len(UNUSUAL), 3)]
    command = "printf 'a\\302\\205b\\342\\200\\250c\\n'"
    model.script(
        reply(text(*pieces), tool_use("Bash", {"command": command}, id="toolu_nel")),
        reply(text(UNUSUAL), when=result_of("toolu_nel")),
    )
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    assert (await session.turn(f"Say {UNUSUAL}")).status == COMPLETED
    assert session.texts == [UNUSUAL, UNUSUAL]
    assert session.result("toolu_nel").content[0].tool_result.output == "a\u0085b\u2028c"
    assert session.items[0].content[0].text.text == f"Say {UNUSUAL}"
    assert model.requests[0].prompt == f"Say {UNUSUAL}"


@EVERY_CLAUDE
async def test_text_that_looks_like_a_command_reaches_the_model_as_written(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("Cheap.")), reply(text("A path.")))
    session = await bench.session()
    await session.turn("/cost of living?")
    await session.turn("/compact")
    assert [r.prompt.strip() for r in model.requests] == ["/cost of living?", "/compact"]
    assert session.items[0].content[0].text.text == "/cost of living?"


@EVERY_CLAUDE
async def test_a_command_is_the_agents_own(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("One.")))
    session = await bench.session()
    await session.turn("Count")
    ended = await session.turn("/cost", command=True)
    assert ended.status == COMPLETED
    started = session.of("turn_started")[-1]
    assert started.turn_started.trigger == event_pb2.TURN_TRIGGER_COMMAND
    [said] = [i for i in session.items if i.kind == item_pb2.ITEM_KIND_SYSTEM]
    assert "cost" in said.content[0].text.text.lower()
    assert len(model.requests) == 1


@EVERY_CLAUDE
async def test_compaction_goes_on_in_the_same_conversation(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        *(reply(text(f"{number}.")) for number in range(3)),
        reply(text("<summary>They count.</summary>"), when=says("summary")),
        reply(text("Four.")),
    )
    session = await bench.session()
    for _ in range(3):
        await session.turn("Count")
    assert (await session.turn("/compact", command=True)).status == COMPLETED
    assert session.statuses("compacted")
    await session.turn("Go on")
    assert "They count." in json.dumps(model.requests[-1].body["messages"])
    assert session.texts[-1] == "Four."


async def test_two_sessions_at_once_keep_apart(bench: Bench, model: AnthropicServer) -> None:
    gates = Gate("a"), Gate("b")
    model.script(
        reply(text("I am ", gates[0], "A."), when=says("You are A")),
        reply(text("I am ", gates[1], "B."), when=says("You are B")),
    )
    first, second = await asyncio.gather(bench.session(), bench.session())
    await asyncio.gather(first.send("You are A"), second.send("You are B"))
    await asyncio.gather(*(gate.reached() for gate in gates))
    gates[1].open()
    await second.turn_ended()
    assert not first.of("turn_ended")
    gates[0].open()
    await first.turn_ended()
    assert (first.texts, second.texts) == (["I am A."], ["I am B."])
    natives = [(await session.get()).native_session_id for session in (first, second)]
    assert natives[0] != natives[1]
