import io
import json
import logging
from collections.abc import Iterator

import pytest

from agentstreamd import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(False)


def test_json_lines_carry_the_fields_of_a_record() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream)
    logging.getLogger("agentstreamd.x").info(
        "call %s", "made", extra={"code": "OK", "duration_ms": 1.5}
    )
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "agentstreamd.x",
        "message": "call made",
        "code": "OK",
        "duration_ms": 1.5,
    }


def test_a_traceback_stays_within_its_json_line() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream)
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "ValueError: odd" in json.loads(stream.getvalue())["error"]


def test_text_cannot_forge_a_line_of_its_own() -> None:
    stream = io.StringIO()
    logs.set_up("info", "text", stream)
    logging.getLogger("x").info("hello\n2026 INFO forged", extra={"peer": "a\nb c"})
    assert stream.getvalue().count("\n") == 1


def test_records_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    logs.set_up("warning", "text", stream)
    logging.getLogger("x").info("quiet")
    assert stream.getvalue() == ""
