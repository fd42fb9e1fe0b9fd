"""Claude Code through the daemon: content too large for an event."""

import asyncio
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, item_pb2, session_pb2
from agentstreamd.laws import MAX_EVENT_BYTES
from tests.support import mcp_echo
from tests.support.anthropic_server import AnthropicServer, after, reply, result_of, text, tool_use
from tests.support.e2e import COMPLETED, Bench, Session
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

SIZE = 10 * 2**20
PIECE = "0123456789abcdéf" * 4096  # no line breaks: a diff of many lines takes the CLI minutes
PIECES = [PIECE] * (SIZE // len(PIECE))
WHOLE = "".join(PIECES)


async def whole(session: Session, part: item_pb2.ContentPart) -> bytes:
    """The content of a part that is external: what its beginning, end, size and digest are of."""
    blob = await session.blob(part.external)
    shown = part.json.json if part.HasField("json") else part.tool_call.arguments_json
    assert 0 < len(shown) < MAX_EVENT_BYTES
    assert blob.startswith(shown.encode())
    assert blob.endswith(part.external.tail.encode())
    assert part.external.size_bytes == len(blob)
    assert part.external.sha256 == hashlib.sha256(blob).hexdigest()
    return blob


# The newer CLI cuts the output itself, before anybody sees it.
@pytest.mark.parametrize("claude_cli", ["claude"], indirect=True)
async def test_output_of_ten_megabytes_is_kept_whole_beside_the_log(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        reply(tool_use("mcp__lab__echo", ['{"text": "', *PIECES, '"}'], id="toolu_echo")),
        reply(text("Echoed."), when=after("mcp__lab__echo")),
    )
    stdio = session_pb2.McpStdio(command=sys.executable, args=[mcp_echo.__file__])
    session = await bench.session(
        mcp_servers=[session_pb2.McpServer(name="lab", stdio=stdio)],
        agent_options={"allowed_tools": "mcp__lab"},
        env={"MAX_MCP_OUTPUT_TOKENS": "1000000000", "ENABLE_MCP_LARGE_OUTPUT_FILES": "0"},
    )
    assert (await session.turn("Echo much")).status == COMPLETED
    [output] = [p for p in session.result("toolu_echo").content if p.HasField("json")]
    assert json.loads(await whole(session, output)) == [{"type": "text", "text": WHOLE}]
    [call] = session.call("toolu_echo").content
    assert json.loads(await whole(session, call)) == {"text": WHOLE}


@EVERY_CLAUDE
async def test_a_result_that_repeats_a_file_of_ten_megabytes_is_kept_whole(
    bench: Bench, model: AnthropicServer
) -> None:
    path = bench.workspace / "large.txt"
    path.write_text(f"start\n{WHOLE}")
    read = {"file_path": str(path), "offset": 1, "limit": 1}
    edit = {"file_path": str(path), "old_string": "start", "new_string": "begin"}
    model.script(
        reply(tool_use("Read", read, id="toolu_read")),
        reply(tool_use("Edit", edit, id="toolu_edit"), when=result_of("toolu_read")),
        reply(text("Begun."), when=result_of("toolu_edit")),
    )
    session = await bench.session(permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS)
    assert (await session.turn("Begin it")).status == COMPLETED
    assert path.read_text() == f"begin\n{WHOLE}"
    result = session.result("toolu_edit").content
    [details] = [p for p in result if p.HasField("json")]
    assert json.loads(await whole(session, details))["originalFile"] == f"start\n{WHOLE}"
    [file] = [p.file_ref for p in result if p.HasField("file_ref")]
    assert "-start\n+begin\n" in file.diff


@EVERY_CLAUDE
async def test_output_that_the_agent_cuts_says_where_the_whole_is(
    bench: Bench, model: AnthropicServer
) -> None:
    command = f"head -c {SIZE} /dev/zero | tr '\\0' x"
    model.script(
        reply(tool_use("Bash", {"command": command}, id="toolu_much")),
        reply(text("Much."), when=result_of("toolu_much")),
    )
    session = await bench.session(agent_options={"allowed_tools": "Bash"})
    assert (await session.turn("Print")).status == COMPLETED
    output = session.result("toolu_much").content[0].tool_result.output
    [path] = re.findall(r"saved to: (.*)", output)
    assert await asyncio.to_thread(Path(path).read_bytes) == b"x" * SIZE


@EVERY_CLAUDE
async def test_a_permission_for_ten_megabytes_is_decided_on_the_whole(
    bench: Bench, model: AnthropicServer
) -> None:
    path = bench.workspace / "large.txt"
    written = ['{"content": "', *PIECES, f'", "file_path": {json.dumps(str(path))}}}']
    model.script(
        reply(tool_use("Write", written, id="toolu_large")),
        reply(text("Written."), when=result_of("toolu_large")),
    )
    session = await bench.session()
    await session.send("Write much")
    asked = await session.permission()
    assert len(asked.arguments_json) < MAX_EVENT_BYTES
    assert json.loads(await session.blob(asked.arguments_external))["content"] == WHOLE
    [file] = asked.files
    assert (file.path, file.action) == (str(path), item_pb2.FILE_ACTION_WRITE)
    await session.decide(asked)
    assert (await session.turn_ended()).status == COMPLETED
    assert path.read_text() == WHOLE
