import dataclasses
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

from agentstreamd.process import signal_process, sweep_leftovers
from agentstreamd.process.leftovers import find_marked, identify

from .trees import PATH, is_running

# Of this run alone: a sweep must not end the processes of another run of the same tests.
OLD = f"old-{uuid.uuid4()}"


@pytest.fixture
def start() -> Iterator[Callable[[str | None, str], int]]:
    running = []

    def start(marker: str | None, code: str = "echo; read never") -> int:
        env = {"PATH": PATH, "X": f"AGENTSTREAM_PROCESS={OLD}/0"}
        if marker is not None:
            env["AGENTSTREAM_PROCESS"] = marker
        process = subprocess.Popen(
            ["sh", "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        running.append(process)
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_only_the_processes_of_that_instance_are_ended(
    start: Callable[..., int],
) -> None:
    mine = [start(f"{OLD}/1"), start(f"{OLD}/2", "trap '' TERM; echo; while :; do sleep 0.1; done")]
    others = [start(f"{OLD}er/1"), start(OLD), start(None), start(f"new/{OLD}/1")]
    result = sweep_leftovers(OLD, term_grace_seconds=0.2)
    assert {who.pid for who in result.ended} >= set(mine)
    assert {who.marker for who in result.ended} == {f"{OLD}/1", f"{OLD}/2"}
    assert result.survivors == ()
    assert not any(is_running(pid) for pid in mine)
    assert all(is_running(pid) for pid in others)


def test_leftovers_are_asked_before_they_are_killed(start: Callable[..., int]) -> None:
    pid = start(f"{OLD}/1", "trap 'exit 5' TERM; echo; while :; do sleep 0.01; done")
    sweep_leftovers(OLD, term_grace_seconds=10)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 5


def test_a_sweep_without_leftovers_does_nothing() -> None:
    assert sweep_leftovers("never-was").ended == ()


def test_a_process_that_only_has_the_same_id_is_not_signalled(start: Callable[..., int]) -> None:
    pid = start("ours/1")
    who = identify(pid)
    assert who is not None
    earlier = dataclasses.replace(who, start_time=who.start_time - 1)
    another = dataclasses.replace(who, marker="ours/2")
    assert not signal_process(earlier, signal.SIGKILL)
    assert not signal_process(another, signal.SIGKILL)
    assert is_running(pid)
    assert signal_process(who, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not signal_process(who, signal.SIGKILL)


def test_unmarked_and_ended_processes_have_no_identity(start: Callable[..., int]) -> None:
    assert identify(start(None)) is None
    assert find_marked("nothing-like-this/") == []
