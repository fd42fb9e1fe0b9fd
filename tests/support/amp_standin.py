"""A stand-in for what no real Amp can be brought to without its servers. It proves nothing of Amp.

Run as the executable, with `STANDIN` in the environment:

    newest   the newest CLI with a turn: its permission program gets no id of the call
    simple   the simple dialect, which ends after its turn

Each prompt is a command that "runs" when the permission program of the settings file allows it.
"""

import json
import os
import subprocess
import sys
from typing import Any

VERSION = "0.0.1790142911-g7618fb"
THREAD = "T-00000000-0000-7000-8000-000000000001"


def say(**line: Any) -> None:
    """Write one line."""
    print(json.dumps(line), flush=True)


def permitted(tool: str, arguments: Any) -> tuple[bool, str]:
    """Ask the permission program of the last rule, as the newest CLI does."""
    with open(sys.argv[sys.argv.index("--settings-file") + 1], encoding="utf-8") as file:
        rule = json.load(file)["amp.permissions"][-1]
    done = subprocess.run(
        [rule["to"]],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "AGENT": "amp", "AGENT_TOOL_NAME": tool, "AMP_THREAD_ID": THREAD},
    )
    return done.returncode == 0, done.stderr


def newest(prompt: str, number: int) -> None:
    """A turn of the newest CLI."""
    common = {"session_id": THREAD, "parent_tool_use_id": None}
    block = {"type": "text", "text": prompt}
    say(type="user", message={"role": "user", "content": [block]}, **common)
    arguments = {"command": prompt}
    call = {"type": "tool_use", "id": f"TU-{number}", "name": "shell_command", "input": arguments}
    message = {"role": "assistant", "content": [call], "stop_reason": "tool_use"}
    say(type="assistant", message=message, **common)
    allowed, said = permitted("shell_command", arguments)
    result = {
        "type": "tool_result",
        "tool_use_id": f"TU-{number}",
        "content": "ran" if allowed else f"Tool rejected by plugin: {said}",
        "is_error": False,
    }
    say(type="user", message={"role": "user", "content": [result]}, **common)
    message = {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}
    say(type="assistant", message={**message, "stop_reason": "end_turn"}, **common)


def simple(prompt: str) -> None:
    """A turn of the simple dialect."""
    say(type="message", id="m1", content="Running.")
    say(type="tool_call", tool_call={"id": "c1", "name": "Bash", "arguments": {"cmd": prompt}})
    say(type="tool_result", id="c1", content="ran")
    say(type="done")


def main() -> None:
    """Serve prompts until the input ends."""
    if "--version" in sys.argv:
        print(VERSION)
        return
    for number, line in enumerate(sys.stdin, 1):
        prompt = json.loads(line)["message"]["content"][0]["text"]
        if os.environ["STANDIN"] == "simple":
            simple(prompt)
            return
        if number == 1:
            say(type="system", subtype="init", session_id=THREAD, tools=[], mcp_servers=[])
        newest(prompt, number)
    say(type="result", subtype="success", is_error=False, result="Done.", session_id=THREAD)


if __name__ == "__main__":
    main()
