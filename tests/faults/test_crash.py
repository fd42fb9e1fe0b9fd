"""Class of fault: the daemon is killed (SIGKILL) at any moment, again and again.

Budget: 6 kills in the short form, 200 in the long one, while mock agents (inside the daemon, as
processes, and sharing one) and the real Claude Code work. After each: what anyone saw is there, no
agent or tool process is alive 5 s later, no request waits, and the sessions go on.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from agentstream.v1 import session_pb2
from tests.faults.scale import randomness, scaled
from tests.support.anthropic_server import AnthropicServer, after, reply, text, tool_use
from tests.support.e2e import ACCEPT, COMPLETED, REJECT, Bench, Lab, Session, lab, refused
from tests.support.hermetic import base_environment, make_workspace
from tests.support.laboratory import agent_executable

KILLS = scaled(6, 200)
GONE_SECONDS = 5.0

SCRIPT = """\
think Let me see.
say one two three four five
tool Bash {"n":1} => done
ask permission command "make"
on accept edit a.txt one => two
delay 3ms
agent helper look
say six seven
end
say eight
"""
MOCKS: tuple[dict[str, str], ...] = (
    {},
    {"process": "true"},
    {"shared_host": "true"},
    {"shared_host": "true"},
)


class Worker:
    """A client that keeps one session at work: sends, answers, and begins anew after a crash.

    Attributes:
        session: The session.
        accepted: Ids of the turns that its messages started, as answered.
    """

    def __init__(self, session: Session, prompt: str) -> None:
        self.session = session
        self.accepted: list[str] = []
        self._prompt = prompt
        self._answers = itertools.cycle((ACCEPT, REJECT))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Work until `stop` or the daemon's end."""
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._answer())]

    async def stop(self) -> None:
        """Stop; raises what the work failed with, but for a daemon that is gone."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not _is_gone(result):
                raise result

    async def _send(self) -> None:
        while True:
            sent = await self.session.send(self._prompt)
            self.accepted.append(sent.turn_id)
            await self.session.turn_ended(sent.turn_id)

    async def _answer(self) -> None:
        while True:
            asked = await self.session.permission()
            try:
                await self.session.decide(asked, next(self._answers))
            except aio.AioRpcError as error:
                # A restart of the daemon may have resolved it.
                if _is_gone(error) or refused(error)[1] != "REQUEST_ALREADY_RESOLVED":
                    raise


def _is_gone(error: BaseException) -> bool:
    if isinstance(error, aio.AioRpcError):
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return isinstance(error, AssertionError) and "the stream ended before" in str(error)


@pytest.fixture
async def model() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer() as server:
        server.script(
            reply(text("Done", " so."), when=after("Bash"), repeat=True),
            reply(
                text("I ", "will."),
                tool_use("Bash", {"command": "touch x"}),
                repeat=True,
            ),
        )
        yield server


async def test_a_daemon_killed_again_and_again_loses_nothing_that_was_seen(
    tmp_path: Path, model: AnthropicServer
) -> None:
    chance = randomness("crash")
    flag = f"--agent-executables=claude={agent_executable('claude')}"
    claude_env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "test-key"}
    workspace = make_workspace(tmp_path / "workspace")
    async with lab(tmp_path, base_environment(tmp_path / "home"), flag) as daemon:
        mock = Bench(daemon, "mock", workspace, {})
        claude = Bench(daemon, "claude", workspace, claude_env)
        workers = [
            Worker(await mock.session(agent_options=options), SCRIPT) for options in MOCKS
        ] + [Worker(await claude.session(), "Touch it")]
        for _ in range(KILLS):
            for worker in workers:
                worker.start()
            await more_events(chance.choice(workers).session, chance.randrange(1, 60))
            await crash(daemon, workers)
            await asyncio.gather(*(goes_on(worker) for worker in workers))
        await asyncio.gather(*(completes_a_turn(worker) for worker in workers))
        for worker in workers:
            await worker.session.end()
        await mock.finish()
        await claude.finish()


async def more_events(session: Session, count: int) -> None:
    """Wait until so many more events of the session were seen."""
    goal = len(session.events) + count
    await session.until(lambda: len(session.events) >= goal)


async def crash(daemon: Lab, workers: list[Worker]) -> None:
    """Kill the daemon; what it had running dies with it; start it again."""
    await daemon.kill()
    await daemon.no_processes(GONE_SECONDS)
    for worker in workers:
        await worker.stop()
    await daemon.start()


async def goes_on(worker: Worker) -> None:
    """See that each message that was accepted has its turn, ended, and that nothing waits."""
    session = worker.session
    await session.follow()
    assert not session.opened.pending_requests
    assert session.opened.state == session_pb2.SESSION_STATE_IDLE
    if worker.accepted:
        await session.turn_ended(worker.accepted[-1])
    starts = [event.turn_id for event in session.of("turn_started")]
    assert [turn for turn in worker.accepted if starts.count(turn) != 1] == []


async def completes_a_turn(worker: Worker) -> None:
    """Let the worker work until a whole turn went well."""
    before = len(worker.accepted)
    worker.start()
    await worker.session.until(
        lambda: any(
            event.turn_id in worker.accepted[before:] and event.turn_ended.status == COMPLETED
            for event in worker.session.of("turn_ended")
        )
    )
    await worker.stop()
