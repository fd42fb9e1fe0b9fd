"""A laboratory for Amp's driver: a scripted server, a workspace, sessions without a daemon."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from agentstream.v1 import session_pb2
from agentstreamd.adapters.amp.adapter import AmpAdapter
from agentstreamd.adapters.amp.connection import Limits
from agentstreamd.adapters.base import HostContext
from agentstreamd.process import ProcessHost
from agentstreamd.process.leftovers import find_marked
from tests.support.amp_server import AmpServer
from tests.support.fake_session import FakeSession
from tests.support.hermetic import base_environment, make_workspace

KEY = "sgamp_test"


def amp_environment(home: Path, url: str, **more: str) -> dict[str, str]:
    """The environment that points Amp at a scripted server."""
    return {**base_environment(home), "AMP_API_KEY": KEY, "AMP_URL": url, **more}


class AmpLab:
    """Makes sessions of one executable.

    Attributes:
        server: The scripted server.
        workspace: Where the agent works.
        state: Where the adapter keeps its files.
        processes: What starts processes.
        environment: What agents get.
    """

    def __init__(
        self, directory: Path, server: AmpServer, executable: Path, processes: ProcessHost
    ) -> None:
        self.server = server
        self.processes = processes
        self.workspace = make_workspace(directory / "workspace")
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.environment = amp_environment(directory / "home", server.url)
        self._executable = executable
        self._sessions: list[FakeSession] = []
        self._adapters: list[AmpAdapter] = []

    async def adapter(self, limits: Limits | None = None) -> AmpAdapter:
        """An adapter that was started."""
        adapter = AmpAdapter(limits)
        await adapter.start(
            HostContext(
                processes=self.processes,
                environment=self.environment,
                state_directory=self.state,
                executable=str(self._executable),
            )
        )
        self._adapters.append(adapter)
        return adapter

    async def session(self, *, limits: Limits | None = None, **config: Any) -> FakeSession:
        """A session with these settings."""
        adapter = await self.adapter(limits)
        settings = session_pb2.SessionConfig(
            agent="amp", working_directory=str(self.workspace), **config
        )
        adapter.check(settings)
        session = FakeSession(adapter, self.processes, settings, self.environment, self.state)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        """End everything; nothing may be left."""
        for session in self._sessions:
            session.gate.set()
            for driver in session.drivers:
                await driver.close(forget=True)
        for adapter in self._adapters:
            await adapter.close()
        left = [path.name for path in self.state.iterdir()]
        assert not left, f"private files were left: {left}"


@contextlib.asynccontextmanager
async def amp_lab(
    directory: Path, executable: Path, make_server: Callable[[], AmpServer] = AmpServer
) -> AsyncIterator[AmpLab]:
    """A laboratory; at the end the script is used up and no process and no file is left."""
    host = ProcessHost(f"test-{os.getpid()}-{os.urandom(4).hex()}")
    async with make_server() as server:
        lab = AmpLab(directory, server, executable, host)
        try:
            yield lab
            await lab.close()
            server.check()
        finally:
            await host.close()
    assert not find_marked(host.instance_id)
