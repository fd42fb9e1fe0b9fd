import asyncio
import os
import signal

import pytest

from agentstreamd.process import ChildProcess, ExitStatus, ProcessHost, StopPolicy

from .trees import TREE, is_running, python, read_pids, shell

PATIENT = StopPolicy(polite_grace_seconds=60, term_grace_seconds=60, sweep_grace_seconds=60)


async def test_nothing_of_the_tree_is_left_after_a_stop(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "strip"))
    pids = await read_pids(child, 7)
    assert await child.stop() == ExitStatus(signal=signal.SIGTERM)
    assert child.is_gone
    assert {label for label, pid in pids.items() if is_running(pid)} == set()


async def test_nothing_of_the_tree_is_left_after_an_exit(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "strip", "exit"))
    pids = await read_pids(child, 6)
    await child.stdin.write(b"\n")
    assert await child.wait_gone() == ExitStatus(code=7)
    assert {label for label, pid in pids.items() if is_running(pid)} == set()


async def test_a_process_that_ignores_term_is_killed(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "deaf"))
    pids = await read_pids(child, 6)
    assert await child.stop() == ExitStatus(signal=signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids.values())


async def test_a_kill_asks_nobody(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, stop=PATIENT))
    pids = await read_pids(child, 6)
    child.kill()
    assert await child.wait_gone() == ExitStatus(signal=signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids.values())


async def test_a_stopped_process_can_be_ended(host: ProcessHost) -> None:
    child = await host.spawn(shell("echo main $$; kill -STOP $$", stop=PATIENT))
    await read_pids(child, 1)
    assert await child.stop() == ExitStatus(signal=signal.SIGTERM)


async def test_processes_that_fork_while_they_are_swept_are_all_ended(host: ProcessHost) -> None:
    # Each generation runs in a session of its own, ignores TERM, and lives only to fork the next.
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"main {os.getpid()}\\n".encode())
if os.fork() == 0:
    while True:
        os.setsid()
        time.sleep(0.002)
        if os.fork():
            os._exit(0)
os.close(1)
signal.pause()
"""
    child = await host.spawn(python(code))
    await read_pids(child, 1)
    await child.stop()
    assert await child.stdout.read() == b""
    assert child.is_gone


async def test_the_group_signal_of_a_process_does_not_hit_its_keeper(host: ProcessHost) -> None:
    child = await host.spawn(shell("kill -9 0"))
    status = await child.wait_gone()
    assert status == ExitStatus(signal=signal.SIGKILL)
    assert not status.supervision_lost


async def test_the_polite_step_comes_first(host: ProcessHost) -> None:
    child = await host.spawn(shell("cat; echo polite; exit 4", stop=PATIENT))

    async def polite() -> None:
        child.close_stdin()

    assert await child.stop(polite) == ExitStatus(code=4)
    assert await child.stdout.read() == b"polite\n"


async def test_a_polite_step_that_hangs_or_fails_does_not_hold_up_the_stop(
    host: ProcessHost,
) -> None:
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fail() -> None:
        raise OSError("no way")

    hanging, failing = [await host.spawn(shell("exec sleep 1000")) for _ in range(2)]
    assert await hanging.stop(hang) == ExitStatus(signal=signal.SIGTERM)
    await cancelled.wait()
    patient = await host.spawn(shell("exec sleep 1000", stop=StopPolicy(polite_grace_seconds=1000)))
    assert await patient.stop(fail) == ExitStatus(signal=signal.SIGTERM)
    await failing.stop(fail)


async def test_stops_join_and_survive_a_cancelled_caller(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "deaf"))
    pids = await read_pids(child, 6)
    first = asyncio.create_task(child.stop())
    others = [asyncio.create_task(child.stop()) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    assert await asyncio.gather(*others) == [ExitStatus(signal=signal.SIGKILL)] * 3
    assert await child.stop() == ExitStatus(signal=signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids.values())


async def test_a_kill_cuts_a_patient_stop_short(host: ProcessHost) -> None:
    child = await host.spawn(python(TREE, "deaf", stop=PATIENT))
    await read_pids(child, 6)
    stop = asyncio.create_task(child.stop())
    await asyncio.sleep(0)
    child.kill()
    assert await stop == ExitStatus(signal=signal.SIGKILL)


async def test_closing_the_host_ends_all_trees(host: ProcessHost) -> None:
    children: list[ChildProcess] = [await host.spawn(python(TREE, "deaf")) for _ in range(3)]
    pids = [pid for child in children for pid in (await read_pids(child, 6)).values()]
    supervisor = host.supervisor_pid
    assert supervisor is not None
    await host.close()
    assert not any(is_running(pid) for pid in [*pids, supervisor])
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor, 0)  # reaped
