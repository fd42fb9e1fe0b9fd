"""A stand-in that speaks the simple dialect, which no real Amp was seen to emit.

It proves nothing of Amp. Each prompt is a command that "runs"; the program ends after it.
"""

import json
import sys
from typing import Any

VERSION = "0.0.1790142911-g7618fb"


def say(**line: Any) -> None:
    """Write one line."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Serve one prompt."""
    if "--version" in sys.argv:
        print(VERSION)
        return
    prompt = json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
    say(type="message", id="m1", content="Running.")
    say(type="tool_call", tool_call={"id": "c1", "name": "Bash", "arguments": {"cmd": prompt}})
    say(type="tool_result", id="c1", content="ran")
    say(type="done")


if __name__ == "__main__":
    main()
