"""A tiny MCP server on stdio that asks the person: `python mcp_asking.py`.

Its tool ask() elicits a form with a name, and says what came of it. It says of itself that it only
reads, so that agents need no permission for it.
"""

import json
import sys
from typing import Any

Json = dict[str, Any]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
_TOOL = {
    "name": "ask",
    "description": "Asks for a name.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
}


def _write(message: Json) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    """Serve until stdin ends."""
    asked_by: Any = None
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method is None:  # the answer to what was asked
            said = json.dumps(message.get("result"))
            _write({"id": asked_by, "result": {"content": [{"type": "text", "text": said}]}})
        elif "id" not in message:
            continue
        elif method == "initialize":
            answer = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "asking", "version": "1.0.0"},
            }
            _write({"id": message["id"], "result": answer})
        elif method == "tools/list":
            _write({"id": message["id"], "result": {"tools": [_TOOL]}})
        elif method == "tools/call":
            asked_by = message["id"]
            form = {"message": "Your name?", "requestedSchema": SCHEMA}
            _write({"id": "form", "method": "elicitation/create", "params": form})
        else:
            error = {"code": -32601, "message": f"no method {method}"}
            _write({"id": message["id"], "error": error})


if __name__ == "__main__":
    main()
