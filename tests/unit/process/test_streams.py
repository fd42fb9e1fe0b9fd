import asyncio
import hashlib
import os
import signal
from pathlib import Path

import pytest

from agentstreamd.process import ExitStatus, ProcessGone, ProcessHost

from .trees import await_end, command, python, read_all, shell

MEBIBYTE = 2**20


async def test_large_data_passes_through_both_ways(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    data = bytes(range(256)) * 4096 * 20
    reading = asyncio.create_task(read_all(child))
    await child.stdin.write(data)
    child.close_stdin()
    assert hashlib.sha256(await reading).digest() == hashlib.sha256(data).digest()
    assert await child.wait() == ExitStatus(code=0)


async def test_concurrent_writes_do_not_mix(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    lines = [bytes([65 + n]) * 100_000 + b"\n" for n in range(20)]
    reading = asyncio.create_task(read_all(child))
    await asyncio.gather(*(child.stdin.write(line) for line in lines))
    child.close_stdin()
    assert sorted((await reading).splitlines(keepends=True)) == lines


async def test_a_write_waits_until_the_process_reads(host: ProcessHost) -> None:
    code = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print(flush=True)
signal.sigwait([signal.SIGUSR1])
print(len(sys.stdin.read()))
"""
    child = await host.spawn(python(code))
    assert await child.stdout.read() == b"\n"

    async def write_all() -> None:
        for _ in range(64):
            await child.stdin.write(b"x" * 65536)

    write = asyncio.create_task(write_all())
    done, _ = await asyncio.wait({write}, timeout=0.2)
    assert not done
    child.send_signal(signal.SIGUSR1)
    await write
    child.close_stdin()
    assert await read_all(child) == b"%d\n" % (4 * MEBIBYTE)


async def test_a_write_to_a_dead_process_fails(host: ProcessHost) -> None:
    child = await host.spawn(shell("exit 0", label="the agent"))
    await child.wait()
    with pytest.raises(ProcessGone, match="the agent no longer reads"):
        await child.stdin.write(b"x")
    with pytest.raises(ProcessGone, match=r"has ended \(exit code 0\)"):
        child.send_signal(signal.SIGINT)


async def test_a_write_fails_although_the_death_is_not_reported_yet(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    os.kill(child.pid, signal.SIGKILL)
    await_end(child.pid)  # blocks the loop
    with pytest.raises(ProcessGone):
        await child.stdin.write(b"x")


async def test_a_waiting_write_fails_when_the_process_dies(host: ProcessHost) -> None:
    child = await host.spawn(shell("echo; exec sleep 1000"))
    await child.stdout.read()
    write = asyncio.create_task(child.stdin.write(b"x" * 4 * MEBIBYTE))
    await asyncio.sleep(0)
    child.kill()
    with pytest.raises(ProcessGone):
        await write


async def test_a_waiting_write_fails_when_the_process_closes_its_input(host: ProcessHost) -> None:
    child = await host.spawn(shell("read line; exec <&-; echo closed; exec sleep 1000"))
    write = asyncio.create_task(child.stdin.write(b"go\n" + b"x" * 4 * MEBIBYTE))
    assert await child.stdout.read() == b"closed\n"
    with pytest.raises(ProcessGone):
        await write
    with pytest.raises(ProcessGone):
        await child.stdin.write(b"more")
    assert child.exit_status is None


async def test_a_write_after_close_fails(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    child.close_stdin()
    child.close_stdin()
    with pytest.raises(ProcessGone, match="closed"):
        await child.stdin.write(b"x")
    assert await child.wait() == ExitStatus(code=0)


async def test_a_process_waits_for_a_slow_reader(host: ProcessHost, tmp_path: Path) -> None:
    code = """
import os, signal
os.set_blocking(1, False)
size = 0
try:
    while True:
        size += os.write(1, bytes(65536))
except BlockingIOError:
    os.write(2, b"full")
    os.set_blocking(1, True)
    os.write(1, bytes(1000000))
open("size", "w").write(str(size + 1000000))
"""
    child = await host.spawn(python(code, cwd=str(tmp_path)))
    total = len(await read_all(child))
    assert (tmp_path / "size").read_text() == str(total)
    assert child.stderr.text() == "full"


async def test_output_is_read_to_its_end_after_the_exit(host: ProcessHost) -> None:
    child = await host.spawn(python("import os; os.write(1, b'x' * 60000); os.write(2, b'bye')"))
    await child.wait_gone()
    assert len(await read_all(child)) == 60000
    assert await child.stdout.read() == b""
    assert child.stderr.text() == "bye"


async def test_a_descendant_that_holds_the_output_open_does_not_hold_up_its_end(
    host: ProcessHost,
) -> None:
    child = await host.spawn(shell("trap '' TERM; echo a; setsid sleep 1000 & echo b"))
    assert await read_all(child) == b"a\nb\n"
    assert await child.wait_gone() == ExitStatus(code=0)


async def test_a_cancelled_read_loses_nothing(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    received = b""
    for n in range(50):
        read = asyncio.create_task(child.stdout.read())
        await child.stdin.write(b"%d," % n)
        for _ in range(n % 5):
            await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait({read})
        if not read.cancelled():
            received += read.result()
    child.close_stdin()
    received += await read_all(child)
    assert received == b"".join(b"%d," % n for n in range(50))


async def test_only_one_task_reads(host: ProcessHost) -> None:
    child = await host.spawn(command("cat"))
    first = asyncio.create_task(child.stdout.read())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await child.stdout.read()
    child.close_stdin()
    assert await first == b""


async def test_reading_without_pause_lets_others_run(host: ProcessHost) -> None:
    child = await host.spawn(shell("echo; exec cat /dev/zero"))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(100):
        await child.stdout.read()
    task.cancel()
    assert turns >= 90


async def test_a_flood_of_errors_is_read_and_kept_in_part(host: ProcessHost) -> None:
    code = "import sys; sys.stderr.write('first\\n' + 'x' * 30_000_000 + '\\nlast')"
    child = await host.spawn(python(code))
    assert await child.wait_gone() == ExitStatus(code=0)
    assert child.stderr.total_bytes == 30_000_011
    assert child.stderr.head().startswith("first\nxxx")
    assert child.stderr.tail().endswith("xxx\nlast")
    assert len(child.stderr.text()) < 66_000
    assert "bytes left out" in child.stderr.text()


async def test_errors_can_be_seen_while_the_process_runs(host: ProcessHost) -> None:
    # The shell answers only when the message was written, so the loop's next turns have it.
    child = await host.spawn(shell("echo careful >&2; echo said; exec sleep 1000"))
    await child.stdout.read()
    for _ in range(3):
        await asyncio.sleep(0)
    assert child.stderr.text() == "careful\n"
    assert child.exit_status is None
