import pytest

from agentstreamd.adapters import lenient
from agentstreamd.adapters.registry import BUILT_IN, load
from agentstreamd.laws import check
from agentstreamd.replay import replay


@pytest.mark.parametrize("agent", BUILT_IN)
@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_a_line_that_only_python_takes_for_json_is_unparsed(agent: str, constant: bytes) -> None:
    # The byte that is not UTF-8 keeps it from the strict parser.
    line = b'{"type":"\xff","method":"\xff","at":%s}' % constant
    events = list(replay(load([agent])[agent], [line]))
    assert check(events, complete=True, raw=False) == []
    assert "agent_unparsed" in [event.WhichOneof("payload") for event in events]


def test_what_is_not_utf8_is_replaced() -> None:
    assert lenient.loads(b'{"a":"\xff\\ud800"}') == {"a": "\ufffd\ud800"}
