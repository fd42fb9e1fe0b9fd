"""Catches: what an agent could write that breaks its normalizer, the line framer or a law.

Budget: a bounded number of inputs for each agent, each within `INPUT_SECONDS`. They are mutations,
guided by the code that they reach, of the recorded transcripts and of `corpus/AGENT`, where what
was found once stays. What an input does wrong is printed, with the path of the input.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.faults.scale import SEED, scaled
from tools.transcripts import scenarios

AGENTS = ("amp", "claude", "codex", "opencode")
INPUTS = scaled(2_000, 100_000)
INPUT_SECONDS = 20
MAX_INPUT_BYTES = 24 * 1024
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("agent", AGENTS)
async def test_nothing_that_an_agent_writes_breaks_a_law(agent: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(CORPUS / agent, corpus)
    for number, recorded in enumerate(_recorded(agent)):
        shutil.copy(recorded, corpus / f"recorded-{number}")
    fuzzing = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.faults.fuzz_normalizers", agent),
        *(f"-runs={INPUTS}", f"-seed={SEED}", f"-timeout={INPUT_SECONDS}"),
        *(f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={tmp_path}/"),
        corpus,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    output, _ = await fuzzing.communicate()
    said = output.decode(errors="replace")
    assert fuzzing.returncode == 0, said[-6_000:]
    assert f"Done {INPUTS} runs" in said


def _recorded(agent: str) -> list[Path]:
    """The recordings of an agent that are small enough to be mutated whole."""
    paths = [
        process.path("native")
        for scenario in scenarios()
        if scenario.agent == agent
        for process in scenario.processes
    ]
    small = [path for path in paths if path.stat().st_size <= MAX_INPUT_BYTES]
    assert small
    return small
