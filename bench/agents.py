"""Agents under measurement: they read a real agent's native lines from a pipe.

All that is between the pipe and the client is the daemon's own: reading, framing, normalizing, the
stream, the log, the service. The pipe is a named one, or that of a process which writes a file:
then the start and the end of the process are the daemon's own, too.
"""

import asyncio
import os
from collections.abc import Mapping

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters import registry
from agentstreamd.adapters.base import Adapter, Answer, Driver, DriverContext, Normalizer, Prompt
from agentstreamd.process import LineFramer, ProcessSpec
from agentstreamd.process.pipes import ChunkReader
from bench.native import RECORDINGS

PROCESS = "process "
"""Before the path of a file: a process writes the lines in it."""


class PipeDriver(Driver):
    """A message names the pipe that the turn's lines are read from."""

    def __init__(self, context: DriverContext, normalizer: Normalizer) -> None:
        """Play on the session of `context`."""
        self._context = context
        self._sink = context.sink
        self._normalizer = normalizer
        self._task: asyncio.Task[None] | None = None

    async def send(self, prompt: Prompt) -> None:
        """Begin to read."""
        path = prompt.parts[0].text
        if path.startswith(PROCESS):
            spec = ProcessSpec(
                argv=("cat", path.removeprefix(PROCESS)), cwd="/", env=self._context.environment
            )
            child = await self._context.processes.spawn(spec)
            self._task = asyncio.get_running_loop().create_task(self._read(child.stdout))
            return
        # Opened without waiting for its writer; that one waits for us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._task = asyncio.get_running_loop().create_task(self._read_pipe(descriptor))

    async def _read_pipe(self, descriptor: int) -> None:
        reader = ChunkReader(descriptor)
        await self._readable(descriptor)
        await self._read(reader)

    async def _read(self, reader: ChunkReader) -> None:
        framer = LineFramer()
        while chunk := await reader.read():
            drafts = []
            for line in framer.feed(chunk):
                if isinstance(line, bytes):
                    drafts.extend(self._normalizer.feed(line))
            await self._sink.publish(drafts)

    async def _readable(self, descriptor: int) -> None:
        """Wait for the writer: until it has come the pipe looks as if at its end."""
        loop = asyncio.get_running_loop()
        there = asyncio.Event()
        loop.add_reader(descriptor, there.set)
        await there.wait()
        loop.remove_reader(descriptor)

    async def interrupt(self) -> None:
        """Not needed."""

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Not needed: nothing is asked."""

    async def close(self, *, forget: bool = False) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()


class PipeAdapter(Adapter):
    """Stands in for a real agent's process, with its real adapter's normalizer."""

    def __init__(self, real: Adapter) -> None:
        """`real` is the adapter it stands in for."""
        self.name = real.name
        self._real = real

    async def describe(self) -> agent_pb2.Agent:
        """Always there."""
        return agent_pb2.Agent(name=self.name, state=agent_pb2.AGENT_STATE_AVAILABLE)

    def check(self, config: session_pb2.SessionConfig) -> None:
        """Takes everything."""

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """The real one."""
        return self._real.normalizer(config)

    def driver(self, context: DriverContext) -> Driver:
        """A reader of pipes."""
        return PipeDriver(context, self.normalizer(context.config))


def adapters(real: Mapping[str, Adapter]) -> dict[str, Adapter]:
    """The agents of the bench: stand-ins for those there are recordings of, and the mock."""
    made: dict[str, Adapter] = {name: PipeAdapter(real[name]) for name in RECORDINGS}
    return made | {"mock": real["mock"]}


def install() -> None:
    """Put them in the place of the real ones, in this process alone."""
    load = registry.load
    vars(registry)["load"] = lambda: adapters(load())
