import asyncio
import json
import math
import sys
from pathlib import Path

from bench import measures

ROOT = Path(__file__).resolve().parents[2]


async def test_the_short_form_gives_the_figures_of_every_measure(tmp_path: Path) -> None:
    """That all of it works: streams complete and in order, or there is no figure. No speed."""
    file = tmp_path / "run.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "--short", "--json", str(file)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    figures = json.loads(file.read_text())["figures"]
    assert {figure["measure"] for figure in figures} == {one.name for one in measures.ALL}
    assert all(math.isfinite(figure["value"]) for figure in figures)
    rates = [figure for figure in figures if figure["unit"].endswith("/s")]
    assert all(figure["value"] > 0 for figure in rates)
