"""A reader that uses claude-agent-sdk: `sdk_reader.py CLI WARM_UP PROMPT...`.

It runs in the SDK's own environment, see claude_sdk.py. Each text delta is the monotonic time at
which it was written. Prints a line of JSON for each PROMPT: the deltas' delays in nanoseconds, and
the processor time that the answer took, in seconds.
"""

import asyncio
import json
import sys
import time

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, StreamEvent


async def main(cli: str, warm_up: str, *prompts: str) -> None:
    """Have all answered by one CLI."""
    options = ClaudeAgentOptions(cli_path=cli, include_partial_messages=True)
    async with ClaudeSDKClient(options) as client:
        await _answer(client, warm_up)
        for prompt in prompts:
            before = time.process_time()
            delays = await _answer(client, prompt)
            cpu_seconds = time.process_time() - before
            print(json.dumps({"delays": delays, "cpu_seconds": cpu_seconds}), flush=True)


async def _answer(client: ClaudeSDKClient, prompt: str) -> list[int]:
    delays = []
    await client.query(prompt)
    async for message in client.receive_response():
        now = time.monotonic_ns()
        if isinstance(message, StreamEvent):
            delta = message.event.get("delta", {})
            stamp = delta.get("text", "").strip()
            if stamp.isdecimal():
                delays.append(now - int(stamp))
    return delays


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
