"""An agent that writes prepared native lines of Claude Code as fast as the session takes them.

Everything after the pipe is the daemon's own: framing, normalizing, stream, log, service.
"""

import asyncio
import time

from agentstream.v1 import agent_pb2, session_pb2
from agentstreamd.adapters.base import Adapter, Answer, Driver, DriverContext, Normalizer, Prompt
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.process import LineFramer
from bench import native

CHUNK_BYTES = 256 * 1024


class BenchDriver(Driver):
    """Plays turns: `flood N` writes N deltas at once, `paced N MS` one every MS milliseconds."""

    def __init__(self, context: DriverContext) -> None:
        """Play on the session of `context`."""
        self._sink = context.sink
        self._task: asyncio.Task[None] | None = None
        self._framer = LineFramer()
        self._normalizer = ClaudeNormalizer()

    async def send(self, prompt: Prompt) -> None:
        """Begin to play what the prompt says."""
        which, *numbers = prompt.parts[0].text.split()
        if which == "flood":
            work = self._flood(int(numbers[0]))
        else:
            work = self._paced(int(numbers[0]), float(numbers[1]))
        self._task = asyncio.get_running_loop().create_task(work)

    async def _flood(self, deltas: int) -> None:
        lines = native.turn(deltas)
        for start in range(0, len(lines), CHUNK_BYTES):
            await self._take(lines[start : start + CHUNK_BYTES])
            # As a read from a pipe would: let the others run.
            await asyncio.sleep(0)

    async def _paced(self, deltas: int, pause_ms: float) -> None:
        await self._take(native.init() + b"".join(native.opening("msg_paced")))
        texts = []
        for _ in range(deltas):
            text = f"{time.monotonic_ns()} "
            texts.append(text)
            await self._take(native.delta(text))
            await asyncio.sleep(pause_ms / 1000)
        await self._take(b"".join(native.closing("msg_paced", "".join(texts))) + native.result())

    async def _take(self, chunk: bytes) -> None:
        drafts = []
        for line in self._framer.feed(chunk):
            if isinstance(line, bytes):
                drafts.extend(self._normalizer.feed(line))
        await self._sink.publish(drafts)

    async def interrupt(self) -> None:
        """Not needed."""

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Not needed: nothing is asked."""

    async def close(self, *, forget: bool = False) -> None:
        """Stop playing."""
        if self._task is not None:
            self._task.cancel()


class BenchAdapter(Adapter):
    """The agent `bench`."""

    name = "bench"

    async def describe(self) -> agent_pb2.Agent:
        """Always there."""
        return agent_pb2.Agent(name="bench", state=agent_pb2.AGENT_STATE_AVAILABLE)

    def check(self, config: session_pb2.SessionConfig) -> None:
        """Takes everything."""

    def normalizer(self, config: session_pb2.SessionConfig) -> Normalizer:
        """Claude's."""
        return ClaudeNormalizer()

    def driver(self, context: DriverContext) -> Driver:
        """A player."""
        return BenchDriver(context)
