"""A stand-in for `codex app-server` that misbehaves on request: `python fake_app_server.py`.

What it does with a turn is the first word of its text: `say WORDS`, `overload N` (refuse so many
requests first), `silent` (never answer), `stuck` (never answer anything any more), `ask METHOD` (a
request of the server, then a turn that ends once it is answered), `garbage` (lines that are no
messages), `die`, `flood N` (so many deltas), `child` (a thread of a sub-agent that speaks first),
`hang` (a turn that only an interrupt ends), `defy` (one that nothing ends). Other requests get an
empty result.
"""

import json
import sys
import threading
from typing import Any

Json = dict[str, Any]


class Server:
    """Threads are t1, t2, ...; turns T1, T2, ..."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.turns = 0
        self.refused = 0
        self.asked: dict[int, str] = {}
        self.parents: dict[str, str] = {}
        self.defiant: set[str] = set()

    def write(self, message: Json) -> None:
        """Write one message."""
        with self.lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def notify(self, method: str, **params: Any) -> None:
        """Write a notification."""
        self.write({"method": method, "params": params})

    def thread(self, thread_id: str) -> Json:
        """The answer that describes a thread."""
        parent = self.parents.get(thread_id)
        thread = {"id": thread_id, "cliVersion": "0.0.0", "parentThreadId": parent}
        if parent:
            return {"thread": thread}
        return {
            "thread": thread,
            "model": "fake",
            "approvalPolicy": "untrusted",
            "sandbox": {"type": "workspaceWrite"},
        }

    def take(self, message: Json) -> None:
        """React to one message of the client."""
        method = message.get("method")
        if method is None:
            thread_id = self.asked.pop(message["id"])
            said = "refused" if "error" in message else "answered"
            self.say(thread_id, said)
            self.end(thread_id)
            return
        if "id" not in message:
            return
        params = message["params"]
        result: Json = {}
        match method:
            case "thread/start":
                self.threads += 1
                result = self.thread(f"t{self.threads}")
                # As the real one does: before the client can know the thread.
                status = {"name": "early", "status": "ready", "error": None}
                self.notify(
                    "mcpServer/startupStatus/updated", threadId=result["thread"]["id"], **status
                )
            case "thread/resume" | "thread/read":
                result = self.thread(params["threadId"])
            case "turn/start":
                self.start_turn(message["id"], params)
                return
            case "turn/interrupt" if params["threadId"] not in self.defiant:
                self.end(params["threadId"], "interrupted")
        self.write({"id": message["id"], "result": result})

    def start_turn(self, request_id: int, params: Json) -> None:
        """Do what the text says."""
        thread_id = params["threadId"]
        word, _, rest = params["input"][0]["text"].partition(" ")
        if word == "stuck":
            threading.Event().wait()
        if word == "silent":
            return
        if word == "overload" and self.refused < int(rest):
            self.refused += 1
            error = {"code": -32001, "message": "Server overloaded; retry later."}
            self.write({"id": request_id, "error": error})
            return
        self.turns += 1
        turn = {"id": f"T{self.turns}", "rootTurnId": f"T{self.turns}", "status": "inProgress"}
        self.write({"id": request_id, "result": {"turn": turn}})
        self.notify("turn/started", threadId=thread_id, turn=turn)
        match word:
            case "ask":
                self.asked[7] = thread_id
                self.write({"id": 7, "method": rest, "params": {"threadId": thread_id}})
                return
            case "garbage":
                sys.stdout.write("no JSON\n[1]\n\n")
            case "die":
                print("a last word", file=sys.stderr, flush=True)
                sys.exit(7)
            case "flood":
                for _ in range(int(rest)):
                    self.delta(thread_id, "flood ")
            case "child":
                self.speak_as_child(thread_id)
            case "hang" | "defy":
                if word == "defy":
                    self.defiant.add(thread_id)
                self.delta(thread_id, "hanging")
                return
            case _:
                self.say(thread_id, rest or "said")
        self.end(thread_id)

    def speak_as_child(self, parent: str) -> None:
        """A thread that nobody was told of speaks, and only then an item names it."""
        self.parents["c1"] = parent
        self.say("c1", "from below", item_id="m")
        spawn = {
            "type": "collabAgentToolCall",
            "id": "spawn",
            "tool": "spawnAgent",
            "status": "completed",
            "receiverThreadIds": ["c1"],
        }
        self.notify("item/started", threadId=parent, turnId="T", item={**spawn, "status": "x"})
        self.notify("item/completed", threadId=parent, turnId="T", item=spawn)

    def say(self, thread_id: str, text: str, item_id: str = "") -> None:
        """A message, whole."""
        item = {"type": "agentMessage", "id": item_id or f"m{self.turns}", "text": text}
        for what in ("started", "completed"):
            self.notify(f"item/{what}", threadId=thread_id, turnId="T", item=item)

    def delta(self, thread_id: str, text: str) -> None:
        """A piece of a message."""
        item_id = f"m{self.turns}"
        self.notify("item/agentMessage/delta", threadId=thread_id, itemId=item_id, delta=text)

    def end(self, thread_id: str, status: str = "completed") -> None:
        """The turn is over."""
        turn = {"id": f"T{self.turns}", "status": status}
        self.notify("turn/completed", threadId=thread_id, turn=turn)


def main() -> None:
    """Serve until standard input ends; `--version` says it."""
    if "--version" in sys.argv:
        print("codex-cli 0.0.0")
        return
    server = Server()
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
