import asyncio
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

from agentstreamd.process import ExitStatus, ProcessHost, SpawnFailed, StopPolicy, sweep_leftovers

from .trees import TREE, await_end, command, is_running, python, read_pids, shell

# Plays the daemon: starts a tree, tells who is who, and waits to be killed.
DAEMON = """
import asyncio, json, sys
from agentstreamd.process import ProcessHost
from tests.unit.process.trees import TREE, python, read_pids
async def main():
    host = ProcessHost(sys.argv[1])
    child = await host.spawn(python(TREE, "strip", "deaf"))
    pids = await read_pids(child, 7)
    pids |= {"keeper": child.keeper_pid, "supervisor": host.supervisor_pid}
    print(json.dumps(pids), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
REPOSITORY = Path(__file__).parents[3]


async def start_daemon(instance: str) -> tuple[asyncio.subprocess.Process, dict[str, int]]:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "server")])
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        DAEMON,
        instance,
        env=os.environ | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
    )
    assert daemon.stdout is not None
    line = await daemon.stdout.readline()
    return daemon, json.loads(line)


def still_running(pids: dict[str, int], seconds: float) -> set[str]:
    deadline = time.monotonic() + seconds
    return {
        label
        for label, pid in pids.items()
        if not await_end(pid, max(0.0, deadline - time.monotonic()))
    }


@pytest.mark.parametrize("with_supervisor", [False, True])
async def test_nothing_outlives_a_killed_daemon_for_five_seconds(with_supervisor: bool) -> None:
    daemon, pids = await start_daemon("killed-daemon")
    if with_supervisor:
        os.kill(pids["supervisor"], signal.SIGKILL)
    daemon.kill()
    await daemon.wait()
    assert still_running(pids, 5.0) == set()


async def test_a_daemon_killed_with_keeper_and_supervisor_leaves_what_the_next_one_finds() -> None:
    instance = f"killed-all-{uuid.uuid4()}"
    daemon, pids = await start_daemon(instance)
    for pid in (pids["supervisor"], pids["keeper"], daemon.pid):
        os.kill(pid, signal.SIGKILL)
    await daemon.wait()
    assert still_running({"main": pids["main"]}, 5.0) == set()
    os.kill(pids.pop("stripped"), signal.SIGKILL)  # the one case that nothing can find
    assert is_running(pids["deaf"])
    result = await asyncio.to_thread(sweep_leftovers, instance, term_grace_seconds=0.2)
    assert {who.pid for who in result.ended} >= {pids[name] for name in ("deaf", "deafdaemon")}
    assert result.survivors == ()
    assert still_running(pids, 0.0) == set()


async def test_a_killed_keeper_takes_its_tree_along(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "strip", "deaf"))
    bystander = await host.spawn(command("cat"))
    pids = await read_pids(child, 7)
    os.kill(child.keeper_pid, signal.SIGKILL)
    assert await child.wait_gone() == ExitStatus(signal=9, supervision_lost=True)
    assert await child.stop() == child.exit_status
    # The one without a marker is ended by the supervisor, of which nobody waits.
    assert still_running(pids, 5.0) == set()
    assert is_running(bystander.pid)
    assert (await host.spawn(command("true"))).pid


async def test_a_killed_supervisor_is_replaced_and_its_processes_live_on(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "strip", "deaf"))
    pids = await read_pids(child, 7)
    supervisor = host.supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    await_end(supervisor)
    other = await host.spawn(command("cat"))
    assert host.supervisor_pid not in (None, supervisor)
    assert is_running(pids["main"])
    await child.stop()
    assert still_running(pids, 0.0) == set()
    await other.stdin.write(b"hello")
    assert await other.stdout.read() == b"hello"


async def test_starts_under_way_fail_when_the_supervisor_is_killed(host: ProcessHost) -> None:
    supervisor = host.supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)
    starts = [asyncio.create_task(host.spawn(command("cat"))) for _ in range(5)]
    await asyncio.wait(starts, timeout=0.1)
    os.kill(supervisor, signal.SIGKILL)
    for result in await asyncio.gather(*starts, return_exceptions=True):
        assert isinstance(result, SpawnFailed)
        assert "supervisor" in str(result)
    assert (await host.spawn(command("cat"))).pid


async def test_a_supervisor_killed_unnoticed_is_replaced(host: ProcessHost) -> None:
    supervisor = host.supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    await_end(supervisor)  # blocks the loop, so that the host can't have noticed
    assert host.supervisor_pid == supervisor
    child = await host.spawn(command("cat"))
    assert is_running(child.pid)
    assert host.supervisor_pid != supervisor


async def test_killed_supervisor_and_keeper_leave_nothing_that_is_marked(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "deaf"))
    pids = await read_pids(child, 6)
    assert host.supervisor_pid is not None
    os.kill(host.supervisor_pid, signal.SIGKILL)
    os.kill(child.keeper_pid, signal.SIGKILL)
    await child.wait_gone()
    assert still_running(pids, 0.0) == set()


async def test_a_command_that_crosses_the_end_costs_no_report(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    os.kill(child.pid, signal.SIGUSR1)
    await_end(child.pid)
    await_end(child.keeper_pid, 0.2)  # blocks the loop: the reports lie unread in the channel
    child.kill()
    assert await child.wait_gone() == ExitStatus(signal=signal.SIGUSR1)


async def test_a_start_that_takes_too_long_fails(host: ProcessHost) -> None:
    supervisor = host.supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)
    with pytest.raises(SpawnFailed, match=r"did not start within 0\.1 seconds"):
        await host.spawn(command("cat", start_timeout_seconds=0.1))
    os.kill(supervisor, signal.SIGCONT)
    child = await host.spawn(command("cat"))
    assert host.children == {child}


async def test_a_keeper_that_does_not_answer_can_not_hold_up_a_stop(
    host: ProcessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentstreamd.process.child._KEEPER_MARGIN_SECONDS", -1.9)
    brief = StopPolicy(term_grace_seconds=0, sweep_grace_seconds=0)
    child = await host.spawn(shell("setsid sleep 1000 & echo sleep $!; cat", stop=brief))
    pids = await read_pids(child, 1) | {"main": child.pid}
    os.kill(child.keeper_pid, signal.SIGSTOP)
    status = await child.stop()
    assert status.supervision_lost
    assert still_running(pids, 0.0) == set()
    os.kill(child.keeper_pid, signal.SIGCONT)
