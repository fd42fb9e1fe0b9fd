import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import compare
from bench.figures import Figure
from bench.results import Results


def results(*rounds: float, better: str = "higher", aim: float | None = None) -> Results:
    made = Results()
    for value in rounds:
        made.add("ingest", [Figure("claude", value, "lines/s", better, aim)])  # type: ignore[arg-type]
    return made


def shown(table: object) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def written(path: Path, *rounds: float, better: str = "higher") -> Path:
    results(*rounds, better=better).write(path)
    return path


def test_a_figure_is_the_median_of_its_rounds_and_all_of_them_are_kept(tmp_path: Path) -> None:
    run = json.loads(written(tmp_path / "run.json", 1000, 3000, 1100).read_text())
    [figure] = run["figures"]
    assert (figure["measure"], figure["name"], figure["value"]) == ("ingest", "claude", 1100)
    assert figure["values"] == [1000, 3000, 1100]
    assert run["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("better", "value", "missed"),
    [("higher", 99, True), ("higher", 100, False), ("lower", 101, True), ("lower", 100, False)],
)
def test_an_aim_is_missed_on_its_wrong_side(better: str, value: float, missed: bool) -> None:
    [result] = results(value, better=better, aim=100)
    assert result.missed is missed


def test_a_measure_that_was_void_once_has_no_figures_and_the_others_have(tmp_path: Path) -> None:
    made = results(100)
    made.add("replay", [Figure("all", 1, "events/s")])
    made.void("ingest", "event 3 came after 1")
    made.add("ingest", [Figure("claude", 100, "lines/s")])
    made.write(tmp_path / "run.json")
    run = json.loads((tmp_path / "run.json").read_text())
    assert [figure["measure"] for figure in run["figures"]] == ["replay"]
    assert run["voids"] == {"ingest": "event 3 came after 1"}


def test_the_table_shows_value_spread_aim_and_unit() -> None:
    line = next(
        line
        for line in shown(results(1000, 3000, 1100, aim=500).table()).splitlines()
        if "claude" in line
    )
    assert [part.strip() for part in line.strip("│").split("│")] == [
        "ingest",
        "claude",
        "1,100",
        "1,000 - 3,000",
        "500",
        "lines/s",
    ]


@pytest.mark.parametrize(
    ("better", "before", "after", "verdict"),
    [
        ("higher", (100, 110), (150, 160), "better"),
        ("higher", (150, 160), (100, 110), "worse"),
        ("lower", (150, 160), (100, 110), "better"),
        ("higher", (100, 130), (120, 160), ""),
    ],
)
def test_two_runs_are_set_side_by_side_and_judged_where_their_rounds_do_not_overlap(
    tmp_path: Path,
    better: str,
    before: tuple[float, ...],
    after: tuple[float, ...],
    verdict: str,
) -> None:
    one = compare.load(written(tmp_path / "one.json", *before, better=better))
    other = compare.load(written(tmp_path / "other.json", *after, better=better))
    [line] = [line for line in shown(compare.compare(one, other)).splitlines() if "claude" in line]
    cells = [part.strip() for part in line.strip("│").split("│")]
    ratio = (sum(after) / 2) / (sum(before) / 2)
    assert cells[3:] == [f"{ratio:.2f}", "lines/s", verdict]


def test_what_only_one_run_has_is_shown_too(tmp_path: Path) -> None:
    one = compare.load(written(tmp_path / "one.json", 100))
    assert "claude" in shown(compare.compare(one, {}))
    assert "claude" in shown(compare.compare({}, one))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 0, "figures": []}'])
def test_what_is_not_a_run_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(compare.NotComparable, match=r"run\.json"):
        compare.load(path)
