"""The program that Amp runs to ask for a permission: `permit.py PRIVATE_FILE`.

Amp hands it a tool's arguments on standard input and the rest in the environment. It asks the
daemon over a unix socket and waits until somebody has decided: exit code 0 runs the tool, 2 rejects
it with what is on standard error. Whatever goes wrong rejects: another exit code would make Amp ask
a person who is not there. Standard library only; started with `python -I -S -E`.
"""

import json
import os
import socket
import sys
from typing import Any, NoReturn

REJECTED = 2
MAX_ARGUMENTS_BYTES = 64 * 2**20


def reject(message: str) -> NoReturn:
    """End, rejecting the tool. `_exit`: nothing may turn the exit code into another one."""
    os.write(2, message.encode("utf-8", "replace"))
    os._exit(REJECTED)


def ask(private: dict[str, Any], arguments: bytes) -> dict[str, Any]:
    """Ask the daemon and wait for the decision."""
    question = {
        "secret": private["secret"],
        "tool": os.environ.get("AGENT_TOOL_NAME", ""),
        "tool_use_id": os.environ.get("AGENT_TOOL_USE_ID", ""),
        "thread_id": os.environ.get("AMP_THREAD_ID", ""),
        "cwd": os.getcwd(),
        "arguments": arguments.decode("utf-8", "replace"),
    }
    directory = os.open(os.path.dirname(private["socket"]), os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        # A path of a socket ends at 108 bytes; this one is short wherever the directory is.
        channel.connect(f"/proc/self/fd/{directory}/{os.path.basename(private['socket'])}")
        channel.sendall(json.dumps(question).encode() + b"\n")
        with channel.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    if not isinstance(answer, dict):
        raise ValueError("no answer")
    return answer


def main() -> None:
    """Ask for one permission."""
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            private = json.load(file)
        arguments = sys.stdin.buffer.read(MAX_ARGUMENTS_BYTES + 1)
        if len(arguments) > MAX_ARGUMENTS_BYTES:
            reject("The tool's arguments are too large to ask for a permission.")
        answer = ask(private, arguments)
    except BaseException as error:
        reject(f"The permission could not be asked for ({type(error).__name__}).")
    if answer.get("allow") is True:
        os._exit(0)
    reject(str(answer.get("message") or "The tool was rejected."))


if __name__ == "__main__":
    main()
