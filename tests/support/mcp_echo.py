"""A tiny MCP server on stdio, in plain JSON-RPC: `python mcp_echo.py`.

Tools: echo(text), add(a, b), fail() (an error result), image() (a 1x1 PNG).
"""

import json
import sys
from typing import Any

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

Json = dict[str, Any]


def _tool(name: str, description: str, **parameters: str) -> Json:
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in parameters.items()},
            "required": list(parameters),
        },
    }


TOOLS = [
    _tool("echo", "Says text back.", text="string"),
    _tool("add", "Adds two numbers.", a="number", b="number"),
    _tool("fail", "Always fails."),
    _tool("image", "Draws one dot."),
]


def _call(name: str, arguments: Json) -> Json:
    def said(text: str, is_error: bool = False) -> Json:
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    match name:
        case "echo":
            return said(arguments["text"])
        case "add":
            return said(str(arguments["a"] + arguments["b"]))
        case "fail":
            return said("this tool always fails", is_error=True)
        case "image":
            return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}
    return said(f"no tool named {name}", is_error=True)


def _answer(method: str, params: Json) -> Json | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1.0.0"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return _call(params["name"], params.get("arguments") or {})
        case "ping":
            return {}
    return None


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:  # a notification, or an answer
            continue
        answer: Json = {"jsonrpc": "2.0", "id": request["id"]}
        result = _answer(request["method"], request.get("params") or {})
        if result is None:
            answer["error"] = {"code": -32601, "message": f"no method {request['method']}"}
        else:
            answer["result"] = result
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
