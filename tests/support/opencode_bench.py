"""Sessions of the real OpenCode at driver level: a fake session, a scripted model, a server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentstream.v1 import interaction_pb2, session_pb2
from agentstreamd.adapters.base import HostContext
from agentstreamd.adapters.opencode.adapter import OpenCodeAdapter
from agentstreamd.adapters.opencode.driver import OpenCodeDriver
from agentstreamd.adapters.opencode.server import Limits
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.process import ProcessHost
from tests.support.chat_completions_server import ChatReply, reply, result_of, text, tool_call
from tests.support.fake_session import FakeSession
from tests.support.model_server import DEADLINE

MakeBench = Callable[..., AbstractAsyncContextManager["OpenCodeBench"]]
"""Makes a bench with these limits, guards, or another way to the server."""


@dataclass
class OpenCodeBench:
    """Makes sessions that share one adapter, and so one server where they can."""

    cli: Path
    environment: dict[str, str]
    workspace: Path
    state_directory: Path
    processes: ProcessHost
    adapter: OpenCodeAdapter
    sessions: list[FakeSession] = field(default_factory=list)

    def session(self, *, directory: Path | None = None, **config: Any) -> FakeSession:
        """A session with these fields of SessionConfig."""
        settings = session_pb2.SessionConfig(
            agent="opencode", working_directory=str(directory or self.workspace), **config
        )
        self.adapter.check(settings)
        made = FakeSession(
            self.adapter,
            self.processes,
            settings,
            self.environment,
            self.state_directory,
            uid=f"uid-{len(self.sessions)}",
        )
        self.sessions.append(made)
        return made

    async def idle(self, session: FakeSession) -> None:
        """Wait until the server itself says that a session is idle."""
        await self._until(session, "/session/status", lambda said, id: id not in said)

    async def asks(self, session: FakeSession) -> None:
        """Wait until the server itself says that a session asks for a permission."""
        await self._until(
            session, "/permission", lambda said, id: any(ask["sessionID"] == id for ask in said)
        )

    async def _until(
        self, session: FakeSession, path: str, wanted: Callable[[Any, str], bool]
    ) -> None:
        driver = session.drivers[-1]
        assert isinstance(driver, OpenCodeDriver)
        assert driver.server is not None
        async with asyncio.timeout(DEADLINE):
            while not wanted(  # noqa: ASYNC110 - its event stream is cut: it announces nothing
                await driver.server.api.get(path, session.config.working_directory),
                session.native_session_id,
            ):
                await asyncio.sleep(0.05)

    def server_pid(self) -> int:
        """The process id of the only server."""
        [child] = self.processes.children
        return child.pid


@asynccontextmanager
async def opencode_bench(
    cli: Path,
    environment: dict[str, str],
    workspace: Path,
    scratch: Path,
    processes: ProcessHost,
    *,
    limits: Limits | None = None,
    guards: Guards | None = None,
    via: Callable[[str], Awaitable[str]] | None = None,
) -> AsyncIterator[OpenCodeBench]:
    """A bench, whose sessions and servers are closed at the end."""
    state_directory = scratch / "state"
    state_directory.mkdir(mode=0o700, exist_ok=True)
    adapter = OpenCodeAdapter(limits, guards, via)
    await adapter.start(
        HostContext(
            processes=processes,
            environment=environment,
            state_directory=state_directory,
            executable=str(cli),
        )
    )
    bench = OpenCodeBench(cli, environment, workspace, state_directory, processes, adapter)
    try:
        yield bench
    finally:
        for session in bench.sessions:
            session.gate.set()
            for driver in session.drivers:
                await driver.close(forget=True)
        await adapter.close()


def allowed(
    decision: interaction_pb2.PermissionDecision.ValueType = (
        interaction_pb2.PERMISSION_DECISION_ACCEPT
    ),
    **more: Any,
) -> interaction_pb2.PermissionAnswer:
    """An answer to a permission."""
    return interaction_pb2.PermissionAnswer(decision=decision, **more)


def command(call_id: str, line: str = "echo hi > a.txt") -> tuple[ChatReply, ChatReply]:
    """The model runs a command, and says `Done.` when it has its result."""
    return (
        reply(tool_call("bash", {"command": line, "description": "x"}, id=call_id)),
        reply(text("Done."), when=result_of(call_id)),
    )
