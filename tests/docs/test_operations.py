"""The commands of docs/operations.md, run as they stand there, in a directory of the test's own."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from agentstream.v1 import event_pb2, service_pb2
from agentstream.v1.service_pb2_grpc import AgentServiceStub
from tests.support.e2e import COMPLETED, Bench, lab

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "operations.md").read_text()
BACK_UP, RESTORE = re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, re.M | re.S)
DEADLINE_SECONDS = 60


@asynccontextmanager
async def shell(script: str, cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a script in `cwd`; it is stopped at the end, where it still runs."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", script),
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_a_backup_is_made_and_restored_by_the_commands_of_the_document(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, {}) as daemon, asyncio.timeout(DEADLINE_SECONDS):
        bench = Bench(daemon, "mock", tmp_path, {})
        session = await bench.session()
        assert (await session.turn("say before")).status == COMPLETED
        script = BACK_UP.replace("./agentstream-data", "./data")
        async with shell(script, tmp_path) as made:
            await made.communicate()
        assert made.returncode == 0
        seen = list(session.events)
        await bench.finish()

    head, found, command = RESTORE.rpartition("agentstreamd ")
    assert found
    script = f"{head}exec {found}--listen 127.0.0.1:0 {command}"
    async with shell(script, tmp_path) as restored, asyncio.timeout(DEADLINE_SECONDS):
        assert restored.stdout is not None
        line = (await restored.stdout.readline()).decode()
        assert line.startswith("agentstreamd listening on ")
        async with aio.insecure_channel(line.split()[-1]) as channel:
            request = service_pb2.StreamEventsRequest(session_id=session.id)
            got: list[event_pb2.Event] = []
            async for response in AgentServiceStub(channel).StreamEvents(request):
                got += response.batch.events
        assert got == seen
    assert restored.returncode == 0
