"""The driver of Amp on the real CLI: turns, tools, interrupts, errors, starts."""

import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, item_pb2, service_pb2, session_pb2
from agentstreamd.adapters.amp.connection import Limits
from agentstreamd.adapters.base import AgentFailed, Prompt
from agentstreamd.model import Kind
from tests.support import mcp_echo
from tests.support.amp_lab import AmpLab, amp_lab
from tests.support.anthropic_server import (
    error,
    hang,
    reply,
    result_of,
    says,
    text,
    thinking,
    tool_use,
)
from tests.support.fake_session import FakeSession
from tests.support.hermetic import make_workspace
from tests.support.laboratory import agent_executable

BYPASS = agent_pb2.PERMISSION_MODE_BYPASS
COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[AmpLab]:
    async with amp_lab(tmp_path, agent_executable("amp")) as made:
        yield made


def unparsed(session: FakeSession) -> list[event_pb2.Event]:
    return session.of(Kind.AGENT_UNPARSED)


async def test_two_turns_run_in_one_process_and_say_what_they_used(lab: AmpLab) -> None:
    lab.server.script(reply(thinking("Hm, Grüße?"), text("Grüße 🐸!")), reply(text("Again.")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Sag Grüße 🐸"))
    ended = await session.turn_ended()
    assert (ended.status, ended.stop_reason) == (COMPLETED, "end_turn")
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (100, 20)
    assert lab.server.requests[0].prompt.endswith("Sag Grüße 🐸")
    await driver.send(session.prompt("Once more"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Grüße 🐸!", "Again."]
    items = [event.item_completed.item for event in session.of(Kind.ITEM_COMPLETED)]
    assert items[0].content[0].reasoning.text == "Hm, Grüße?"
    assert not session.of(Kind.TURN_STARTED), "echoes of our prompts were not recognized"
    assert not any(item.role == item_pb2.ITEM_ROLE_USER for item in items)
    assert len(session.of(Kind.SESSION_UPDATED)) == 1
    [updated] = session.of(Kind.SESSION_UPDATED)
    assert updated.session_updated.native_session_id.startswith("T-")
    assert "Bash" in updated.session_updated.tools.names
    assert not session.exits
    assert not unparsed(session)


async def test_parallel_tools_and_an_edit_come_with_exit_codes_and_diffs(lab: AmpLab) -> None:
    path = lab.workspace / "a.txt"
    edit = {"path": str(path), "old_str": "two", "new_str": "zwei ü"}
    create = {"path": str(path), "content": "one\ntwo\n"}
    lab.server.script(
        reply(
            text("Both."),
            tool_use("Bash", {"cmd": "echo out; exit 3"}, id="toolu_b"),
            tool_use("create_file", create, id="toolu_c"),
        ),
        reply(tool_use("edit_file", edit, id="toolu_e"), when=result_of("toolu_c")),
        reply(text("Done."), when=result_of("toolu_e")),
    )
    session = await lab.session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Work"))
    assert (await session.turn_ended()).status == COMPLETED
    assert path.read_text() == "one\nzwei ü\n"
    results = session.tool_results
    assert (results["toolu_b"].output, results["toolu_b"].exit_code) == ("out\n", 3)
    assert results["toolu_b"].is_error
    items = {
        e.item_completed.item.item_id: e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
    }
    [file] = [p.file_ref for p in items["toolu_e:result"].content if p.HasField("file_ref")]
    assert file.path == str(path)
    assert "-two\n+zwei ü\n" in file.diff
    assert "```" not in file.diff
    assert json.loads(items["toolu_e"].content[0].tool_call.arguments_json) == edit
    assert items["toolu_c:result"].parent_id == "toolu_c"
    assert items["toolu_b"].parent_id == items["toolu_c"].parent_id != ""


async def test_mcp_servers_are_reached_and_their_secrets_are_private(lab: AmpLab) -> None:
    stdio = session_pb2.McpStdio(
        command=sys.executable, args=[mcp_echo.__file__], env={"TOKEN": "s3cret"}
    )
    lab.server.script(
        reply(
            tool_use("mcp__lab__echo", {"text": "Grüße"}, id="toolu_1"),
            tool_use("mcp__lab__image", {}, id="toolu_2"),
        ),
        reply(text("Called.")),
    )
    session = await lab.session(
        permission_mode=BYPASS, mcp_servers=[session_pb2.McpServer(name="lab", stdio=stdio)]
    )
    await session.driver().send(session.prompt("Use the lab"))
    [child] = lab.processes.children
    assert "s3cret" not in " ".join(child.spec.argv)
    [file] = lab.state.glob("*.mcp.json")
    assert file.stat().st_mode & 0o777 == 0o600
    await session.turn_ended()
    assert session.tool_results["toolu_1"].output == "Grüße"
    images = [
        p.image.media_type
        for e in session.of(Kind.ITEM_COMPLETED)
        for p in e.item_completed.item.content
        if p.HasField("image")
    ]
    assert images == ["image/png"]


async def test_images_reach_the_model(lab: AmpLab) -> None:
    lab.server.script(reply(text("One dot.")))
    session = await lab.session()
    image = service_pb2.InputImage(media_type="image/png", data=base64.b64decode(mcp_echo.PNG))
    parts = (service_pb2.InputPart(image=image),)
    await session.driver().send(Prompt("turn", "message", parts))
    assert (await session.turn_ended()).status == COMPLETED
    assert any(block["type"] == "image" for block in lab.server.requests[0].news)
    assert not session.of(Kind.TURN_STARTED)


async def test_a_message_that_stops_early_ends_its_turn(lab: AmpLab) -> None:
    lab.server.script(
        reply(text("Cut o"), stop_reason="max_tokens"),
        reply(text("No."), stop_reason="refusal"),
        reply(text("Fine.")),
    )
    session = await lab.session()
    driver = session.driver()
    for prompt in ("Long", "Bad", "Good"):
        await driver.send(session.prompt(prompt))
        assert (await session.turn_ended()).status == COMPLETED
    assert session.texts == ["Cut o", "No.", "Fine."]
    assert not session.exits


async def test_an_interrupt_cuts_the_tool_and_the_thread_goes_on(lab: AmpLab) -> None:
    lab.server.script(
        reply(text("Sleeping."), tool_use("Bash", {"cmd": "sleep 1000"}, id="toolu_s")),
        reply(text("Here."), when=says("Still")),
        reply(text("Never ", hang()), when=result_of("toolu_s"), repeat=True),
    )
    session = await lab.session(permission_mode=BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    await session.until(
        lambda d: (
            d.kind is Kind.ITEM_COMPLETED and d.event.item_completed.item.item_id == "toolu_s"
        ),
        "the call",
    )
    await lab.server.stored("toolu_s")  # before that the server has no thread to go on with
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    assert "user:interrupted" in session.tool_results["toolu_s"].output
    assert (await session.exit()).expected
    thread = session.native_session_id
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.native_session_id == thread
    [result] = [
        block
        for message in lab.server.requests[-1].body["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert "interrupted this tool call" in json.dumps(result)
    assert session.texts[-1] == "Here."
    assert not session.of(Kind.ERROR)


async def test_an_interrupt_cuts_the_models_text(lab: AmpLab) -> None:
    lab.server.script(reply(text("This is ", hang())), reply(text("Yes?")))
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await lab.server.request(0)
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    assert (await session.exit()).expected
    # Amp has stored nothing of it yet, so the next message begins the thread.
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_an_interrupt_between_turns_is_nothing(lab: AmpLab) -> None:
    lab.server.script(reply(text("One.")), reply(text("Two.")))
    session = await lab.session()
    driver = session.driver()
    await driver.interrupt()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    await driver.interrupt()
    await driver.send(session.prompt("On"))
    assert (await session.turn_ended()).status == COMPLETED
    assert not session.exits


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (error(500), error_pb2.ERROR_CODE_PROVIDER_FAILED),
        (error(401, "authentication_error", "bad"), error_pb2.ERROR_CODE_AUTHENTICATION),
        (error(402, "billing_error", "no credit"), error_pb2.ERROR_CODE_QUOTA_EXCEEDED),
        (
            error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"),
            error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
        ),
    ],
    ids=["500", "401", "402", "context"],
)
async def test_an_error_fails_its_turn_although_the_cli_exits_with_0(
    lab: AmpLab, failure: object, code: error_pb2.ErrorCode.ValueType
) -> None:
    lab.server.script(failure, reply(text("Better.")))  # type: ignore[arg-type]
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("Hi"))
    ended = await session.turn_ended()
    assert (ended.status, ended.error.code) == (FAILED, code)
    assert [e.error.code for e in session.of(Kind.ERROR)] == [code]
    assert (await session.exit()).expected
    await driver.send(session.prompt("Again"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_a_killed_process_is_reported_and_another_continues_the_thread(lab: AmpLab) -> None:
    lab.server.script(
        reply(text("Noted.")), reply(text("Half ", hang())), reply(text("Blue, I think."))
    )
    session = await lab.session()
    driver = session.driver()
    await driver.send(session.prompt("My color is blue"))
    await session.turn_ended()
    await lab.server.stored("Noted.")  # a while after the turn; what is not stored is lost
    await driver.send(session.prompt("Talk"))
    await lab.server.request(1)
    [child] = lab.processes.children
    os.kill(child.pid, signal.SIGKILL)
    exit = await session.exit()
    assert (exit.expected, exit.signal) == (False, signal.SIGKILL)
    await driver.close()
    driver = session.driver()  # as after a restart of the daemon
    await driver.send(session.prompt("Which was it?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert "My color is blue" in json.dumps(lab.server.requests[2].body["messages"])


# --- starts that fail ----------------------------------------------------------------------------


async def failed_start(session: FakeSession) -> AgentFailed:
    with pytest.raises(AgentFailed) as caught:
        await session.driver().send(session.prompt("Hi"))
    assert not session.drafts
    assert not session.exits
    return caught.value


async def test_without_a_key_nothing_is_started(lab: AmpLab) -> None:
    del lab.environment["AMP_API_KEY"]
    failure = await failed_start(await lab.session())
    assert failure.code == error_pb2.ERROR_CODE_AUTHENTICATION
    assert "AMP_API_KEY" in str(failure)


async def test_a_login_that_has_no_key_ends_at_the_login_text(lab: AmpLab) -> None:
    del lab.environment["AMP_API_KEY"]
    make_workspace(Path(lab.environment["HOME"]), {".local/share/amp/secrets.json": "{}"})
    failure = await failed_start(await lab.session())
    assert failure.code == error_pb2.ERROR_CODE_AUTHENTICATION


async def test_a_wrong_key_is_said(lab: AmpLab) -> None:
    lab.server.key = "another"
    failure = await failed_start(await lab.session())
    assert failure.code == error_pb2.ERROR_CODE_AUTHENTICATION


async def test_a_server_that_cannot_be_reached_is_said(lab: AmpLab) -> None:
    session = await lab.session(env={"AMP_URL": "http://127.0.0.1:9"})
    assert (await failed_start(session)).code == error_pb2.ERROR_CODE_NETWORK


async def test_an_unknown_thread_is_not_begun_anew(lab: AmpLab) -> None:
    thread = "T-01a22fff-f647-7111-8f40-50274fb94541"
    failure = await failed_start(await lab.session(resume_native_session_id=thread))
    assert failure.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
    assert thread in str(failure)


async def test_an_unknown_mode_is_said(lab: AmpLab) -> None:
    failure = await failed_start(await lab.session(mode="nonsense"))
    assert failure.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert "nonsense" in str(failure)


async def test_a_silent_process_is_given_up(lab: AmpLab, tmp_path: Path) -> None:
    silent = tmp_path / "amp"
    silent.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 0.0.1777897475-g2324e1 && exit\nexec sleep 1000\n'
    )
    silent.chmod(0o755)
    lab._executable = silent
    session = await lab.session(limits=Limits(start_seconds=0.5))
    failure = await failed_start(session)
    assert "no message in 0.5 s" in str(failure)


@pytest.mark.parametrize(
    "settings",
    ['{"amp.permissions": []}', '{"amp.dangerouslyAllowAll": true}', "{ // not JSON\n}"],
    ids=["permissions", "allow-all", "unreadable"],
)
async def test_a_workspace_that_would_decide_about_permissions_is_refused(
    lab: AmpLab, settings: str
) -> None:
    above = lab.workspace.parent / ".amp"
    above.mkdir()
    (above / "settings.json").write_text(settings)
    failure = await failed_start(await lab.session())
    assert str(above / "settings.json") in str(failure)


async def test_modes_labels_and_visibility_are_taken(lab: AmpLab) -> None:
    lab.server.script(reply(thinking("Hm."), text("Yes.")))
    session = await lab.session(
        mode="rush",
        agent_options={"labels": "one,two", "visibility": "private", "thinking": "false"},
    )
    await session.driver().send(session.prompt("Hi"))
    await session.turn_ended()
    [updated] = session.of(Kind.SESSION_UPDATED)
    assert updated.session_updated.mode == "rush"
    [item] = [event.item_completed.item for event in session.of(Kind.ITEM_COMPLETED)]
    assert [part.WhichOneof("part") for part in item.content] == ["text"]
