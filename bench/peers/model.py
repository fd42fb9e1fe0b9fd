"""A scripted model that says when: `python -m bench.peers.model DIALECT COUNT RATE`.

DIALECT is `anthropic` or `openai`. To a prompt that has GO in it it answers with COUNT deltas, RATE
a second; each is the monotonic time, in nanoseconds, at which it was written. To one with BURST it
gives BURSTS times as many as fast as it can, to all else one word. It prints its URL and runs until
standard input ends.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.cores import LOAD, on
from tests.support import anthropic_server, chat_completions_server
from tests.support.anthropic_server import AnthropicReply, AnthropicRequest, AnthropicServer
from tests.support.chat_completions_server import ChatCompletionsServer
from tests.support.model_server import Json

GO = "go-on"
"""In the prompt that is answered at length, at a steady pace."""

BURST = "burst-out"
"""In the prompt that is answered at length, as fast as it goes."""
BURSTS = 5
"""How much longer."""

_STAMP = b"%TIME%"


def _stamped(data: bytes) -> bytes:
    return data.replace(_STAMP, str(time.monotonic_ns()).encode())


class _Anthropic(AnthropicServer):
    def __init__(self, *, pace: float) -> None:
        super().__init__(pace=pace)
        self._steady = pace

    def encode(self, data: Json) -> bytes:
        return _stamped(super().encode(data))

    async def note(self, request: AnthropicRequest) -> AnthropicReply | None:
        self._pace = 0.0 if BURST in request.prompt else self._steady
        return await super().note(request)


class _OpenAi(ChatCompletionsServer):
    def encode(self, data: Json) -> bytes:
        return _stamped(super().encode(data))


async def main(dialect: str, count: int, rate: float) -> None:
    """Serve until standard input ends."""
    texts = [f"{_STAMP.decode()} "] * count
    server: _Anthropic | _OpenAi
    if dialect == "anthropic":
        server = _Anthropic(pace=1 / rate)
        server.script(
            anthropic_server.reply(
                anthropic_server.text(*texts), when=anthropic_server.says(GO), repeat=True
            ),
            anthropic_server.reply(
                anthropic_server.text(*texts * BURSTS),
                when=anthropic_server.says(BURST),
                repeat=True,
            ),
            anthropic_server.reply(anthropic_server.text("Yes."), repeat=True),
        )
    else:
        server = _OpenAi(pace=1 / rate)
        server.script(
            chat_completions_server.reply(
                chat_completions_server.text(*texts),
                when=chat_completions_server.says(GO),
                repeat=True,
            ),
            chat_completions_server.reply(chat_completions_server.text("Yes."), repeat=True),
        )
    async with server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def running(dialect: str, count: int, rate: float) -> Iterator[str]:
    """The model in a process of its own, on the core of the load; gives its URL."""
    command = [*on(LOAD), sys.executable, "-m", "bench.peers.model", dialect, str(count), str(rate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
