"""Codex through the whole daemon: its streams hold the laws, whatever happens to it."""

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from grpc import StatusCode, aio

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
)
from tests.support import e2e, mcp_echo
from tests.support.codex_home import codex_environment
from tests.support.e2e import (
    ACCEPT_FOR_SESSION,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    REJECT,
    Bench,
)
from tests.support.hermetic import base_environment
from tests.support.laboratory import agent_executable
from tests.support.responses_server import (
    Gate,
    ResponsesServer,
    call,
    cut,
    error,
    hang,
    output_of,
    patch,
    reasoning,
    reply,
    says,
    text,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

BYPASS = agent_pb2.PERMISSION_MODE_BYPASS
STEER = service_pb2.WHEN_BUSY_STEER
SECONDS = 10.0


class SharedBench(Bench):
    """A bench of sessions that share a server, which ends soon after the last of them."""

    async def finish(self) -> None:
        """End all sessions, hold their streams to the laws; no process lives on."""
        for session in self.sessions:
            await session.end()
        await self.lab.no_processes(SECONDS)
        await super().finish()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def codex_lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[e2e.Lab]:
    """A daemon with the pinned Codex, whose server ends with its last session."""
    directory = tmp_path_factory.mktemp("lab")
    executable = agent_executable("codex")
    config = directory / "agentstreamd.toml"
    config.write_text(
        f'[agents.codex]\nexecutable = "{executable}"\n[agents.codex.options]\nlinger_seconds = 0\n'
    )
    environment = base_environment(directory / "home")
    async with e2e.lab(directory, environment, f"--config={config}") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def model() -> AsyncIterator[ResponsesServer]:
    """A scripted model. At the end the script must be used up and nothing else have been asked."""
    async with ResponsesServer() as server:
        yield server
        server.check()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(
    codex_lab: e2e.Lab, model: ResponsesServer, workspace: Path, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A test's place in the lab."""
    env = codex_environment(tmp_path / "home", model.url)
    del env["PATH"]
    made = SharedBench(codex_lab, "codex", workspace, env)
    yield made
    await made.finish()


def shell(command: str, *, id: str = "call_1", **more: Any) -> Any:
    return call("exec_command", {"cmd": command, **more}, id=id)


async def test_a_turn_with_reasoning_text_and_usage(bench: Bench, model: ResponsesServer) -> None:
    model.script(reply(reasoning("I greet."), text("Hel", "lo, ", "Wörld 🐸")))
    session = await bench.session()
    ended = await session.turn("Grüße!")
    assert ended.status == COMPLETED
    assert ended.usage.input_tokens == 100
    assert session.deltas == ["Hel", "lo, ", "Wörld 🐸"]
    assert session.texts == ["Hello, Wörld 🐸"]
    users = [item for item in session.items if item.role == item_pb2.ITEM_ROLE_USER]
    assert [item.content[0].text.text for item in users] == ["Grüße!"]
    assert (await session.get()).native_session_id


async def test_permissions_are_resolved_once_by_the_client(
    bench: Bench, model: ResponsesServer
) -> None:
    model.script(
        reply(shell("touch a.txt", id="call_a")),
        reply(shell("touch a.txt", id="call_b"), when=output_of("call_a")),
        reply(shell("touch c.txt", id="call_c"), when=output_of("call_b")),
        reply(text("Done."), when=output_of("call_c")),
    )
    session = await bench.session()
    turn = await session.send("Touch")
    resolved = await session.decide(await session.permission(), ACCEPT_FOR_SESSION)
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION
    resolved = await session.decide(await session.permission(), REJECT)
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_REJECTED
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert len(session.of("permission_resolved")) == 2
    assert os.listdir(bench.workspace) == ["a.txt"]
    assert session.result("call_c").status == item_pb2.ITEM_STATUS_FAILED


async def test_a_rejection_that_ends_the_turn(bench: Bench, model: ResponsesServer) -> None:
    model.script(reply(patch("*** Add File: x.txt\n+x", id="call_p")), reply(hang(), repeat=True))
    session = await bench.session()
    turn = await session.send("Patch")
    asked = await session.permission()
    assert [Path(file.path).name for file in asked.files] == ["x.txt"]
    await session.decide(asked, REJECT, interrupt=True)
    assert (await session.turn_ended(turn.turn_id)).status == INTERRUPTED
    assert os.listdir(bench.workspace) == []


async def test_a_question_of_several(bench: Bench, model: ResponsesServer) -> None:
    options = [{"label": label, "description": label.lower()} for label in ("Red", "Blue")]
    questions = [
        {"id": name, "header": name, "question": f"Which {name}?", "options": options}
        for name in ("color", "shade")
    ]
    model.script(
        reply(call("request_user_input", {"questions": questions}, id="call_q")),
        reply(text("So be it."), when=output_of("call_q")),
    )
    session = await bench.session()
    turn = await session.send("Paint")
    asked = await session.question()
    answer = interaction_pb2.QuestionAnswer()
    answer.answered.answers.add(question_id="color", labels=["Blue"])
    answer.answered.answers.add(question_id="shade", text="navy")
    response = await session.respond(asked.request_id, question=answer)
    assert response.question.outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert '"Blue"' in model.requests[1].outputs["call_q"]


async def test_an_interrupt_closes_what_is_open(bench: Bench, model: ResponsesServer) -> None:
    fifo = bench.workspace / "started"
    os.mkfifo(fifo)
    model.script(reply(shell("echo > started; exec sleep 600")), reply(text("Yes?")))
    session = await bench.session(permission_mode=BYPASS)
    await session.send("Sleep")
    await asyncio.to_thread(fifo.read_text)
    await session.find("item_completed", lambda e: e.item_completed.item.item_id == "call_1")
    response = await session.interrupt()
    assert response.status == INTERRUPTED
    result = session.result("call_1")
    assert result.status == item_pb2.ITEM_STATUS_FAILED
    late = await session.find(
        "item_completed",
        lambda e: e.item_completed.item.content[0].status.label == "late_output",
    )
    assert not late.turn_id
    assert (await session.turn("Still there?")).status == COMPLETED


async def test_steering(bench: Bench, model: ResponsesServer) -> None:
    model.script(reply(text("word ", hang())), reply(text("Steered.")))
    session = await bench.session()
    turn = await session.send("Go")
    await session.delta("word ")
    steered = await session.send("also that", when_busy=STEER)
    assert steered.disposition == service_pb2.MESSAGE_DISPOSITION_STEERED
    assert steered.turn_id == turn.turn_id
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    users = [item for item in session.items if item.role == item_pb2.ITEM_ROLE_USER]
    assert [item.content[0].text.text for item in users] == ["Go", "also that"]
    assert session.texts == ["Steered."]


async def test_errors_and_a_cut_answer(bench: Bench, model: ResponsesServer) -> None:
    gate = Gate()
    model.script(error(400, "bad thing"), reply(text("half of ", gate, cut())), reply(text("All.")))
    session = await bench.session()
    ended = await session.turn("Go")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert len(session.of("error")) == 1
    turn = await session.send("Again")
    await session.delta("half of ")
    gate.open()
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert session.texts == ["All."]
    [half] = [item for item in session.items if item.superseded_by]
    assert half.content[0].text.text == "half of "


async def test_two_sessions_survive_the_death_of_their_server(
    bench: Bench, model: ResponsesServer
) -> None:
    names = ("left", "right")
    model.script(*(reply(text(f"{name} ", hang()), when=says(name)) for name in names))
    sessions = {name: await bench.session() for name in names}
    for name, session in sessions.items():
        await session.send(name)
        await session.delta(f"{name} ")
    [server] = [p for p in bench.lab.processes() if is_app_server(p.pid)]
    os.kill(server.pid, signal.SIGKILL)
    for session in sessions.values():
        ended = await session.turn_ended()
        assert ended.status == FAILED
        assert ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
        assert "SIGKILL" in ended.error.message
        assert len(session.statuses("agent_exited")) == 1
    model.script(*(reply(text(f"Back {name}."), when=says(f"again {name}")) for name in names))
    for name, session in sessions.items():
        assert (await session.turn(f"again {name}")).status == COMPLETED
        assert session.texts == [f"Back {name}."]


async def test_a_daemon_that_is_killed_resumes_the_thread(
    bench: Bench, model: ResponsesServer
) -> None:
    model.script(reply(text("Noted.")), reply(text("on and ", hang())), reply(text("Blue.")))
    session = await bench.session()
    await session.turn("My color is blue")
    await session.send("Talk on")
    await session.delta("on and ")
    await bench.lab.kill()
    await bench.lab.no_processes(SECONDS)
    await bench.lab.start()
    await session.follow()
    ended = await session.find(
        "turn_ended", lambda e: e.turn_ended.status == event_pb2.TURN_STATUS_FAILED
    )
    assert ended.turn_ended.error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED
    assert (await session.turn("Which was it?")).status == COMPLETED
    assert session.texts == ["Noted.", "Blue."]
    assert "My color is blue" in str(model.requests[2].input)


async def test_what_codex_cannot_do_is_refused(bench: Bench) -> None:
    session = await bench.session()
    file = service_pb2.InputFile(name="a.txt", media_type="text/plain", data=b"x")
    with pytest.raises(aio.AioRpcError) as raised:
        await session.send(service_pb2.InputPart(file=file))
    assert raised.value.code() == StatusCode.FAILED_PRECONDITION


async def test_a_message_brings_an_image_by_its_path_and_a_model_of_its_own(
    bench: Bench, model: ResponsesServer
) -> None:
    png = bench.workspace / "dot.png"
    png.write_bytes(base64.b64decode(mcp_echo.PNG))
    model.script(reply(text("A dot.")), reply(text("Still.")))
    session = await bench.session(model="gpt-5.4", effort="low")
    image = service_pb2.InputPart(image=service_pb2.InputImage(path=str(png)))
    await session.turn("What is it?", image, model="gpt-5.4-mini", effort="high")
    await session.turn("And now?")
    asked = [(one.body["model"], one.body["reasoning"]["effort"]) for one in model.requests]
    assert asked == [("gpt-5.4-mini", "high"), ("gpt-5.4", "low")]
    assert f"data:image/png;base64,{mcp_echo.PNG}" in str(model.requests[0].input)
    [_, shown] = session.items[0].content
    assert shown.image.data == base64.b64decode(mcp_echo.PNG)


async def test_a_command_of_its_own(bench: Bench, model: ResponsesServer) -> None:
    model.script(reply(text("One.")), reply(text("A summary.")), reply(text("After.")))
    session = await bench.session()
    await session.turn("Count")
    assert (await session.turn("/compact", command=True)).status == COMPLETED
    assert session.statuses("compacted")
    assert (await session.turn("Go on")).status == COMPLETED
    assert session.texts[-1] == "After."


async def test_large_output_is_kept_whole(bench: Bench, model: ResponsesServer) -> None:
    size = 1_000_000
    model.script(
        reply(shell(f"sleep 0.5; head -c {size} /dev/zero | tr '\\0' ü | head -c {size}")),
        reply(text("y" * 1_500_000), when=output_of("call_1")),
    )
    session = await bench.session(permission_mode=BYPASS)
    await session.turn("Much")
    [message] = [
        item
        for item in session.items
        if item.kind == item_pb2.ITEM_KIND_MESSAGE and item.role == item_pb2.ITEM_ROLE_ASSISTANT
    ]
    assert await session.blob(message.content[0].external) == b"y" * 1_500_000


def is_app_server(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"app-server" in file.read().split(b"\0")
