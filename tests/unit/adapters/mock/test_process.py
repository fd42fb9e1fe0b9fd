"""The mock agent as a real process."""

from pathlib import Path

import pytest

from agentstream.v1 import error_pb2, event_pb2
from agentstreamd.adapters.base import AgentFailed
from tests.unit.adapters.mock.conftest import NewSession
from tests.unit.adapters.mock.harness import Session
from tests.unit.adapters.mock.test_scripts import EVERYTHING

PROCESS = {"process": "true"}


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_process_writes_the_same_stream(new_session: NewSession) -> None:
    inside, outside = new_session(), new_session(options=PROCESS)
    for session in (inside, outside):
        await session.turn(EVERYTHING)
    assert outside.violations() == []
    assert [event.SerializeToString(deterministic=True) for event in outside.events] == [
        event.SerializeToString(deterministic=True) for event in inside.events
    ]


@pytest.mark.parametrize(
    ("fault", "exit_code", "signal"),
    [("exit 3", 3, None), ("exit 0", 0, None), ("crash 9", None, 9), ("crash", None, 11)],
)
async def test_a_process_that_ends_in_a_turn_fails_it(
    new_session: NewSession, fault: str, exit_code: int | None, signal: int | None
) -> None:
    session = new_session(options=PROCESS)
    ended = await session.turn(f"stderr something is wrong\ndelta Hel\n{fault}")
    assert ended.status == event_pb2.TURN_STATUS_FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_AGENT_EXITED
    (exit,) = session.exits
    assert (exit.exit_code, exit.signal, exit.expected) == (exit_code, signal, False)
    assert exit.stderr_head == "something is wrong\n"
    assert session.texts() == ["Hel"]
    await session.turn("recall")
    assert session.texts()[-1] == "turn 2 of mock-s"
    assert session.violations() == []


async def test_a_last_line_without_end_is_read(new_session: NewSession) -> None:
    session = new_session(options=PROCESS)
    await session.turn('unterminated {"type":"error","message":"last words"}')
    assert [event.error.message for event in session.payloads("error")] == ["last words"]


async def test_closing_ends_what_the_process_started(
    new_session: NewSession, tmp_path: Path
) -> None:
    session = new_session(options=PROCESS)
    await session.turn(f"spawn {tmp_path}/plain\nspawn {tmp_path}/detached setsid\nrefuse term")
    pids = [int((tmp_path / name).read_text()) for name in ("plain", "detached")]
    assert all(is_running(pid) for pid in pids)
    await session.driver.close()
    assert not any(is_running(pid) for pid in pids)


async def test_a_shared_process_that_is_killed_takes_all_its_sessions(
    new_session: NewSession,
) -> None:
    options = {**PROCESS, "shared_host": "true"}
    sessions: list[Session] = [new_session(session_id=name, options=options) for name in "ab"]
    await sessions[0].start("say here\nwait interrupt")
    await sessions[0].streaming()
    await sessions[1].turn("crash 9")
    await sessions[0].ended()
    assert [exit.signal for session in sessions for exit in session.exits] == [9, 9]
    assert all(session.violations() == [] for session in sessions)


async def test_an_agent_that_cannot_start_fails_the_message(new_session: NewSession) -> None:
    session = new_session(options={"start_error": "no luck today"})
    with pytest.raises(AgentFailed, match="no luck today"):
        await session.start("say hi")


async def test_the_environment_reaches_the_process_by_name_only(new_session: NewSession) -> None:
    session = new_session(options=PROCESS)
    session.config.env["TOKEN"] = "secret"
    await session.turn("settings")
    assert "secret" not in session.texts()[0]
