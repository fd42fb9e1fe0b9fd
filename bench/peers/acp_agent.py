"""An agent that speaks the Agent Client Protocol on its standard streams, for the bench.

Run as `acp_agent.py FILE`: it says what is in the file, JSON-RPC notifications as lines, for each
prompt that it is sent. Nothing but Python is needed: it is started by the peer.
"""

import json
import sys


def main(file: str) -> None:
    """Answer requests until standard input ends."""
    with open(file, "rb") as lines:
        said = lines.read()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if request.get("method") == "session/prompt":
            sys.stdout.buffer.write(said)
        if "id" in request:
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"sessionId": "bench"}}
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
