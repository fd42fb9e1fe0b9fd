"""Class of fault: the log has become very large.

Budget: 200,000 events in the short form, 10 million in the long one. Opening reads no more than it
does for a small log, and a session is paged through in a bounded amount of memory. Counted, not
timed; docs/operations.md has the times.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

from tests.faults.scale import scaled

FEW = 2_000
MANY = scaled(200_000, 10_000_000)
KIB = 1 << 10
MIB = 1 << 20


async def tool(command: str, directory: Path, *arguments: str) -> dict[str, float]:
    """Run `large_log` in a process of its own; its answer."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.large_log", command, str(directory), *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await process.communicate()
    assert process.returncode == 0
    measured: dict[str, float] = json.loads(answer)
    return measured


async def test_a_log_of_many_events_opens_like_a_small_one_and_is_paged_in_bounded_memory(
    tmp_path: Path,
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    await tool("fill", small, str(FEW))
    filled = await tool("fill", large, str(MANY))
    assert filled["file_mib"] * MIB > MANY * 50
    few, many = await tool("measure", small), await tool("measure", large)
    shutil.rmtree(large)  # gigabytes, in the long form
    assert (few["events"], many["events"]) == (FEW, MANY)
    assert many["latest"] == MANY
    assert many["open_bytes"] < few["open_bytes"] + 64 * KIB
    assert many["largest_batch"] <= 2 * MIB
    assert many["memory_growth"] < 64 * MIB
