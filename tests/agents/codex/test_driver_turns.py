"""The driver of Codex: turns, threads and processes."""

import json

import pytest

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    item_pb2,
)
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support.codex_driver import COMPLETED, NewSession, server_of
from tests.support.responses_server import (
    Gate,
    ResponsesServer,
    reasoning,
    reply,
    says,
    text,
)


async def test_a_turn_streams_to_its_end(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(reply(text("Hel", "lo, ", "Wörld 🐸")))
    session = new_session(system_prompt="Always greet. MARK")
    await session.driver().send(session.prompt("Grüße the world"))
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert ended.usage.cache_read_tokens == 20
    assert session.deltas == ["Hel", "lo, ", "Wörld 🐸"]
    assert session.texts == ["Hello, Wörld 🐸"]
    assert "Grüße the world" in model.requests[0].prompt
    assert "MARK" in model.requests[0].instructions
    assert session.native_session_id
    [updated] = [
        e.session_updated
        for e in session.of(Kind.SESSION_UPDATED)
        if e.session_updated.agent_version
    ]
    assert updated.model == "gpt-5.5"
    assert updated.permission_mode == agent_pb2.PERMISSION_MODE_DEFAULT


async def test_reasoning_shows_its_summary_and_its_raw_text(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(reasoning("First I look", "then I act", raw=["raw ", "thought"]), text("So."))
    )
    session = new_session()
    await session.driver().send(session.prompt("Think"))
    await session.turn_ended()
    parts = [
        (part.reasoning.text, part.reasoning.visibility)
        for event in session.of(Kind.ITEM_COMPLETED)
        for part in event.item_completed.item.content
        if part.WhichOneof("part") == "reasoning"
    ]
    summary = item_pb2.REASONING_VISIBILITY_SUMMARY
    assert parts == [
        ("First I look", summary),
        ("then I act", summary),
        ("raw thought", item_pb2.REASONING_VISIBILITY_FULL),
    ]
    said: dict[int, str] = {}
    for event in session.of(Kind.ITEM_DELTA):
        delta = event.item_delta
        if delta.kind == event_pb2.DELTA_KIND_REASONING:
            said[delta.content_index] = said.get(delta.content_index, "") + delta.text
    assert list(said.values()) == ["First I look", "then I act", "raw thought"]


async def test_turns_and_sessions_share_one_process(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    model.script(reply(text("One.")), reply(text("Two.")), reply(text("Three.")))
    first, second = new_session(), new_session()
    driver = first.driver()
    for session, prompt, carrier in (
        (first, "Count", driver),
        (first, "Go on", driver),
        (second, "You too", second.driver()),
    ):
        await carrier.send(session.prompt(prompt))
        await session.turn_ended()
    assert first.texts == ["One.", "Two."]
    assert second.texts == ["Three."]
    assert first.native_session_id != second.native_session_id
    server_of(processes)
    assert not first.exits


async def test_sessions_with_another_environment_have_a_server_of_their_own(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    model.script(reply(text("One.")), reply(text("Two.")))
    first, second = new_session(), new_session(env={"OTHER": "1"})
    await first.driver().send(first.prompt("Count"))
    await first.turn_ended()
    await second.driver().send(second.prompt("Count"))
    await second.turn_ended()
    assert len(processes.children) == 2


async def test_two_threads_stream_at_once(new_session: NewSession, model: ResponsesServer) -> None:
    gates = {name: Gate(name) for name in ("left", "right")}
    for name, gate in gates.items():
        model.script(reply(text(f"{name} 1, ", gate, f"{name} 2"), when=says(name)))
    sessions = {name: new_session() for name in gates}
    for name, session in sessions.items():
        await session.driver().send(session.prompt(f"Go {name}"))
    for name, session in sessions.items():
        await session.text_delta(f"{name} 1, ")
    for name in ("right", "left"):
        gates[name].open()
        assert (await sessions[name].turn_ended()).status == COMPLETED
    assert {name: s.texts for name, s in sessions.items()} == {
        name: [f"{name} 1, {name} 2"] for name in gates
    }


async def test_a_stalled_stream_does_not_hold_up_another(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(text(*("flood " for _ in range(2000))), when=says("flood")),
        reply(text("Quick."), when=says("quick")),
    )
    stalled, other = new_session(), new_session()
    await stalled.driver().send(stalled.prompt("flood me"))
    await model.request(0)
    stalled.gate.clear()
    await other.driver().send(other.prompt("be quick"))
    assert (await other.turn_ended()).status == COMPLETED
    stalled.gate.set()
    await stalled.turn_ended()
    assert stalled.texts == ["flood " * 2000]


async def test_a_new_process_resumes_the_conversation(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    model.script(reply(text("Noted.")), reply(text("It was blue.")))
    session = new_session()
    first = session.driver()
    await first.send(session.prompt("My color is blue"))
    await session.turn_ended()
    [child] = processes.children
    await first.close()
    [exit] = session.exits
    assert exit.expected
    await child.wait_gone()  # nobody needs the server any more
    await session.driver().send(session.prompt("Which was it?"))
    await session.turn_ended()
    assert session.texts == ["Noted.", "It was blue."]
    assert "My color is blue" in json.dumps(model.requests[1].input)


async def test_a_thread_that_never_spoke_begins_anew(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("Hello.")))
    session = new_session()
    session.native_session_id = "01a22f89-335a-7992-a6a3-19dae5dcf5d1"
    await session.driver().send(session.prompt("Hello?"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_resuming_an_unknown_thread_fails_with_its_reason(new_session: NewSession) -> None:
    unknown = "01a22f89-335a-7992-a6a3-19dae5dcf5d1"
    session = new_session(resume_native_session_id=unknown)
    with pytest.raises(AgentFailed, match=unknown) as raised:
        await session.driver().send(session.prompt("Hello?"))
    assert raised.value.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
