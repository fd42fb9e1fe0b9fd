"""Commands through pipes: what programs and scripts see."""

import asyncio
import signal
from pathlib import Path

import pytest

from agentstream.client import connect_aio
from agentstream.v1 import service_pb2, session_pb2
from tests.cli.conftest import Cli
from tests.support.daemon import Daemon, daemon

PERMISSION = 'ask permission command "rm -rf build"'


async def test_run_writes_one_event_per_line_from_the_first_to_the_last(cli: Cli) -> None:
    done = await cli("run", "--json", "say hello")
    assert done.code == 0
    assert done.kinds[0] == "sessionStarted"
    assert done.kinds[-2:] == ["turnEnded", "sessionEnded"]
    assert [int(event["sequence"]) for event in done.json] == list(range(1, len(done.json) + 1))
    assert done.json[0]["sessionStarted"]["workingDirectory"] == str(cli.directory)


async def test_run_reads_its_prompt_from_standard_input(cli: Cli) -> None:
    done = await cli("run", "--quiet", "-", stdin='say "two\\nlines"')
    assert (done.code, done.out) == (0, "two\nlines\n")


async def test_run_for_people_is_plain_through_a_pipe(cli: Cli) -> None:
    done = await cli("run", "say **bold** `code`")
    assert "**bold** `code`" in done.out
    assert "✓ completed" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("policy", "decision", "notice"),
    [
        (["--permission-policy", "accept"], "REQUEST_OUTCOME_ACCEPTED", ""),
        (["--permission-policy", "reject"], "REQUEST_OUTCOME_REJECTED", ""),
        ([], "REQUEST_OUTCOME_REJECTED", "no terminal to ask on"),
    ],
)
async def test_a_policy_answers_where_there_is_no_terminal(
    cli: Cli, policy: list[str], decision: str, notice: str
) -> None:
    done = await cli("run", "--json", *policy, PERMISSION)
    resolved = [e["permissionResolved"] for e in done.json if "permissionResolved" in e]
    assert [(r["outcome"], r["resolvedBy"]) for r in resolved] == [(decision, "RESOLVED_BY_CLIENT")]
    assert notice in done.err
    assert bool(done.err) == bool(notice)


async def test_asking_without_a_terminal_is_wrong_usage(cli: Cli) -> None:
    done = await cli("run", "--permission-policy", "ask", "say x")
    assert (done.code, done.out) == (2, "")
    assert "no terminal to ask on" in done.err


async def test_a_failed_turn_exits_with_1(cli: Cli) -> None:
    done = await cli("run", 'fail rate_limited "slow down"')
    assert done.code == 1
    assert "✗ failed: slow down" in done.out


async def test_a_timeout_interrupts_the_turn(cli: Cli) -> None:
    done = await cli("run", "--json", "--timeout", "0.5", "delay 60s")
    assert done.code == 1
    assert "interrupting it" in done.err
    ended = next(event["turnEnded"] for event in done.json if "turnEnded" in event)
    assert ended["status"] == "TURN_STATUS_INTERRUPTED"


async def test_ctrl_c_interrupts_the_turn_and_ends_the_session(cli: Cli) -> None:
    process = await cli.start("run", "--json", 'say "ready"\ndelay 60s')
    assert process.stdout is not None
    out = b""
    while b"ready" not in out.split(b"itemDelta")[-1] or b"itemDelta" not in out:
        out += await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, err = await process.communicate()
    assert process.returncode == 130
    assert b"TURN_STATUS_INTERRUPTED" in rest
    assert b"sessionEnded" in rest
    assert b"Ctrl-C once more" in err


async def test_events_resume_where_the_stream_was_left(cli: Cli) -> None:
    live = await cli("run", "--json", "say one two three")
    session = live.json[0]["sessionId"]
    middle = len(live.json) // 2
    tail = await cli("events", session, "--after", str(middle), "--json", "--follow")
    assert tail.out.splitlines() == live.out.splitlines()[middle:]


async def test_events_of_some_kinds_with_what_the_agent_wrote(cli: Cli) -> None:
    live = await cli("run", "--json", "say hello")
    session = live.json[0]["sessionId"]
    done = await cli("events", session, "--kinds", "item_completed,turn_ended", "--raw", "--json")
    assert set(done.kinds) == {"itemCompleted", "turnEnded"}
    assert any("hello" in native.get("text", "") for e in done.json for native in e.get("raw", ()))
    drawn = await cli("events", session, "--raw")
    assert " ← {" in drawn.out


async def test_a_request_is_shown_answered_and_then_gone(cli: Cli) -> None:
    await create_waiting(cli, "s", PERMISSION)
    shown = await cli("respond", "s")
    assert "? May it run a command?" in shown.out
    answered = await cli("respond", "s", "--reject", "--message", "not now")
    assert answered.out == "✗ rejected: not now  by client\n"
    again = await cli("respond", "s", "--accept")
    assert (again.code, again.err) == (5, "agentstream: The session waits for no answer.\n")


async def test_questions_are_answered_by_label_number_or_words(cli: Cli) -> None:
    script = 'ask question "Colour?" Red | Green ;; free "Name?"'
    await create_waiting(cli, "asking", script)
    wrong = await cli("respond", "asking", "--answer", "q1=Blue", "--answer", "q2=Ada")
    assert wrong.code == 2
    assert "'Blue' is none of the options" in wrong.err
    unclear = await cli("respond", "asking", "--answer", "Red")
    assert "say which question" in unclear.err
    done = await cli("respond", "asking", "--answer", "q1=2", "--answer", "q2=Ada")
    assert done.out == "✓ accepted: Green; Ada  by client\n"


async def test_a_turn_is_interrupted_the_session_ended_and_deleted(cli: Cli) -> None:
    await create_waiting(cli, "s", PERMISSION)
    assert "s " in (await cli("sessions", "--live")).out
    interrupted = await cli("interrupt", "s")
    assert interrupted.out.endswith(": interrupted.\n")
    idle = await cli("interrupt", "s")
    assert idle.code == 4
    assert (await cli("end", "s")).out == "Ended s.\n"
    assert (await cli("sessions", "--live")).err == "No sessions.\n"
    assert (await cli("delete", "s")).out == "Deleted s.\n"
    gone = await cli("events", "s")
    assert (gone.code, gone.out) == (5, "")
    assert "`agentstream sessions` lists them" in gone.err


async def test_sessions_are_found_by_label(cli: Cli) -> None:
    await cli("run", "--label", "team=a", "--title", "First", "say x")
    await cli("run", "--label", "team=b", "say x")
    done = await cli("sessions", "--label", "team=a")
    assert "First team=a" in done.out
    assert "team=b" not in done.out
    listed = (await cli("sessions", "--json")).json
    assert [session["config"]["labels"]["team"] for session in listed] == ["a", "b"]


async def test_doctor_says_what_works_and_what_to_do(cli: Cli) -> None:
    done = await cli("doctor", "mock")
    assert done.code == 0
    assert done.out.splitlines()[0] == f"✓ the daemon at {cli.address} answers"
    assert done.out.splitlines()[1].startswith("✓ mock: installed (")
    assert done.out.splitlines()[1].endswith("), logged in (it needs none)")
    everything = await cli("doctor")
    assert all(f" {name}: " in everything.out for name in ("amp", "claude", "codex", "opencode"))
    nobody = await cli("doctor", "nobody")
    assert (nobody.code, nobody.out.splitlines()[1:]) == (
        1,
        ["✗ nobody: the daemon knows no such agent"],
    )


async def test_doctor_tries_agents_where_it_is_told_to(cli: Cli) -> None:
    done = await cli("doctor", "mock", "--try", "--task", "say ok")
    assert (done.code, done.out.splitlines()[1][:15]) == (0, "✓ mock: answers")
    failed = await cli("doctor", "mock", "--try", "--task", "fail authentication Please log in.")
    assert failed.code == 1
    assert "✗ mock: it is not logged in, or its key is wrong" in failed.out
    assert "(Please log in.)" in failed.out
    # Nobody is there to answer what it asks.
    asking = await cli("doctor", "mock", "--try", "--task", 'ask permission command "rm -rf /"')
    assert asking.code == 0


async def test_agents_are_listed_and_described(cli: Cli) -> None:
    done = await cli("agents")
    assert any(line.split()[:2] == ["mock", "available"] for line in done.out.splitlines())
    assert "text deltas" in (await cli("agents", "mock")).out
    unknown = await cli("agents", "nobody")
    assert (unknown.code, unknown.out) == (5, "")


async def test_content_too_large_for_an_event_is_written_whole(cli: Cli, tmp_path: Path) -> None:
    done = await cli("run", "--json", "text 2MB")
    parts = [
        part
        for event in done.json
        for part in event.get("itemCompleted", {}).get("item", {}).get("content", ())
        if "external" in part
    ]
    blob = parts[0]["external"]["blobId"]
    session = done.json[0]["sessionId"]
    file = tmp_path / "whole"
    assert (await cli("blob", session, blob, "--output", str(file))).code == 0
    assert file.stat().st_size == 2 * 1024 * 1024
    piece = await cli("blob", session, blob, "--offset", "4", "--limit", "5")
    assert piece.out == "quick"
    missing = await cli("blob", session, "nothing")
    assert missing.code == 5


async def test_a_stream_is_followed_across_a_restart_of_the_daemon(
    cli: Cli, running: Daemon, tmp_path: Path
) -> None:
    await create_waiting(cli, "s", PERMISSION)
    follower = await cli.start("events", "s", "--follow", "--json")
    assert follower.stdout is not None
    lines = [await follower.stdout.readline() for _ in range(3)]
    await running.kill()
    async with daemon(tmp_path / "data", listen=(cli.address,)):
        assert (await cli("end", "s")).code == 0
        rest, _ = await follower.communicate()
        whole = await cli("events", "s", "--json")
    assert follower.returncode == 0
    assert b"".join(lines) + rest == whole.out.encode()


async def test_nobody_at_the_address_exits_with_3(cli: Cli) -> None:
    nowhere = f"unix:{cli.directory}/nobody"
    cli.environment["AGENTSTREAM_ADDRESS"] = nowhere
    for arguments in (["sessions"], ["run", "x"], ["events", "s"]):
        done = await cli(*arguments)
        assert (done.code, done.out) == (3, "")
        assert done.err == f"agentstream: No daemon at {nowhere}: start one with `agentstreamd`.\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["run"], ["run", " "], ["events", "s", "--kinds", "x"], ["replay", "x"]],
)
async def test_wrong_usage_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    assert (await cli(*arguments)).code == 2


async def test_a_reader_that_has_seen_enough_is_no_failure(cli: Cli) -> None:
    live = await cli("run", "--json", "repeat 2000 delta x")
    process = await cli.start("events", live.json[0]["sessionId"], "--json")
    assert process.stdout is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    assert await process.stderr.read() == b""
    assert await process.wait() == 0


async def create_waiting(cli: Cli, session: str, script: str) -> None:
    """A session whose agent has asked `script` and waits."""
    async with connect_aio(cli.address) as client:
        config = session_pb2.SessionConfig(agent="mock", working_directory=str(cli.directory))
        await client.stub.CreateSession(
            service_pb2.CreateSessionRequest(session_id=session, config=config)
        )
        async with asyncio.timeout(20), client.follow(session) as events:
            await events.open()
            part = service_pb2.InputPart(text=script)
            await client.stub.SendMessage(
                service_pb2.SendMessageRequest(session_id=session, parts=[part])
            )
            async for event in events:
                if event.HasField("permission_requested") or event.HasField("question_requested"):
                    return
