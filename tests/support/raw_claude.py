"""Claude Code driven by hand over stream-json: for tests of the laboratory, and for experiments."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.model_server import DEADLINE, Json


class RawClaude:
    """One CLI process. Use as an async context manager; leaving it ends the process.

    `lines` has everything the CLI wrote. The waiting methods go through it once, in order: each
    looks at what came after the line that the one before it returned.
    """

    def __init__(
        self, executable: Path, environment: Mapping[str, str], workspace: Path, *arguments: str
    ) -> None:
        self.lines: list[Json] = []
        self._command = [
            *(str(executable), "--print", "--verbose", "--include-partial-messages"),
            *("--output-format", "stream-json", "--input-format", "stream-json"),
            *("--permission-prompt-tool", "stdio", *arguments),
        ]
        self._environment = environment
        self._workspace = workspace
        self._arrival = asyncio.Condition()
        self._next = 0
        self._asked = 0
        self._ended = False

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._workspace,
            env=dict(self._environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 28,
        )
        self._readers = asyncio.gather(self._read(), self._read_errors())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        elif self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._readers

    async def close(self) -> int:
        """End the conversation, wait for the process, return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), DEADLINE)
        except TimeoutError:
            self._process.kill()
            raise

    async def send(self, message: Json) -> None:
        """Write one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def prompt(self, content: str | list[Json]) -> None:
        """Send a user message."""
        await self.send({"type": "user", "message": {"role": "user", "content": content}})

    async def control(self, subtype: str, **fields: object) -> Json:
        """Send a control request and return its response. Consumes the lines up to it."""
        self._asked += 1
        request_id = f"ours-{self._asked}"
        request = {"subtype": subtype, **fields}
        await self.send({"type": "control_request", "request_id": request_id, "request": request})
        line = await self.until(
            lambda line: (
                line["type"] == "control_response" and line["response"]["request_id"] == request_id
            ),
            f"the answer to {subtype}",
        )
        response: Json = line["response"]
        return response

    async def permission(self) -> Json:
        """The next permission request (a control_request line)."""
        return await self.until(
            lambda line: (
                line["type"] == "control_request" and line["request"]["subtype"] == "can_use_tool"
            ),
            "a permission request",
        )

    async def allow(self, asked: Json, **changed_input: object) -> None:
        """Allow a permission request, with parts of its input changed if given."""
        updated = {**asked["request"]["input"], **changed_input}
        await self._respond(asked, {"behavior": "allow", "updatedInput": updated})

    async def deny(self, asked: Json, message: str) -> None:
        """Deny a permission request."""
        await self._respond(asked, {"behavior": "deny", "message": message})

    async def result(self) -> Json:
        """The end of the turn."""
        return await self.until(lambda line: line["type"] == "result", "a result")

    async def until(self, wanted: Callable[[Json], bool], what: str = "a line") -> Json:
        """The next line that is wanted; those before it are passed over."""
        try:
            async with asyncio.timeout(DEADLINE), self._arrival:
                while True:
                    while self._next < len(self.lines):
                        line = self.lines[self._next]
                        self._next += 1
                        if wanted(line):
                            return line
                    if self._ended:
                        raise EOFError(f"the CLI ended before {what}; stderr: {self.stderr}")
                    await self._arrival.wait()
        except TimeoutError:
            raise TimeoutError(f"no {what} in {DEADLINE:.0f} s; stderr: {self.stderr}") from None

    def of(self, type: str, subtype: str | None = None) -> list[Json]:
        """All lines so far of that type."""
        return [
            line
            for line in self.lines
            if line["type"] == type and (subtype is None or line.get("subtype") == subtype)
        ]

    @property
    def deltas(self) -> list[str]:
        """The text deltas streamed so far."""
        events = [line["event"] for line in self.of("stream_event")]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return [delta["text"] for delta in deltas if delta["type"] == "text_delta"]

    @property
    def tool_results(self) -> dict[str, Json]:
        """The tool results so far, by tool use id."""
        contents = [line["message"]["content"] for line in self.of("user")]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        return {b["tool_use_id"]: b for b in blocks if b["type"] == "tool_result"}

    async def _respond(self, asked: Json, response: Json) -> None:
        body = {"subtype": "success", "request_id": asked["request_id"], "response": response}
        await self.send({"type": "control_response", "response": body})

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            async with self._arrival:
                self.lines.append(json.loads(raw))
                self._arrival.notify_all()
        async with self._arrival:
            self._ended = True
            self._arrival.notify_all()

    async def _read_errors(self) -> None:
        self.stderr = ""
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            self.stderr += raw.decode(errors="replace")
