"""The driver and its server when the program misbehaves: requests, limits, strangers, ends."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, session_pb2
from agentstreamd.adapters.base import AgentFailed, HostContext
from agentstreamd.adapters.codex.adapter import CodexAdapter
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.model import Kind
from agentstreamd.process import ProcessHost
from tests.support import fake_app_server
from tests.support.fake_session import FakeSession

NewSession = Callable[..., FakeSession]

LIMITS = Limits(
    linger_seconds=0,
    request_seconds=20,
    overload_seconds=0.001,
    overload_attempts=4,
    interrupt_seconds=20,
)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
async def processes() -> AsyncIterator[ProcessHost]:
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    yield host
    await host.close()


@pytest.fixture
async def adapter(
    tmp_path: Path, processes: ProcessHost, limits: Limits
) -> AsyncIterator[CodexAdapter]:
    program = tmp_path / "codex"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_app_server.__file__} "$@"\n')
    program.chmod(0o755)
    made = CodexAdapter(limits)
    await made.start(
        HostContext(
            processes=processes,
            environment={"PATH": os.environ["PATH"]},
            state_directory=tmp_path,
            executable=str(program),
        )
    )
    yield made
    await made.close()


@pytest.fixture
async def new_session(
    adapter: CodexAdapter, tmp_path: Path, processes: ProcessHost
) -> AsyncIterator[NewSession]:
    made: list[FakeSession] = []

    def make(**config: Any) -> FakeSession:
        settings = session_pb2.SessionConfig(
            agent="codex", working_directory=str(tmp_path), **config
        )
        environment = {"PATH": os.environ["PATH"]}
        made.append(FakeSession(adapter, processes, settings, environment, tmp_path))
        return made[-1]

    yield make
    for session in made:
        session.gate.set()
        for driver in session.drivers:
            await driver.close()


async def test_overload_is_tried_again(new_session: NewSession) -> None:
    session = new_session()
    await session.driver().send(session.prompt("overload 3"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED


async def test_overload_without_end_fails_the_message(new_session: NewSession) -> None:
    session = new_session()
    with pytest.raises(AgentFailed, match="overloaded") as raised:
        await session.driver().send(session.prompt("overload 99"))
    assert raised.value.code == error_pb2.ERROR_CODE_OVERLOADED


class TestSilence:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(linger_seconds=0, request_seconds=0.2, probe_seconds=0.2)

    async def test_a_request_that_is_not_answered_fails(self, new_session: NewSession) -> None:
        session = new_session()
        with pytest.raises(AgentFailed, match="turn/start within") as raised:
            await session.driver().send(session.prompt("silent"))
        assert raised.value.code == error_pb2.ERROR_CODE_AGENT_PROTOCOL

    async def test_a_server_that_answers_others_stays(self, new_session: NewSession) -> None:
        session, other = new_session(), new_session()
        driver = other.driver()
        await driver.send(other.prompt("say one"))
        with pytest.raises(AgentFailed):
            await session.driver().send(session.prompt("silent"))
        await driver.send(other.prompt("say two"))
        assert not other.exits

    async def test_a_server_that_hangs_is_ended_and_another_goes_on(
        self, new_session: NewSession
    ) -> None:
        session, other = new_session(), new_session()
        driver = other.driver()
        await driver.send(other.prompt("hang"))
        with pytest.raises(AgentFailed):
            await session.driver().send(session.prompt("stuck"))
        exit = await other.exit()
        assert not exit.expected
        assert "did not answer" in exit.message
        await driver.send(other.prompt("say two"))
        await other.turn_ended()
        assert other.texts == ["two"]


class TestDefiance:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(linger_seconds=0, interrupt_seconds=0.2, probe_seconds=20)

    async def test_a_turn_that_defies_interrupts_costs_its_server(
        self, new_session: NewSession, processes: ProcessHost
    ) -> None:
        session, other = new_session(), new_session()
        driver = session.driver()
        await driver.send(session.prompt("defy"))
        await session.text_delta("hanging")
        await other.driver().send(other.prompt("say hello"))
        await other.turn_ended()
        await driver.close()
        assert "could not be interrupted" in (await other.exit()).message
        await other.drivers[0].send(other.prompt("say on"))
        await other.turn_ended()
        assert other.texts == ["hello", "on"]


class TestManyAtOnce:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(linger_seconds=0, in_flight=2)

    async def test_requests_in_flight_are_bounded(
        self, new_session: NewSession, adapter: CodexAdapter
    ) -> None:
        sessions = [new_session() for _ in range(12)]
        await asyncio.gather(
            *(session.driver().send(session.prompt("say hello")) for session in sessions)
        )
        for session in sessions:
            assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED


async def test_an_unknown_request_is_refused_and_shown(new_session: NewSession) -> None:
    session = new_session()
    await session.driver().send(session.prompt("ask novel/request"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED
    assert session.texts == ["refused"]
    items = [e.item_completed.item for e in session.of(Kind.ITEM_COMPLETED)]
    details = [i.content[0].status.detail for i in items if i.content[0].HasField("status")]
    assert any("novel/request" in detail for detail in details)


async def test_lines_that_are_no_messages_are_shown_as_such(new_session: NewSession) -> None:
    session = new_session()
    await session.driver().send(session.prompt("garbage"))
    await session.turn_ended()
    said = [e.agent_unparsed.preview for e in session.of(Kind.AGENT_UNPARSED)]
    assert said == ["no JSON", "[1]"]


async def test_a_server_that_dies_is_reported_with_its_last_words(new_session: NewSession) -> None:
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("die"))
    exit = await session.exit()
    assert (exit.expected, exit.exit_code, exit.resumable) == (False, 7, True)
    assert "a last word" in exit.message
    assert exit.stderr_head == "a last word\n"
    await driver.send(session.prompt("say again"))
    assert (await session.turn_ended()).status == event_pb2.TURN_STATUS_COMPLETED


async def test_the_last_words_of_a_server_that_sessions_share_are_in_the_log_alone(
    new_session: NewSession, caplog: pytest.LogCaptureFixture
) -> None:
    other, session = new_session(), new_session()
    other.uid = "uid-2"
    await other.driver().send(other.prompt("say hello"))
    await other.turn_ended()
    await session.driver().send(session.prompt("die"))
    for exit in (await session.exit(), await other.exit()):
        assert (exit.expected, exit.exit_code) == (False, 7)
        assert "a last word" not in exit.message + exit.stderr_head + exit.stderr_tail
    logged = [vars(record).get("stderr") for record in caplog.records]
    assert logged.count("a last word") == 1


async def test_a_thread_that_speaks_before_it_is_named_finds_its_parent(
    new_session: NewSession,
) -> None:
    session, other = new_session(), new_session()
    await other.driver().send(other.prompt("say mine"))
    await other.turn_ended()
    await session.driver().send(session.prompt("child"))
    event = await session.until(
        lambda draft: (
            draft.kind is Kind.ITEM_COMPLETED
            and draft.event.item_completed.item.content[0].text.text == "from below"
        ),
        "message of the sub-agent",
    )
    assert event.item_completed.item.parent_id == "spawn"
    assert other.texts == ["mine"]


async def test_what_a_thread_says_before_it_is_known_waits_for_it(new_session: NewSession) -> None:
    session = new_session()
    await session.driver().send(session.prompt("say hello"))
    await session.turn_ended()
    updates = [e.session_updated for e in session.of(Kind.SESSION_UPDATED)]
    [servers] = [u.mcp_servers for u in updates if u.HasField("mcp_servers")]
    assert [(server.name, server.status) for server in servers.servers] == [("early", "ready")]


async def test_two_sessions_cannot_work_on_one_thread(new_session: NewSession) -> None:
    session = new_session()
    await session.driver().send(session.prompt("say hello"))
    await session.turn_ended()
    other = new_session()
    other.native_session_id = session.native_session_id
    with pytest.raises(AgentFailed, match="Another session"):
        await other.driver().send(other.prompt("say mine"))
    assert not other.exits, "for its stream the server was never there"
    await session.drivers[0].send(session.prompt("say still mine"))
    await session.turn_ended()
    assert session.texts == ["hello", "still mine"]


async def test_npms_launcher_is_passed_over(
    tmp_path: Path, processes: ProcessHost, limits: Limits
) -> None:
    package = tmp_path / "node_modules" / "@openai" / "codex"
    launcher = package / "bin" / "codex.js"
    vendor = package.parent / "codex-linux-x64" / "vendor" / "triple"
    native = vendor / "bin" / "codex"
    for program, text in ((launcher, "exit 9"), (native, "echo codex-cli 1.2.3")):
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(launcher)
    adapter = CodexAdapter(limits)
    environment = {"PATH": f"{tmp_path}/bin:/bin:/usr/bin"}
    await adapter.start(
        HostContext(processes=processes, environment=environment, state_directory=tmp_path)
    )
    agent = await adapter.describe()
    assert agent.executable_path == str(native)
    assert agent.version == "1.2.3"
    assert not agent.models, "this one has no server to list them"
    await adapter.close()


async def test_without_codex_the_agent_says_how_to_get_it(
    tmp_path: Path, processes: ProcessHost
) -> None:
    adapter = CodexAdapter()
    environment = {"PATH": str(tmp_path)}
    await adapter.start(
        HostContext(processes=processes, environment=environment, state_directory=tmp_path)
    )
    agent = await adapter.describe()
    assert agent.state == agent_pb2.AGENT_STATE_NOT_INSTALLED
    assert "npm install" in agent.unavailable_reason


async def test_a_flooded_session_does_not_hold_up_another(new_session: NewSession) -> None:
    flooded, other = new_session(), new_session()
    await other.driver().send(other.prompt("say first"))
    await other.turn_ended()
    driver = flooded.driver()
    await driver.send(flooded.prompt("say ready"))
    await flooded.turn_ended()
    flooded.gate.clear()
    await driver.send(flooded.prompt("flood 3000"))
    await other.drivers[0].send(other.prompt("say second"))
    await other.turn_ended()
    assert other.texts == ["first", "second"]
    flooded.gate.set()
    await flooded.turn_ended()
    assert len(flooded.deltas) == 3000


async def test_text_that_is_not_unicode_never_reaches_the_server(new_session: NewSession) -> None:
    session = new_session(model="fake")
    driver = session.driver()
    await driver.send(session.prompt("say hello"))
    await session.turn_ended()
    with pytest.raises(AgentFailed, match="cannot be sent"):
        await driver.update(model="half\ud800")
    await driver.send(session.prompt("say still here"))
    await session.turn_ended()
    assert not session.exits


async def test_closing_interrupts_what_runs_and_lets_the_server_go(
    new_session: NewSession, processes: ProcessHost
) -> None:
    session = new_session()
    driver = session.driver()
    await driver.send(session.prompt("hang"))
    await session.text_delta("hanging")
    [server] = processes.children
    await driver.close()
    assert session.of(Kind.TURN_ENDED)[0].turn_ended.status == event_pb2.TURN_STATUS_INTERRUPTED
    assert [exit.expected for exit in session.exits] == [True]
    await server.wait_gone()


async def test_a_start_that_is_closed_fails_and_leaves_nothing(
    new_session: NewSession, processes: ProcessHost
) -> None:
    session = new_session()
    driver = session.driver()
    sending = asyncio.create_task(driver.send(session.prompt("say hello")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await driver.close()
    with pytest.raises(AgentFailed):
        await sending
