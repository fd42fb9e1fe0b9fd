"""Claude Code through the daemon: either of them dies, and the session goes on."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from grpc import StatusCode

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, session_pb2
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    hang,
    reply,
    result_of,
    says,
    text,
    tool_use,
)
from tests.support.e2e import (
    ACCEPT_FOR_SESSION,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    QUEUE,
    Bench,
    Session,
    metadata,
    refused,
)
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)


def cli_of(bench: Bench) -> int:
    """The process id of the only CLI that runs."""
    [pid] = [
        process.pid
        for process in bench.lab.processes()
        if b"--print" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    ]
    return pid


async def kill_cli(bench: Bench, session: Session) -> None:
    """Kill the CLI between two turns, and see that it is told."""
    told = len(session.statuses("agent_exited"))
    os.kill(cli_of(bench), signal.SIGKILL)
    await session.find("item_completed", lambda _: len(session.statuses("agent_exited")) > told)


def history(model: AnthropicServer) -> str:
    """What the model was told last."""
    return json.dumps(model.requests[-1].body["messages"])


@EVERY_CLAUDE
async def test_a_killed_cli_fails_its_turn_and_the_next_message_resumes(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("Noted.")), reply(text("Half ", hang())), reply(text("Blue.")))
    session = await bench.session()
    await session.turn("My color is blue")
    native = (await session.get()).native_session_id
    sent = await session.send("Talk")
    await session.delta("Half ")
    os.kill(cli_of(bench), signal.SIGKILL)
    ended = await session.turn_ended(sent.turn_id)
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
    assert "SIGKILL" in ended.error.message
    [exited] = session.statuses("agent_exited")
    event = await session.find(
        "item_completed", lambda e: e.item_completed.item.item_id == exited.item_id
    )
    assert metadata(event)["signal"] == signal.SIGKILL
    assert (await session.get()).state == session_pb2.SESSION_STATE_IDLE

    assert (await session.turn("Which was it?")).status == COMPLETED
    assert session.texts == ["Noted.", "Blue."]
    assert "My color is blue" in history(model)
    assert (await session.get()).native_session_id == native


@EVERY_CLAUDE
async def test_a_cli_killed_between_turns_costs_no_message(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("One.")), reply(text("Two.")))
    session = await bench.session()
    await session.turn("Count")
    await kill_cli(bench, session)
    assert (await session.turn("Go on")).status == COMPLETED
    assert session.texts == ["One.", "Two."]
    assert len(session.statuses("agent_exited")) == 1


@EVERY_CLAUDE
async def test_what_was_accepted_for_the_session_survives_the_cli_and_the_daemon(
    bench: Bench, model: AnthropicServer
) -> None:
    for number in range(3):
        id = f"toolu_{number}"
        model.script(
            reply(tool_use("Bash", {"command": "mkdir made"}, id=id)),
            reply(text("Made."), when=result_of(id)),
        )
    session = await bench.session()
    await session.send("Make it")
    await session.decide(await session.permission(), ACCEPT_FOR_SESSION)
    await session.turn_ended()
    (bench.workspace / "made").rmdir()
    await kill_cli(bench, session)
    await session.turn("Once more")
    (bench.workspace / "made").rmdir()
    await bench.lab.kill()
    await bench.lab.start()
    await session.follow()
    assert (await session.turn("And again")).status == COMPLETED
    assert (bench.workspace / "made").is_dir()
    assert len(session.of("permission_requested")) == 1


@EVERY_CLAUDE
async def test_a_killed_daemon_loses_nothing_that_was_seen_and_leaves_nothing_running(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        reply(text("Noted.")),
        reply(text("I will."), tool_use("Bash", {"command": "touch x"}, id="toolu_x")),
        reply(text("Blue."), when=says("Which was it?")),
        reply(text("Green."), when=says("Later")),
        # Until it is ended the CLI goes on as if its request had failed.
        reply(hang(), when=result_of("toolu_x"), repeat=True),
    )
    session = await bench.session()
    await session.turn("My color is blue")
    sent = await session.send("Touch it")
    asked = await session.permission()
    queued = await session.send("Later", when_busy=QUEUE)
    await session.find("session_updated", lambda e: e.session_updated.HasField("queue"))
    seen = list(session.events)
    await bench.lab.kill()
    failed = await session.stream_ended()
    assert failed is not None
    assert failed.code() == StatusCode.UNAVAILABLE
    await bench.lab.no_processes(5)

    await bench.lab.start()
    await session.follow()
    assert session.events[: len(seen)] == seen
    ended = await session.turn_ended(sent.turn_id)
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED
    [resolved] = session.of("permission_resolved")
    assert resolved.permission_resolved.request_id == asked.request_id
    assert resolved.permission_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert session.result("toolu_x").content[0].tool_result.is_error
    # What waited goes on by itself.
    assert (await session.turn_ended(queued.turn_id)).status == COMPLETED
    assert (await session.turn("Which was it?")).status == COMPLETED
    assert "My color is blue" in history(model)
    assert not (bench.workspace / "x").exists()


@EVERY_CLAUDE
async def test_a_killed_daemon_leaves_no_tool_running(
    bench: Bench, model: AnthropicServer, tmp_path: Path
) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    command = f"echo $$ > {fifo}; sleep 1000"
    model.script(
        reply(text("Here ", Gate(), "I am."), when=says("hang")),
        reply(tool_use("Bash", {"command": command}, id="toolu_sleep"), when=says("Sleep")),
    )
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    await session.send("Sleep")
    await asyncio.to_thread(fifo.read_text)
    await bench.lab.kill()
    await bench.lab.no_processes(5)
    await bench.lab.start()
    await session.follow()
    assert (await session.turn_ended()).status == FAILED
    model.forget_script()


@EVERY_CLAUDE
async def test_sigterm_drains_in_the_middle_of_a_turn(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("This is ", hang())), reply(text("Yes?"), when=says("Still there?")))
    session = await bench.session()
    sent = await session.send("Talk")
    await session.delta("This is ")
    await bench.lab.stop()
    failed = await session.stream_ended()
    assert failed is not None
    assert refused(failed) == (StatusCode.UNAVAILABLE, "SERVER_DRAINING")

    await bench.lab.start()
    await session.follow()
    ended = await session.turn_ended(sent.turn_id)
    assert ended.status in (INTERRUPTED, FAILED)
    assert (await session.turn("Still there?")).status == COMPLETED
    assert session.texts == ["Yes?"]


@EVERY_CLAUDE
async def test_a_native_session_goes_on_in_a_new_session(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("Noted.")), reply(text("Blue.")))
    first = await bench.session()
    await first.turn("My color is blue")
    native = (await first.get()).native_session_id
    await first.end()
    second = await bench.session(resume_native_session_id=native)
    assert (await second.turn("Which was it?")).status == COMPLETED
    assert second.events[0].session_started.resumed
    assert (await second.get()).native_session_id == native
    assert "My color is blue" in history(model)
    assert second.texts == ["Blue."]


@EVERY_CLAUDE
async def test_a_native_session_that_is_not_there_fails_the_turn(bench: Bench) -> None:
    unknown = "4dd6a2a2-4fc1-4f4c-9b5c-3f6d3a0b7c11"
    session = await bench.session(resume_native_session_id=unknown)
    ended = await session.turn("Hello?")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
    assert unknown in ended.error.message


@EVERY_CLAUDE
async def test_a_cleared_conversation_stays_cleared(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(text("Noted.")), reply(text("Noted, too.")), reply(text("Round.")))
    session = await bench.session()
    await session.turn("My color is blue")
    before = (await session.get()).native_session_id
    assert (await session.turn("/clear", command=True)).status == COMPLETED
    await session.turn("My shape is round")
    after = (await session.get()).native_session_id
    assert after != before
    await kill_cli(bench, session)
    assert (await session.turn("What do you know?")).status == COMPLETED
    assert "My shape is round" in history(model)
    assert "My color is blue" not in history(model)
    changes = [
        e.session_updated.native_session_id
        for e in session.of("session_updated")
        if e.session_updated.native_session_id
    ]
    assert changes == [before, after]
    assert session.events[-1].native_session_id == after


@EVERY_CLAUDE
async def test_a_message_is_taken_once_however_often_it_is_sent(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(reply(text("Once.")), reply(text("Twice.")))
    session = await bench.session()
    first = await session.send("Count", client_message_id="m-1")
    await session.turn_ended(first.turn_id)
    assert await session.send("Count", client_message_id="m-1") == first
    await bench.lab.kill()
    await bench.lab.start()
    await session.follow()
    assert await session.send("Count", client_message_id="m-1") == first
    assert (await session.turn("Go on", client_message_id="m-2")).status == COMPLETED
    assert session.texts == ["Once.", "Twice."]
    triggers = [e.turn_started.trigger for e in session.of("turn_started")]
    assert triggers == [event_pb2.TURN_TRIGGER_CLIENT] * 2
