"""Which agents there are."""

from importlib.metadata import EntryPoint

import pytest

from agentstreamd.adapters import registry
from agentstreamd.adapters.claude.adapter import ClaudeAdapter

HERE = "agentstreamd.adapters.claude.adapter:ClaudeAdapter"


def point(name: str, value: str = HERE) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=registry.GROUP)


def test_the_built_in_adapters_are_known() -> None:
    assert {"claude", "mock"} <= set(registry.factories(installed=()))


def test_an_adapter_of_another_package_is_added() -> None:
    assert isinstance(registry.factories(installed=[point("mine")])["mine"](), ClaudeAdapter)


def test_nobody_takes_the_place_of_a_built_in_adapter(caplog: pytest.LogCaptureFixture) -> None:
    known = registry.factories(installed=[point("claude", "json:dumps"), point("Bad Name!")])
    assert set(known) == set(registry.BUILT_IN)
    assert isinstance(known["claude"](), ClaudeAdapter)
    assert len(caplog.records) == 2


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(registry.UnknownAgent, match=r"nope.*claude"):
        registry.load(["nope"], installed=())


@pytest.mark.parametrize("value", ["no_such_package:Adapter", "builtins:object", "json:dumps"])
def test_a_broken_adapter_does_not_keep_the_others_away(value: str) -> None:
    found = registry.load(["claude"], installed=[point("broken", value)])
    assert set(found) == {"claude"}
    with pytest.raises((ImportError, TypeError)):
        registry.load(["broken"], installed=[point("broken", value)])
