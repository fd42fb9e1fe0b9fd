import functools

import pytest

from tools.transcripts import Process, scenarios

SPOILED = ("amp", "claude", "codex", "opencode")
"""Agents whose messages are spoiled, to show that no oddity of theirs breaks a law. Not the mock
agent: what it says is taken as it is, so that tests of clients can break a law if they want to.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes a `process` once for each recorded process of an agent."""
    processes = _processes()
    if "process" in metafunc.fixturenames:
        _parametrize(metafunc, "process", processes)
    if "spoiled_process" in metafunc.fixturenames:
        spoiled = [process for process in processes if process.scenario.agent in SPOILED]
        _parametrize(metafunc, "spoiled_process", spoiled)


@functools.cache
def _processes() -> list[Process]:
    return [process for scenario in scenarios() for process in scenario.processes]


def _parametrize(metafunc: pytest.Metafunc, name: str, processes: list[Process]) -> None:
    metafunc.parametrize(name, processes, ids=[process.id for process in processes])
