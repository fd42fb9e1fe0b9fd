"""OpenCode through the daemon: turns, requests and failures as clients see them, every law held."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
    session_pb2,
)
from tests.support import e2e, mcp_echo
from tests.support.chat_completions_server import (
    ChatCompletionsServer,
    ChatReply,
    Gate,
    error,
    hang,
    reasoning,
    reply,
    result_of,
    says,
    text,
    tool_call,
)
from tests.support.e2e import (
    ACCEPT_FOR_SESSION,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    REJECT,
    Bench,
    Session,
)
from tests.support.hermetic import PATH, base_environment, make_workspace
from tests.support.laboratory import agent_executable
from tests.support.opencode_lab import opencode_environment

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENT = interaction_pb2.RESOLVED_BY_CLIENT
POLICY = interaction_pb2.RESOLVED_BY_POLICY
DAEMON = interaction_pb2.RESOLVED_BY_DAEMON


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opencode_model() -> AsyncIterator[ChatCompletionsServer]:
    """One model for all tests: a server of OpenCode knows one, and they share the server."""
    async with ChatCompletionsServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opencode_lab(
    tmp_path_factory: pytest.TempPathFactory, opencode_model: ChatCompletionsServer
) -> AsyncIterator[tuple[e2e.Lab, dict[str, str]]]:
    directory = tmp_path_factory.mktemp("lab")
    executable = agent_executable("opencode")
    flag = f"--agent-executables=opencode={executable}"
    env = opencode_environment(directory / "opencode", opencode_model.url)
    async with e2e.lab(directory, base_environment(directory / "home"), flag) as lab:
        yield lab, env


@pytest_asyncio.fixture(loop_scope="module")
async def model(opencode_model: ChatCompletionsServer) -> AsyncIterator[ChatCompletionsServer]:
    first = len(opencode_model.requests)
    del opencode_model.requests[:first]
    yield opencode_model
    opencode_model.check()
    opencode_model.forget_script()


class SharingBench(Bench):
    """A bench whose agent stays for the next test, as its server is shared."""

    async def finish(self) -> None:
        """End all sessions and hold their streams to the laws."""
        for session in self.sessions:
            await session.end()
        for session in self.sessions:
            await session.verify()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(
    opencode_lab: tuple[e2e.Lab, dict[str, str]], model: ChatCompletionsServer, tmp_path: Path
) -> AsyncIterator[Bench]:
    lab, env = opencode_lab
    made = SharingBench(lab, "opencode", make_workspace(tmp_path / "workspace", git=True), env)
    yield made
    await made.finish()


def bash(command: str, call_id: str) -> tuple[ChatReply, ChatReply]:
    """The model runs a command, and says `Done.` when it has its result."""
    return (
        reply(tool_call("bash", {"command": command, "description": "x"}, id=call_id)),
        reply(text("Done."), when=result_of(call_id)),
    )


def labels(session: Session) -> set[str]:
    """The labels of the status items."""
    return {
        part.status.label for item in session.items for part in item.content if part.status.label
    }


def server_with(lab: e2e.Lab, variable: bytes) -> int:
    """The process id of the server that has this in its environment."""
    return min(
        identity.pid
        for identity in lab.processes()
        if variable in Path(f"/proc/{identity.pid}/environ").read_bytes()
    )


async def test_text_and_reasoning_stream(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(reply(reasoning("Hm."), text("Hel", "lo\u2028", "Wörld")))
    session = await bench.session()
    ended = await session.turn("Greet")
    assert ended.status == COMPLETED
    assert session.texts == ["Hello\u2028Wörld"]
    assert not session.of("agent_unparsed")
    assert (await session.get()).native_session_id.startswith("ses_")


async def test_a_title_of_the_agent_becomes_the_sessions(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Hi.")))
    session = await bench.session()
    await session.turn("Hello")
    updated = await session.find("session_updated", lambda e: e.session_updated.title != "")
    assert updated.session_updated.title == "A title"


async def test_turns_of_a_session_and_messages_that_wait(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(reply(text("One", gate, ".")), reply(text("Two.")), reply(text("Three.")))
    session = await bench.session()
    first = await session.send("first")
    second = await session.send("second", when_busy=e2e.QUEUE)
    third = await session.send("third", when_busy=e2e.QUEUE)
    gate.open()
    for turn in (first, second, third):
        assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert session.texts == ["One.", "Two.", "Three."]


async def test_a_message_steers_the_running_turn(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    gate = Gate()
    model.script(reply(text("One", gate, ".")), reply(text("Two too."), when=says("two")))
    session = await bench.session()
    turn = await session.send("Say one")
    await session.find("item_delta")
    steered = await session.send("And two", when_busy=service_pb2.WHEN_BUSY_STEER)
    assert steered.turn_id == turn.turn_id
    gate.open()
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert session.texts == ["One.", "Two too."]
    assert len(session.of("turn_ended")) == 1


async def test_commands_begin_turns(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(reply(text("Written.")), reply(text("In short.")))
    session = await bench.session()
    assert (await session.turn("/init", command=True)).status == COMPLETED
    assert (await session.turn("/compact", command=True)).status == COMPLETED
    began = [e.turn_started.trigger for e in session.of("turn_started")]
    assert began == [event_pb2.TURN_TRIGGER_COMMAND] * 2
    said = [i.content[0].text.text for i in session.items if i.role == item_pb2.ITEM_ROLE_USER]
    assert said == ["/init", "/compact"]
    failed = await session.turn("/nothing", command=True)
    assert (failed.status, failed.error.code) == (FAILED, error_pb2.ERROR_CODE_INVALID_REQUEST)


async def test_a_permission_says_who_gave_it(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(*bash("echo hi", "call_1"))
    session = await bench.session()
    turn = await session.send("Run")
    resolved = await session.decide(await session.permission())
    assert resolved.resolved_by == CLIENT
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    call, result = session.call("call_1"), session.result("call_1")
    assert result.parent_id == call.item_id
    assert result.content[0].tool_result.exit_code == 0
    assert len(session.of("permission_resolved")) == 1


async def test_two_permissions_at_once_and_one_for_the_session(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(
            tool_call("bash", {"command": "echo a", "description": "x"}, id="call_a"),
            tool_call("bash", {"command": "echo b", "description": "x"}, id="call_b", index=1),
        ),
        reply(text("Done."), when=result_of("call_b")),
        *bash("echo c", "call_c"),
    )
    session = await bench.session()
    turn = await session.send("Run both")
    one, _ = await session.permission(), await session.permission()
    await session.decide(one, ACCEPT_FOR_SESSION)
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert (await session.turn("And again")).status == COMPLETED
    by = [e.permission_resolved.resolved_by for e in session.of("permission_resolved")]
    assert by[0] == CLIENT
    assert set(by[1:]) == {POLICY}


async def test_a_rejection_is_told_to_the_model(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(*bash("rm -r /nothing", "call_1"))
    session = await bench.session()
    turn = await session.send("Clean up")
    await session.decide(await session.permission(), REJECT, message="Keep it all")
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert "Keep it all" in model.requests[1].tool_results["call_1"]


async def test_an_unanswered_permission_is_cancelled_by_an_interrupt(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(reply(tool_call("bash", {"command": "echo", "description": "x"}, id="call_1")))
    session = await bench.session()
    await session.send("Run")
    await session.permission()
    assert (await session.interrupt()).status == INTERRUPTED
    [resolved] = [e.permission_resolved for e in session.of("permission_resolved")]
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    assert resolved.resolved_by == DAEMON


async def test_files_are_written_edited_and_shown_with_diffs(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    path = str(bench.workspace / "a.txt")
    change = {"filePath": path, "oldString": "two", "newString": "zwei"}
    model.script(
        reply(tool_call("write", {"filePath": path, "content": "one\ntwo\n"}, id="call_w")),
        reply(tool_call("edit", change, id="call_e"), when=result_of("call_w")),
        reply(text("Done."), when=result_of("call_e")),
    )
    session = await bench.session()
    turn = await session.send("Write")
    for _ in range(2):
        asked = await session.permission()
        assert asked.kind == interaction_pb2.PERMISSION_KIND_FILE_CHANGE
        assert "+" in asked.files[0].diff
        await session.decide(asked)
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert (bench.workspace / "a.txt").read_text() == "one\nzwei\n"
    written = session.result("call_w").content[1].file_ref
    assert (written.path, written.action) == (path, item_pb2.FILE_ACTION_WRITE)
    assert "+one" in written.diff
    edited = session.result("call_e").content[1].file_ref
    assert edited.action == item_pb2.FILE_ACTION_PATCH
    assert "+zwei" in edited.diff
    assert "files_changed" in labels(session)


@pytest.mark.skipif(
    not (shutil.which("rg", path=PATH) or os.environ.get("CI")), reason="needs ripgrep"
)
async def test_files_are_found_by_name_and_by_content(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(
            tool_call("glob", {"pattern": "**/*.txt"}, id="call_g"),
            tool_call("grep", {"pattern": "needle"}, id="call_r", index=1),
        ),
        reply(text("Found."), when=result_of("call_r")),
    )
    session = await bench.session()
    make_workspace(bench.workspace, {"hay/stack.txt": "one\na needle here\n", "b.md": "needle"})
    assert (await session.turn("Find it")).status == COMPLETED
    for call_id in ("call_g", "call_r"):
        result = session.result(call_id)
        assert result.status == item_pb2.ITEM_STATUS_COMPLETED
        assert str(bench.workspace / "hay" / "stack.txt") in result.content[0].tool_result.output
    assert "a needle here" in session.result("call_r").content[0].tool_result.output
    assert "a needle here" in model.requests[1].tool_results["call_r"]


async def test_a_patch_names_every_file(bench: Bench, model: ChatCompletionsServer) -> None:
    patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch"
    model.script(
        reply(tool_call("apply_patch", {"patchText": patch}, id="call_p")),
        reply(text("Done."), when=result_of("call_p")),
    )
    session = await bench.session(
        model="fake/gpt-5-fake", permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
    )
    assert (await session.turn("Patch")).status == COMPLETED
    assert not session.of("permission_requested")
    [named] = [
        p.file_ref for p in session.result("call_p").content if p.WhichOneof("part") == "file_ref"
    ]
    assert named.action == item_pb2.FILE_ACTION_WRITE
    assert "+hello" in named.diff


async def test_a_plan_changes_nothing(bench: Bench, model: ChatCompletionsServer) -> None:
    path = str(bench.workspace / "a.txt")
    model.script(
        reply(tool_call("write", {"filePath": path, "content": "x"}, id="call_w")),
        reply(text("Not allowed."), when=result_of("call_w")),
    )
    session = await bench.session(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)
    assert (await session.turn("Write")).status == COMPLETED
    assert session.result("call_w").content[0].tool_result.is_error
    assert not (bench.workspace / "a.txt").exists()


async def test_a_todo_list_is_a_snapshot(bench: Bench, model: ChatCompletionsServer) -> None:
    todos = [{"content": "Do it", "status": "completed", "priority": "high"}]
    model.script(
        reply(tool_call("todowrite", {"todos": todos}, id="call_t")),
        reply(text("Done."), when=result_of("call_t")),
    )
    session = await bench.session()
    assert (await session.turn("Plan")).status == COMPLETED
    [todo] = [i for i in session.items if i.content and i.content[0].status.key == "todo"]
    assert todo.content[0].status.detail == "1 of 1 done"
    assert json.loads(todo.content[1].json.json)[0]["content"] == "Do it"


async def test_tools_of_an_mcp_server_are_asked_for_and_give_images(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(
        reply(tool_call("echo_echo", {"text": "hällo"}, id="call_1")),
        reply(tool_call("echo_image", {}, id="call_2"), when=result_of("call_1")),
        reply(text("Done."), when=result_of("call_2")),
    )
    server = session_pb2.McpServer(
        name="echo",
        stdio=session_pb2.McpStdio(command=sys.executable, args=[str(mcp_echo.__file__)]),
    )
    session = await bench.session(mcp_servers=[server])
    turn = await session.send("Echo")
    for number in range(2):
        asked = await session.permission()
        assert asked.kind == interaction_pb2.PERMISSION_KIND_MCP_TOOL
        if number == 0:
            assert json.loads(asked.arguments_json) == {"text": "hällo"}
        await session.decide(asked)
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert session.result("call_1").content[0].tool_result.output == "hällo"
    images = [p.image for p in session.result("call_2").content if p.WhichOneof("part") == "image"]
    assert [image.media_type for image in images] == ["image/png"]


async def test_a_sub_agent_stands_under_its_call(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    task = {"description": "Count", "prompt": "SUB count", "subagent_type": "general"}
    model.script(
        reply(tool_call("task", task, id="call_t"), when=says("delegate")),
        reply(
            tool_call("bash", {"command": "ls", "description": "x"}, id="call_c"), when=says("SUB")
        ),
        reply(text("None."), when=result_of("call_c")),
        reply(text("It says none."), when=result_of("call_t")),
    )
    session = await bench.session()
    turn = await session.send("Please delegate")
    asked = await session.permission()
    await session.decide(asked)
    assert (await session.turn_ended(turn.turn_id)).status == COMPLETED
    assert asked.parent_id == session.call("call_t").item_id
    assert session.texts == ["None.", "It says none."]


async def test_tools_that_do_not_exist_fail(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(
        reply(tool_call("frobnicate", {"a": 1}, id="call_1")),
        reply(text("Oh."), when=result_of("call_1")),
    )
    session = await bench.session()
    assert (await session.turn("Go")).status == COMPLETED
    assert session.call("call_1").content[0].tool_call.name == "frobnicate"
    assert session.result("call_1").content[0].tool_result.is_error


async def test_a_failure_of_the_provider_fails_the_turn_once(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(error(401, "who are you"), reply(text("Hi.")))
    session = await bench.session()
    ended = await session.turn("Hello")
    assert (ended.status, ended.error.code) == (FAILED, error_pb2.ERROR_CODE_AUTHENTICATION)
    assert (await session.turn("Hello?")).status == COMPLETED
    assert len(session.of("error")) == 1
    assert len(session.of("turn_ended")) == 2


async def test_a_server_that_dies_fails_the_turn_and_is_replaced(
    bench: Bench, model: ChatCompletionsServer
) -> None:
    model.script(reply(text("Begun", hang())), reply(text("Back.")))
    session = await bench.session(env={"OF_ITS_OWN": "1"})
    turn = await session.send("Go")
    await session.find("item_delta")
    os.kill(server_with(bench.lab, b"OF_ITS_OWN=1"), signal.SIGKILL)
    ended = await session.turn_ended(turn.turn_id)
    assert (ended.status, ended.error.code) == (FAILED, error_pb2.ERROR_CODE_AGENT_EXITED)
    assert "agent_exited" in labels(session)
    assert (await session.turn("Go on")).status == COMPLETED
    assert session.texts[-1] == "Back."


async def test_sessions_at_once_do_not_mix(bench: Bench, model: ChatCompletionsServer) -> None:
    model.script(*(reply(text(f"Answer {n}."), when=says(f"number {n}!")) for n in range(4)))
    sessions = [await bench.session() for _ in range(4)]
    await asyncio.gather(*(s.turn(f"number {n}!") for n, s in enumerate(sessions)))
    assert [s.texts for s in sessions] == [[f"Answer {n}."] for n in range(4)]


async def test_a_killed_daemon_leaves_no_server_and_the_next_one_goes_on(
    model: ChatCompletionsServer, tmp_path: Path
) -> None:
    model.script(reply(text("Begun", hang())), reply(text("Back.")))
    env = opencode_environment(tmp_path / "opencode", model.url)
    flag = f"--agent-executables=opencode={agent_executable('opencode')}"
    workspace = make_workspace(tmp_path / "workspace")
    async with e2e.lab(tmp_path, base_environment(tmp_path / "home"), flag) as lab:
        bench = SharingBench(lab, "opencode", workspace, env)
        session = await bench.session()
        turn = await session.send("Remember the word blue")
        await session.find("item_delta")
        await lab.kill()
        await lab.no_processes(5)
        await lab.start()
        await session.follow()
        ended = await session.turn_ended(turn.turn_id)
        assert (ended.status, ended.error.code) == (FAILED, error_pb2.ERROR_CODE_DAEMON_RESTARTED)
        assert (await session.turn("Go on")).status == COMPLETED
        assert "Remember the word blue" in json.dumps(model.requests[1].messages)
        await bench.finish()
