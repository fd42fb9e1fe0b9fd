"""Claude Code through the daemon: tools, and what a person says about them."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, event_pb2, interaction_pb2, item_pb2, session_pb2
from tests.support import mcp_echo
from tests.support.anthropic_server import (
    AnthropicReply,
    AnthropicServer,
    Gate,
    after,
    reply,
    result_of,
    text,
    tool_use,
)
from tests.support.e2e import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    COMPLETED,
    INTERRUPTED,
    REJECT,
    Bench,
)
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

ACCEPTED = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
REJECTED = interaction_pb2.REQUEST_OUTCOME_REJECTED
CLIENT = interaction_pb2.RESOLVED_BY_CLIENT


def bash(command: str, id: str) -> tuple[AnthropicReply, AnthropicReply]:
    """The model runs a command, and says `done` when it has its result."""
    return (
        reply(text("Let me."), tool_use("Bash", {"command": command}, id=id)),
        reply(text("Done."), when=result_of(id)),
    )


@EVERY_CLAUDE
async def test_an_allowed_tool_runs_unasked(bench: Bench, model: AnthropicServer) -> None:
    model.script(*bash("echo out; echo err >&2; exit 3", "toolu_a"))
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    assert (await session.turn("Run it")).status == COMPLETED
    assert not session.of("permission_requested")
    call, result = session.call("toolu_a"), session.result("toolu_a")
    [message] = [i for i in session.items if i.item_id == call.parent_id]
    assert message.role == item_pb2.ITEM_ROLE_ASSISTANT
    assert message.content[0].text.text == "Let me."
    assert json.loads(call.content[0].tool_call.arguments_json) == {
        "command": "echo out; echo err >&2; exit 3"
    }
    assert result.parent_id == call.item_id
    output = result.content[0].tool_result
    assert (output.is_error, output.exit_code) == (True, 3)
    assert "out" in output.output
    arguments = [
        e.item_delta.text
        for e in session.of("item_delta")
        if e.item_delta.kind == event_pb2.DELTA_KIND_TOOL_ARGUMENTS
    ]
    assert json.loads("".join(arguments)) == {"command": "echo out; echo err >&2; exit 3"}


@EVERY_CLAUDE
async def test_an_asked_tool_runs_once_it_is_accepted(bench: Bench, model: AnthropicServer) -> None:
    model.script(*bash("echo hi > a.txt", "toolu_w"))
    session = await bench.session()
    await session.send("Write a file")
    asked = await session.permission()
    assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert (asked.tool_name, asked.command) == ("Bash", "echo hi > a.txt")
    assert asked.call_id == "toolu_w"
    assert asked.takes_message
    assert asked.takes_updated_arguments
    assert asked.native_request_id
    assert {ACCEPT, REJECT} <= set(asked.allowed_decisions)
    waiting = await session.get()
    assert waiting.state == session_pb2.SESSION_STATE_WAITING
    assert [p.permission for p in waiting.pending_requests] == [asked]
    assert not (bench.workspace / "a.txt").exists()

    resolved = await session.decide(asked)
    assert (resolved.outcome, resolved.resolved_by) == (ACCEPTED, CLIENT)
    assert (await session.turn_ended()).status == COMPLETED
    assert (bench.workspace / "a.txt").read_text() == "hi\n"
    event = await session.find("permission_resolved")
    assert event.permission_resolved == resolved
    assert (event.source, event.synthetic) == (event_pb2.EVENT_SOURCE_DAEMON, False)
    assert not session.result("toolu_w").content[0].tool_result.is_error
    assert not (await session.get()).pending_requests
    again = await session.decide(asked)  # the same answer
    assert again == resolved


@EVERY_CLAUDE
async def test_a_rejection_reaches_the_model_with_its_message(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(*bash("rm -r important", "toolu_rm"))
    session = await bench.session()
    await session.send("Clean up")
    resolved = await session.decide(await session.permission(), REJECT, message="Never that.")
    assert (resolved.outcome, resolved.answer.message) == (REJECTED, "Never that.")
    assert (await session.turn_ended()).status == COMPLETED
    assert "Never that." in model.requests[1].tool_results["toolu_rm"]["content"]
    result = session.result("toolu_rm").content[0].tool_result
    assert result.is_error
    assert "Never that." in result.output


@EVERY_CLAUDE
async def test_a_rejection_can_end_the_turn(bench: Bench, model: AnthropicServer) -> None:
    model.script(reply(tool_use("Bash", {"command": "rm -r x"}, id="toolu_rm")), reply(text("Ok.")))
    session = await bench.session()
    await session.send("Clean up")
    await session.decide(await session.permission(), REJECT, interrupt=True)
    assert (await session.turn_ended()).status == INTERRUPTED
    assert (await session.turn("And now?")).status == COMPLETED


@EVERY_CLAUDE
async def test_what_is_accepted_for_the_session_is_not_asked_again(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        *bash("mkdir made", "toolu_1"), *bash("mkdir made", "toolu_2"), *bash("touch x", "toolu_3")
    )
    session = await bench.session()
    await session.send("Make it")
    asked = await session.permission()
    assert ACCEPT_FOR_SESSION in asked.allowed_decisions
    resolved = await session.decide(asked, ACCEPT_FOR_SESSION)
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION
    await session.turn_ended()
    (bench.workspace / "made").rmdir()
    assert (await session.turn("Once more")).status == COMPLETED
    assert (bench.workspace / "made").is_dir()
    assert len(session.of("permission_requested")) == 1
    await session.send("Something else")
    await session.decide(await session.permission(), REJECT)
    await session.turn_ended(session.of("turn_started")[-1].turn_id)
    assert not (bench.workspace / "x").exists()


@EVERY_CLAUDE
async def test_a_tool_runs_with_the_arguments_that_were_edited(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(*bash("touch a.txt", "toolu_w"))
    session = await bench.session()
    await session.send("Write a file")
    edited = json.dumps({"command": "touch b.txt"})
    resolved = await session.decide(await session.permission(), updated_arguments_json=edited)
    assert resolved.answer.updated_arguments_json == edited
    assert (await session.turn_ended()).status == COMPLETED
    assert os.listdir(bench.workspace) == ["b.txt"]


@EVERY_CLAUDE
async def test_two_requests_at_once_are_answered_in_reverse_order(
    bench: Bench, model: AnthropicServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / "outside" / name for name in ("a", "b")}
    for name, path in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {name}\n")
    model.script(
        reply(
            *(
                tool_use("Read", {"file_path": str(path)}, id=f"toolu_{name}")
                for name, path in files.items()
            )
        ),
        reply(text("Read."), when=result_of("toolu_a")),
    )
    session = await bench.session()
    await session.send("Read both")
    first, second = await session.permission(), await session.permission()
    assert {first.call_id, second.call_id} == {"toolu_a", "toolu_b"}
    waiting = (await session.get()).pending_requests
    assert [p.permission.request_id for p in waiting] == [first.request_id, second.request_id]
    await session.decide(second)
    assert [p.permission for p in (await session.get()).pending_requests] == [first]
    await session.decide(first, REJECT, message="Not this.")
    assert (await session.turn_ended()).status == COMPLETED
    accepted = session.result(second.call_id)
    assert f"content of {second.call_id[-1]}" in accepted.content[0].tool_result.output
    [file] = [p.file_ref for p in accepted.content if p.HasField("file_ref")]
    assert file.action == item_pb2.FILE_ACTION_READ
    assert session.result(first.call_id).content[0].tool_result.is_error


@EVERY_CLAUDE
async def test_an_edit_shows_its_diff_before_and_after(
    bench: Bench, model: AnthropicServer
) -> None:
    path = bench.workspace / "poem.txt"
    path.write_text("Roses are red\nviolets are green\nand that is that\n")
    edit = {"file_path": str(path), "old_string": "green", "new_string": "blue"}
    model.script(
        reply(tool_use("Read", {"file_path": str(path)}, id="toolu_r")),
        reply(tool_use("Edit", edit, id="toolu_e"), when=result_of("toolu_r")),
        reply(text("Blue."), when=result_of("toolu_e")),
    )
    session = await bench.session()
    await session.send("Mend it")
    asked = await session.permission()
    assert asked.kind == interaction_pb2.PERMISSION_KIND_FILE_CHANGE
    [file] = asked.files
    assert (file.path, file.action) == (str(path), item_pb2.FILE_ACTION_PATCH)
    assert {"-green", "+blue"} <= set(file.diff.splitlines())
    await session.decide(asked)
    assert (await session.turn_ended()).status == COMPLETED
    assert "violets are blue" in path.read_text()
    [done] = [p.file_ref for p in session.result("toolu_e").content if p.HasField("file_ref")]
    assert (done.path, done.action) == (str(path), item_pb2.FILE_ACTION_PATCH)
    assert {"-violets are green", "+violets are blue", " Roses are red"} <= set(
        done.diff.splitlines()
    )


@EVERY_CLAUDE
@pytest.mark.parametrize("approved", [True, False])
async def test_a_plan_is_put_before_a_person(
    bench: Bench, model: AnthropicServer, approved: bool
) -> None:
    plan = "# Plan\n\n1. Look\n2. Leap\n"
    poem = bench.workspace / "poem.txt"
    poem.write_text("Look before you leap\n")
    gate = Gate("before the plan")
    model.script(
        reply(text("Let me see. ", gate), tool_use("Read", {"file_path": str(poem)}, id="toolu_r"))
    )
    session = await bench.session(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)
    await session.send("Plan it")
    await gate.reached()
    # Claude plans in a file of its own, the only one it may write then.
    said = json.dumps(model.requests[0].body["messages"])
    write = {"file_path": re.findall(r"[^ ]*/plans/[^ ]*\.md", said)[0], "content": plan}
    model.script(
        reply(tool_use("Write", write, id="toolu_w"), when=result_of("toolu_r")),
        reply(tool_use("ExitPlanMode", {}, id="toolu_plan"), when=result_of("toolu_w")),
        reply(text("So be it."), when=result_of("toolu_plan")),
    )
    gate.open()
    asked = await session.permission()
    assert asked.kind == interaction_pb2.PERMISSION_KIND_PLAN
    assert asked.plan == plan
    if approved:
        await session.decide(asked)
    else:
        await session.decide(asked, REJECT, message="Do not leap.")
    assert (await session.turn_ended()).status == COMPLETED
    told = model.requests[-1].tool_results["toolu_plan"]
    left = [
        e.session_updated.permission_mode
        for e in session.of("session_updated")
        if e.session_updated.permission_mode
    ]
    assert session.statuses("plan")
    if approved:
        assert left == [agent_pb2.PERMISSION_MODE_DEFAULT]
        assert (await session.get()).config.permission_mode == agent_pb2.PERMISSION_MODE_DEFAULT
    else:
        assert "Do not leap." in told["content"]
        assert left == []


@EVERY_CLAUDE
async def test_mcp_tools_are_asked_for_and_give_text_errors_and_images(
    bench: Bench, model: AnthropicServer
) -> None:
    stdio = session_pb2.McpStdio(command=sys.executable, args=[mcp_echo.__file__])
    calls: dict[str, dict[str, object]] = {"echo": {"text": "Grüße"}, "fail": {}, "image": {}}
    model.script(
        reply(*(tool_use(f"mcp__lab__{n}", i, id=f"toolu_{n}") for n, i in calls.items())),
        reply(text("Called."), when=after("mcp__lab__echo")),
    )
    session = await bench.session(
        mcp_servers=[session_pb2.McpServer(name="lab", stdio=stdio)],
        agent_options={"allowed_tools": "mcp__lab__fail,mcp__lab__image"},
    )
    await session.send("Use the lab")
    asked = await session.permission()
    assert asked.kind == interaction_pb2.PERMISSION_KIND_MCP_TOOL
    assert asked.tool_name == "mcp__lab__echo"
    assert json.loads(asked.arguments_json) == {"text": "Grüße"}
    await session.decide(asked)
    assert (await session.turn_ended()).status == COMPLETED
    echo, fail, image = (session.result(f"toolu_{name}") for name in calls)
    assert echo.content[0].tool_result.output == "Grüße"
    assert fail.content[0].tool_result.is_error
    assert "this tool always fails" in fail.content[0].tool_result.output
    [picture] = [part.image for part in image.content if part.HasField("image")]
    assert picture.media_type == "image/png"
    assert picture.data.startswith(b"\x89PNG")
    servers = [
        server
        for e in session.of("session_updated")
        for server in e.session_updated.mcp_servers.servers
    ]
    assert servers[-1].name == "lab"
    assert servers[-1].status == "connected"


@EVERY_CLAUDE
async def test_the_permission_mode_and_the_model_change_within_a_session(
    bench: Bench, model: AnthropicServer
) -> None:
    path = bench.workspace / "a"
    model.script(
        reply(text("One.")),
        reply(tool_use("Write", {"file_path": str(path), "content": "x"}, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    session = await bench.session(model="sonnet")
    await session.turn("Count")
    mode = agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
    updated = await session.update(permission_mode=mode, model="haiku")
    assert (updated.config.permission_mode, updated.config.model) == (mode, "haiku")
    assert (await session.turn("Write")).status == COMPLETED
    assert path.read_text() == "x"
    assert not session.of("permission_requested")
    assert "haiku" in model.requests[-1].body["model"]
    changes = [e.session_updated for e in session.of("session_updated")]
    assert [c.permission_mode for c in changes if c.permission_mode] == [mode]
    assert any("haiku" in c.model for c in changes)
