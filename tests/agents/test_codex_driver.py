"""The driver of Codex on the real program: what it carries both ways, what it leaves."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import (
    agent_pb2,
    error_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
    service_pb2,
    session_pb2,
)
from agentstreamd.adapters.base import AgentFailed, HostContext, NotDelivered, Prompt
from agentstreamd.adapters.codex.adapter import CodexAdapter
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.model import Kind
from agentstreamd.process import ChildProcess, ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support import mcp_echo
from tests.support.codex_home import codex_environment
from tests.support.fake_session import FakeSession
from tests.support.laboratory import agent_executable
from tests.support.model_server import DEADLINE
from tests.support.responses_server import (
    Gate,
    ResponsesServer,
    call,
    cut,
    error,
    failed,
    hang,
    output_of,
    patch,
    reasoning,
    reply,
    says,
    text,
)

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
ACCEPT_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

COMPLETED = event_pb2.TURN_STATUS_COMPLETED
FAILED = event_pb2.TURN_STATUS_FAILED
INTERRUPTED = event_pb2.TURN_STATUS_INTERRUPTED

BYPASS = agent_pb2.PERMISSION_MODE_BYPASS

NewSession = Callable[..., FakeSession]


@pytest.fixture(scope="session")
def codex_cli() -> Path:
    """The native program of the pinned Codex."""
    return agent_executable("codex")


@pytest.fixture
async def model() -> AsyncIterator[ResponsesServer]:
    """A scripted model. At the end the script must be used up and nothing else have been asked."""
    async with ResponsesServer() as server:
        yield server
        server.check()


@pytest.fixture
def codex_env(tmp_path: Path, model: ResponsesServer) -> dict[str, str]:
    """The environment of Codex: a home of its own, and the scripted model."""
    return codex_environment(tmp_path / "home", model.url)


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    """A process host, whose processes must all be gone at the end."""
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    yield host
    await host.close()
    assert not find_marked(host.instance_id)


@pytest.fixture
async def adapter(
    codex_cli: Path, codex_env: dict[str, str], tmp_path: Path, processes: ProcessHost
) -> AsyncIterator[CodexAdapter]:
    """The adapter, as a daemon has it."""
    state_directory = tmp_path / "state"
    state_directory.mkdir(mode=0o700)
    made = CodexAdapter(Limits(linger_seconds=0))
    await made.start(
        HostContext(
            processes=processes,
            environment=codex_env,
            state_directory=state_directory,
            executable=str(codex_cli),
        )
    )
    yield made
    await made.close()


@pytest.fixture
async def new_session(
    adapter: CodexAdapter, codex_env: dict[str, str], workspace: Path, processes: ProcessHost
) -> AsyncIterator[NewSession]:
    """Makes a session: `new_session(model="gpt-5.5")`. At the end its drivers are closed."""
    made: list[FakeSession] = []

    def make(**config: Any) -> FakeSession:
        settings = session_pb2.SessionConfig(
            agent="codex", working_directory=str(workspace), **config
        )
        adapter.check(settings)
        session = FakeSession(adapter, processes, settings, codex_env, workspace)
        made.append(session)
        return session

    yield make
    for session in made:
        session.gate.set()
        for driver in session.drivers:
            await driver.close(forget=True)
        assert not session.of(Kind.AGENT_UNPARSED)


def allowed(
    decision: interaction_pb2.PermissionDecision.ValueType = ACCEPT, **more: Any
) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


def shell(command: str, *, id: str = "call_1", **more: Any) -> Any:
    return call("exec_command", {"cmd": command, **more}, id=id)


def server_of(processes: ProcessHost) -> ChildProcess:
    [child] = processes.children
    return child


# --- turns ---------------------------------------------------------------------------------------


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


# --- commands and patches ------------------------------------------------------------------------


async def test_a_command_runs_without_asking_where_it_may(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(
        reply(shell("sleep 0.5; echo out; sleep 0.5; echo err >&2; sleep 0.3; exit 3")),
        reply(text("It failed."), when=output_of("call_1")),
    )
    session = new_session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Run it"))
    await session.turn_ended()
    result = session.tool_results["call_1"]
    assert (result.output, result.exit_code, result.is_error) == ("out\nerr\n", 3, True)
    assert not session.of(Kind.PERMISSION_REQUESTED)
    outputs = [
        event.item_delta.text
        for event in session.of(Kind.ITEM_DELTA)
        if event.item_delta.kind == event_pb2.DELTA_KIND_TOOL_OUTPUT
    ]
    assert outputs == ["out\n", "err\n"]


async def test_an_accepted_command_runs(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(reply(shell("touch a.txt")), reply(text("Done."), when=output_of("call_1")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_COMMAND
    assert "touch a.txt" in asked.command
    assert asked.cwd == str(workspace)
    assert asked.call_id == "call_1"
    assert list(asked.allowed_decisions) == [ACCEPT, ACCEPT_FOR_SESSION, REJECT]
    assert not (workspace / "a.txt").exists()
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert (workspace / "a.txt").exists()
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())
    # We answered: that Codex took note of it is nothing new.
    assert not session.of(Kind.PERMISSION_RESOLVED)


async def test_what_was_accepted_for_the_session_is_not_asked_again(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(shell("mkdir -p made", id="call_1")),
        reply(text("Made."), when=output_of("call_1")),
        reply(shell("mkdir -p made", id="call_2")),
        reply(text("Made again."), when=output_of("call_2")),
    )
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Make it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(ACCEPT_FOR_SESSION))
    await session.turn_ended()
    await driver.send(session.prompt("Once more"))
    await session.turn_ended()
    assert len(session.of(Kind.PERMISSION_REQUESTED)) == 1
    assert (workspace / "made").is_dir()


async def test_a_rejected_command_fails_and_the_turn_goes_on(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(reply(shell("touch a.txt")), reply(text("Then not."), when=output_of("call_1")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT))
    assert (await session.turn_ended()).status == COMPLETED
    assert session.tool_results["call_1"].is_error
    assert not (workspace / "a.txt").exists()
    assert "reject" in model.requests[1].outputs["call_1"].lower()


async def test_a_rejection_can_end_the_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(shell("touch a.txt")), reply(hang(), repeat=True))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.answer(asked.request_id, allowed(REJECT, interrupt=True))
    assert (await session.turn_ended()).status == INTERRUPTED


async def test_a_patch_shows_its_diffs_and_waits_for_approval(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    (workspace / "old.txt").write_text("alpha\nbeta\n")
    (workspace / "gone.txt").write_text("bye\n")
    body = (
        "*** Add File: new.txt\n+ünï\n*** Delete File: gone.txt\n"
        "*** Update File: old.txt\n@@\n alpha\n-beta\n+BETA"
    )
    model.script(reply(patch(body, id="call_p")), reply(text("Patched."), when=output_of("call_p")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Patch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.kind == interaction_pb2.PERMISSION_KIND_FILE_CHANGE
    files = {Path(file.path).name: file for file in asked.files}
    assert files["new.txt"].action == item_pb2.FILE_ACTION_WRITE
    assert files["new.txt"].diff == "@@ -0,0 +1 @@\n+ünï\n"
    assert files["gone.txt"].action == item_pb2.FILE_ACTION_DELETE
    assert files["gone.txt"].diff == "@@ -1 +0,0 @@\n-bye\n"
    assert files["old.txt"].action == item_pb2.FILE_ACTION_PATCH
    assert "-beta\n+BETA" in files["old.txt"].diff
    assert not (workspace / "new.txt").exists()
    await driver.answer(asked.request_id, allowed())
    await session.turn_ended()
    assert (workspace / "old.txt").read_text() == "alpha\nBETA\n"
    assert not (workspace / "gone.txt").exists()
    assert not session.tool_results["call_p"].is_error
    diffs = [i for i in statuses(session) if i.content[0].status.label == "diff"]
    assert len(diffs) == 1
    assert "+BETA" in diffs[0].content[1].text.text


async def test_edits_are_accepted_in_their_mode(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(patch("*** Add File: new.txt\n+x", id="call_p")),
        reply(text("Patched."), when=output_of("call_p")),
    )
    session = new_session(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    await session.driver().send(session.prompt("Patch it"))
    await session.turn_ended()
    assert (workspace / "new.txt").read_text() == "x\n"
    assert not session.of(Kind.PERMISSION_REQUESTED)


async def test_two_approvals_at_once_are_told_apart(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(shell("touch a.txt", id="call_a"), shell("touch b.txt", id="call_b")),
        reply(text("One of two."), when=output_of("call_a")),
    )
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch both"))
    asked = {}
    for _ in range(2):
        request = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
        asked[request.call_id] = request
    await driver.answer(asked["call_b"].request_id, allowed())
    await driver.answer(asked["call_a"].request_id, allowed(REJECT))
    await session.turn_ended()
    assert os.listdir(workspace) == ["b.txt"]


async def test_plan_mode_looks_and_changes_nothing(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    model.script(
        reply(text("<proposed_plan>\n# Plan\n1. Touch it\n</proposed_plan>")),
        reply(shell("sleep 0.5; touch a.txt")),
        reply(text("I may not."), when=output_of("call_1")),
    )
    session = new_session(permission_mode=agent_pb2.PERMISSION_MODE_PLAN)
    driver = session.driver()
    await driver.send(session.prompt("Plan it"))
    await session.turn_ended()
    plans = [e for e in session.of(Kind.ITEM_COMPLETED) if "plan" in e.metadata_json]
    [plan] = [e.item_completed.item for e in plans]
    assert "Touch it" in plan.content[0].text.text
    assert "Plan" in model.requests[0].instructions
    await driver.send(session.prompt("Do it"))
    await session.turn_ended()
    assert not (workspace / "a.txt").exists()
    # The built-in prompt of plan mode is nowhere in what is kept.
    assert not any(b'developer_instructions":"' in r for d in session.drafts for r in d.raw)


async def test_plans_are_snapshots(new_session: NewSession, model: ResponsesServer) -> None:
    def steps(*states: str) -> dict[str, Any]:
        plan = [{"step": f"step {n}", "status": state} for n, state in enumerate(states)]
        return {"explanation": "because", "plan": plan}

    model.script(
        reply(call("update_plan", steps("in_progress", "pending"), id="call_1")),
        reply(
            call("update_plan", steps("completed", "in_progress"), id="call_2"),
            when=output_of("call_1"),
        ),
        reply(text("Planned."), when=output_of("call_2")),
    )
    session = new_session()
    await session.driver().send(session.prompt("Plan"))
    await session.turn_ended()
    plans = [i for i in statuses(session) if i.content[0].status.key == "plan"]
    assert [i.content[0].status.detail for i in plans] == ["0 of 2 steps done", "1 of 2 steps done"]
    assert json.loads(plans[1].content[1].json.json)["plan"][1]["status"] == "inProgress"


# --- questions, MCP, images ----------------------------------------------------------------------


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


# --- interrupting and steering -------------------------------------------------------------------


async def test_an_interrupt_stops_the_text_and_the_session_goes_on(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("This is ", hang(), "never said")), reply(text("Yes?")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Talk"))
    await session.text_delta("This is ")
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    await driver.send(session.prompt("Still there?"))
    assert (await session.turn_ended()).status == COMPLETED
    assert not session.exits


async def test_an_interrupt_waits_for_the_turn_to_begin(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(hang(), repeat=True))
    session = new_session()
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("Never mind")))
    await asyncio.sleep(0)  # the send has begun
    await driver.interrupt()
    await sending
    assert (await session.turn_ended()).status == INTERRUPTED
    await driver.interrupt()  # nothing runs: nothing to do


async def test_an_interrupt_ends_the_running_command(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    fifo = workspace / "pid"
    os.mkfifo(fifo)
    model.script(reply(shell("echo $$ > pid; exec sleep 600")))
    session = new_session(permission_mode=BYPASS)
    driver = session.driver()
    await driver.send(session.prompt("Sleep"))
    pid = int(await asyncio.to_thread(fifo.read_text))
    await session.until(
        lambda draft: (
            draft.kind is Kind.ITEM_COMPLETED
            and draft.event.item_completed.item.item_id == "call_1"
        ),
        "call",
    )
    handle = os.pidfd_open(pid)
    try:
        await driver.interrupt()
        assert (await session.turn_ended()).status == INTERRUPTED
        await readable(handle)  # it is gone
    finally:
        os.close(handle)
    late = (await session.next(Kind.ITEM_COMPLETED)).item_completed.item
    assert late.parent_id == "call_1"
    assert late.content[0].status.label == "late_output"
    assert "exit code -1" in late.content[0].status.detail


async def test_an_interrupt_while_a_permission_is_asked_for_leaves_nothing(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(shell("touch a.txt")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Touch it"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    with pytest.raises(NotDelivered):
        await driver.answer(asked.request_id, allowed())


async def test_a_steering_message_goes_into_the_running_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("word ", hang())), reply(text("Steered.")))
    session = new_session()
    driver = session.driver()
    with pytest.raises(NotDelivered):
        await driver.steer(session.prompt("too early"))
    await driver.send(session.prompt("Go"))
    await session.text_delta("word ")
    await driver.steer(session.prompt("also do that"))
    ended = await session.turn_ended()
    assert ended.status == COMPLETED
    assert len(session.of(Kind.TURN_ENDED)) == 1
    assert "also do that" in json.dumps(model.requests[1].input)
    first, second = [
        e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
        if e.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
    ]
    assert first.superseded_by == second.item_id
    assert first.status == item_pb2.ITEM_STATUS_FAILED
    assert second.content[0].text.text == "Steered."


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "code", "requests"),
    [
        (400, "invalid_request_error", error_pb2.ERROR_CODE_INVALID_REQUEST, 1),
        (401, "authentication_error", error_pb2.ERROR_CODE_AUTHENTICATION, 2),
        (429, "rate_limit_error", error_pb2.ERROR_CODE_RATE_LIMITED, 2),
        (500, "server_error", error_pb2.ERROR_CODE_PROVIDER_FAILED, 4),
    ],
)
async def test_an_error_of_the_provider_fails_the_turn_once(
    new_session: NewSession,
    model: ResponsesServer,
    status: int,
    kind: str,
    code: int,
    requests: int,
) -> None:
    model.script(error(status, "bad thing", type=kind, repeat=True))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Go"))
    ended = await session.turn_ended()
    assert ended.status == FAILED
    assert ended.error.code == code
    final = [e.error for e in session.of(Kind.ERROR) if not e.error.will_retry]
    assert [e.message for e in final] == [ended.error.message]
    retried = [e.error for e in session.of(Kind.ERROR) if e.error.will_retry]
    assert all((e.attempt, e.max_attempts) == (1, 1) for e in retried)
    model.forget_script()
    model.script(reply(text("Better.")))
    await driver.send(session.prompt("And now?"))
    assert (await session.turn_ended()).status == COMPLETED


async def test_a_used_up_quota_and_a_full_context_are_told_apart(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(failed("insufficient_quota"), failed("context_length_exceeded"))
    session = new_session()
    driver = session.driver()
    codes = []
    for _ in range(2):
        await driver.send(session.prompt("Go"))
        codes.append((await session.turn_ended()).error.code)
    assert codes == [
        error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
        error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
    ]


async def test_a_refused_connection_fails_the_turn(
    new_session: NewSession, model: ResponsesServer
) -> None:
    session = new_session()
    async with model.refusing():
        await session.driver().send(session.prompt("Go"))
        ended = await session.turn_ended()
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_NETWORK


async def test_an_answer_that_is_cut_is_superseded_by_its_repetition(
    new_session: NewSession, model: ResponsesServer
) -> None:
    gate = Gate()
    model.script(reply(text("half of ", gate, cut())), reply(text("The whole.")))
    session = new_session()
    await session.driver().send(session.prompt("Go"))
    await session.text_delta("half of ")
    gate.open()
    assert (await session.turn_ended()).status == COMPLETED
    [retry] = [e.error for e in session.of(Kind.ERROR)]
    assert retry.will_retry
    half, whole = [
        e.item_completed.item
        for e in session.of(Kind.ITEM_COMPLETED)
        if e.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
    ]
    assert (half.content[0].text.text, half.superseded_by) == ("half of ", whole.item_id)
    assert whole.content[0].text.text == "The whole."


async def test_a_server_that_dies_ends_the_turns_of_all_its_sessions(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    model.script(
        reply(text("left ", hang()), when=says("left")),
        reply(text("right ", hang()), when=says("right")),
    )
    sessions = {name: new_session() for name in ("left", "right")}
    drivers = {name: session.driver() for name, session in sessions.items()}
    for name, session in sessions.items():
        await drivers[name].send(session.prompt(name))
        await session.text_delta(f"{name} ")
    server = server_of(processes)
    server.kill()
    for session in sessions.values():
        exit = await session.exit()
        assert not exit.expected
        assert exit.signal == 9
        assert exit.resumable
    model.script(reply(text("Again left.")), reply(text("Again right.")))
    for name, session in sessions.items():
        await drivers[name].send(session.prompt("and on"))
        assert (await session.turn_ended()).status == COMPLETED
        assert session.texts[-1] == f"Again {name}."
    assert server_of(processes) is not server
    assert "left" in json.dumps(model.requests[2].input)


async def test_closing_leaves_the_server_to_the_others(
    new_session: NewSession, model: ResponsesServer, processes: ProcessHost
) -> None:
    gate = Gate()
    model.script(
        reply(text("going ", hang()), when=says("gone")),
        reply(text("staying ", gate, "on"), when=says("stay")),
    )
    gone, stays = new_session(), new_session()
    leaving, staying = gone.driver(), stays.driver()
    await leaving.send(gone.prompt("be gone"))
    await staying.send(stays.prompt("stay"))
    await gone.text_delta("going ")
    await stays.text_delta("staying ")
    await leaving.close(forget=True)
    await leaving.close(forget=True)
    assert gone.of(Kind.TURN_ENDED)[0].turn_ended.status == INTERRUPTED
    assert [exit.expected for exit in gone.exits] == [True]
    gate.open()
    assert (await stays.turn_ended()).status == COMPLETED
    server_of(processes)


# --- the rest ------------------------------------------------------------------------------------


async def test_compaction_is_a_command(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(reply(text("One.")), reply(text("A summary.")), reply(text("After.")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("Count"))
    await session.turn_ended()
    await driver.send(session.prompt("/compact", command=True))
    assert (await session.turn_ended()).status == COMPLETED
    assert [i.content[0].status.label for i in statuses(session)][-1] == "compacted"
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts[-1] == "After."
    with pytest.raises(AgentFailed, match="/nonsense"):
        await driver.send(session.prompt("/nonsense", command=True))


async def test_a_review_ends_its_turn(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    finding = json.dumps(
        {"findings": [], "overall_correctness": "patch is correct", "overall_explanation": "Fine."}
    )
    model.script(reply(text(finding)), reply(text("After.")))
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("/review look at it", command=True))
    assert (await session.turn_ended()).status == COMPLETED
    labels = [i.content[0].status.label for i in statuses(session)]
    assert "review_started" in labels
    finished = next(i for i in statuses(session) if i.content[0].status.label == "review_finished")
    assert "Fine." in finished.content[1].text.text
    await driver.send(session.prompt("Go on"))
    await session.turn_ended()
    assert session.texts[-1] == "After."


async def test_text_that_looks_like_a_command_reaches_the_model(
    new_session: NewSession, model: ResponsesServer
) -> None:
    model.script(reply(text("Hm.")))
    session = new_session()
    await session.driver().send(session.prompt("/compact"))
    await session.turn_ended()
    assert model.requests[0].prompt == "/compact"


async def test_large_output_comes_whole(new_session: NewSession, model: ResponsesServer) -> None:
    model.script(
        reply(shell("sleep 0.5; head -c 900000 /dev/zero | tr '\\0' x")),
        reply(text("y" * 400_000), when=output_of("call_1")),
    )
    session = new_session(permission_mode=BYPASS)
    await session.driver().send(session.prompt("Much"))
    await session.turn_ended()
    assert session.tool_results["call_1"].output == "x" * 900_000
    assert session.texts == ["y" * 400_000]


async def test_text_survives_whatever_it_holds(
    new_session: NewSession, model: ResponsesServer
) -> None:
    odd = "a\u2028b\u0000c\u202eRTL 👩‍👩‍👧 \x1b[31m \\n \r\n end"
    model.script(reply(text(odd)))
    session = new_session()
    await session.driver().send(session.prompt(odd))
    await session.turn_ended()
    assert session.texts == [odd]
    assert model.requests[0].prompt == odd


async def test_a_sub_agents_work_stands_under_the_call_that_made_it(
    new_session: NewSession, model: ResponsesServer, workspace: Path
) -> None:
    spawn = {"message": "CHILD TASK"}
    model.script(
        reply(
            call("spawn_agent", spawn, id="call_s", namespace="multi_agent_v1"),
            when=says("use a helper"),
        ),
        reply(shell("touch child.txt", id="call_c"), when=says("CHILD TASK")),
        reply(text("Child done."), when=output_of("call_c")),
        reply(hang(), when=output_of("call_s")),
    )
    session = new_session(model="mystery-model")
    driver = session.driver()
    await driver.send(session.prompt("use a helper"))
    asked = (await session.next(Kind.PERMISSION_REQUESTED)).permission_requested
    assert asked.parent_id == "call_s"
    await driver.answer(asked.request_id, allowed())
    await session.until(
        lambda draft: (
            draft.kind is Kind.ITEM_COMPLETED
            and draft.event.item_completed.item.parent_id == "call_s"
            and draft.event.item_completed.item.role == item_pb2.ITEM_ROLE_ASSISTANT
            and draft.event.item_completed.item.kind == item_pb2.ITEM_KIND_MESSAGE
        ),
        "message of the sub-agent",
    )
    assert (workspace / "child.txt").exists()
    await driver.interrupt()
    assert (await session.turn_ended()).status == INTERRUPTED
    assert len(session.of(Kind.TURN_STARTED)) == 1


async def test_the_agent_is_described(adapter: CodexAdapter, codex_cli: Path) -> None:
    agent = await adapter.describe()
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    assert agent.executable_path == str(codex_cli)
    assert agent.version == "0.171.0"
    assert any(found.name.startswith("gpt-5") for found in agent.models)


def statuses(session: FakeSession) -> list[item_pb2.Item]:
    items = [event.item_completed.item for event in session.of(Kind.ITEM_COMPLETED)]
    return [item for item in items if item.kind == item_pb2.ITEM_KIND_STATUS]


def echo_server() -> session_pb2.McpServer:
    stdio = session_pb2.McpStdio(command=sys.executable, args=[mcp_echo.__file__])
    return session_pb2.McpServer(name="echo", stdio=stdio)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read; of a process, until it has ended."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(DEADLINE):
            await ready.wait()
    finally:
        loop.remove_reader(descriptor)
