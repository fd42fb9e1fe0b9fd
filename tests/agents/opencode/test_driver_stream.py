"""The driver of OpenCode on the real server: its event stream, broken, silent or large."""

import os
import signal
from pathlib import Path

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
)
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.model import Kind
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    Gate,
    hang,
    reply,
    result_of,
    text,
    tool_call,
)
from tests.support.cutting_proxy import CuttingProxy
from tests.support.opencode_bench import (
    MakeBench,
    OpenCodeBench,
    allowed,
)

COMPLETED = event_pb2.TURN_STATUS_COMPLETED


async def test_a_stream_cut_in_the_middle_of_a_message_loses_and_repeats_nothing(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    missed, seen = Gate("missed"), Gate("seen")
    words = [f"w{number} " for number in range(30)]
    model.script(reply(text(*words[:10], missed, *words[10:20], seen, *words[20:])))
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Count"))
        await session.text_delta("w9 ")
        proxy.cut_events()
        missed.open()
        await seen.reached()
        proxy.let_events_pass()
        await proxy.streams_opened(2)
        seen.open()
        assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["".join(words)]
    assert "".join(session.deltas) == "".join(words)
    assert session.deltas[:10] == words[:10]


async def test_a_turn_that_ended_unseen_is_ended(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(reply(text("Begun, ", gate, "done.")))
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Go"))
        await session.text_delta("Begun, ")
        proxy.cut_events()
        gate.open()
        await model.requests[0].ended.wait()
        await bench.idle(session)
        proxy.let_events_pass()
        assert (await session.turn_ended()).status == COMPLETED
        assert session.texts == ["Begun, done."]
        assert "".join(session.deltas) == "Begun, done."


async def test_a_permission_asked_unseen_is_asked(
    make_bench: MakeBench, model: ChatCompletionsServer, workspace: Path
) -> None:
    gate = Gate()
    model.script(
        reply(
            text("Let me. "),
            gate,
            tool_call("bash", {"command": "echo hi > a.txt", "description": "x"}, id="call_1"),
        ),
        reply(text("Done."), when=result_of("call_1")),
    )
    async with CuttingProxy() as proxy, make_bench(via=proxy.via) as bench:
        session = bench.session()
        driver = session.driver()
        await driver.send(session.prompt("Go"))
        await session.text_delta("Let me. ")
        proxy.cut_events()
        gate.open()
        await bench.asks(session)
        proxy.let_events_pass()
        asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        await driver.answer(asked.request_id, allowed())
        assert (await session.turn_ended()).status == COMPLETED
    assert (workspace / "a.txt").exists()
    assert session.texts == ["Let me. ", "Done."]
    assert set(session.tool_results) == {"call_1"}


async def test_a_silent_server_is_killed_and_its_turn_ends(
    make_bench: MakeBench, model: ChatCompletionsServer
) -> None:
    limits = Limits(silence_seconds=1, dead_seconds=1, request_seconds=3, abort_seconds=1)
    model.script(reply(text("Begun", hang())))
    async with make_bench(limits=limits) as bench:
        session = bench.session()
        await session.driver().send(session.prompt("Go"))
        await session.text_delta("Begun")
        os.kill(bench.server_pid(), signal.SIGSTOP)
        exit = await session.exit()
        assert not exit.expected
        assert exit.code == error_pb2.ERROR_CODE_AGENT_PROTOCOL


async def test_large_output_arrives_as_the_agent_cuts_it(
    bench: OpenCodeBench, model: ChatCompletionsServer
) -> None:
    line = "for i in $(seq 1 4000); do echo line $i äöü; done"
    model.script(
        reply(tool_call("bash", {"command": line, "description": "x"}, id="call_1")),
        reply(text("Much."), when=result_of("call_1")),
    )
    session = bench.session(permission_mode=agent_pb2.PERMISSION_MODE_BYPASS)
    await session.driver().send(session.prompt("Go"))
    assert (await session.turn_ended()).status == COMPLETED
    output = session.tool_results["call_1"].output
    assert len(output) > 20_000
    assert "truncated" in output
    assert "äöü" in output
