import pytest

from tools.transcripts import Process, scenarios


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes a `process` once for each recorded process of an agent."""
    if "process" in metafunc.fixturenames:
        processes = [process for scenario in scenarios() for process in scenario.processes]
        metafunc.parametrize("process", processes, ids=[_id(process) for process in processes])


def _id(process: Process) -> str:
    return process.id
