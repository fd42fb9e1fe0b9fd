"""`agentstream replay`: a transcript becomes a stream, without a daemon."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agentstream.cli.context import json_line
from agentstream.v1 import event_pb2
from tests.cli.conftest import AGENTSTREAM, Done

INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": "native-1",
    "model": "m",
    "cwd": "/w",
    "tools": [],
    "permissionMode": "default",
}
ASSISTANT = {
    "type": "assistant",
    "session_id": "native-1",
    "message": {
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello from the transcript"}],
    },
}
RESULT = {"type": "result", "subtype": "success", "session_id": "native-1", "is_error": False}
TRANSCRIPT = "".join(json.dumps(line) + "\n" for line in (INIT, ASSISTANT, RESULT))


async def replay(
    *arguments: str,
    stdin: str = "",
    program: tuple[str, ...] = AGENTSTREAM,
    agent: str = "claude",
) -> Done:
    process = await asyncio.create_subprocess_exec(
        *(*program, "replay", "--agent", agent, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def test_a_transcript_becomes_a_whole_stream_that_keeps_the_laws() -> None:
    done = await replay("--check", "-", stdin=TRANSCRIPT)
    assert (done.code, done.err) == (0, "")
    assert (done.kinds[0], done.kinds[-1]) == ("sessionStarted", "sessionEnded")
    assert "turnEnded" in done.kinds
    assert "Hello from the transcript" in done.out
    assert "raw" not in done.json[1]


async def test_a_transcript_that_breaks_off_keeps_the_laws_too(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_text(TRANSCRIPT[: TRANSCRIPT.index('"result"')])
    done = await replay("--check", str(file))
    assert (done.code, done.err) == (0, "")
    assert "agentUnparsed" in done.out
    assert done.kinds[-1] == "sessionEnded"


async def test_native_messages_are_there_when_asked_for() -> None:
    done = await replay("--include-raw", "-", stdin=TRANSCRIPT)
    native = [message["text"] for event in done.json for message in event.get("raw", ())]
    assert set(native) == set(TRANSCRIPT.splitlines())


async def test_the_same_transcript_gives_the_same_stream() -> None:
    first, second = [await replay("-", stdin=TRANSCRIPT) for _ in range(2)]
    assert first.out == second.out


async def test_it_can_be_drawn_for_people() -> None:
    done = await replay("--pretty", "-", stdin=TRANSCRIPT)
    assert "\nHello from the transcript\n" in done.out
    assert "✓ completed" in done.out


async def test_a_broken_law_is_named_with_its_line_and_sequence(tmp_path: Path) -> None:
    # The real keeper keeps the laws, so the stream is broken behind it: every delta comes twice.
    program = tmp_path / "broken.py"
    program.write_text(
        "import sys\n"
        "import agentstreamd.replay as replaying\n"
        "whole = replaying.replay\n"
        "def twice(*arguments, **options):\n"
        "    for event in whole(*arguments, **options):\n"
        "        yield event\n"
        "        if event.HasField('item_delta'):\n"
        "            yield event\n"
        "replaying.replay = twice\n"
        "from agentstream.cli.main import main\n"
        "sys.exit(main())\n"
    )
    done = await replay("--check", "-", stdin=TRANSCRIPT, program=(sys.executable, str(program)))
    assert done.code == 1
    delta = next(event for event in done.json if "itemDelta" in event)
    assert f"agentstream: line 2: law 1, sequence {delta['sequence']}: " in done.err


async def test_blank_lines_count_as_lines() -> None:
    # What the mock agent says of an item is taken as it is: a call without a name breaks a law.
    call = {"item_id": "c", "kind": "ITEM_KIND_TOOL_CALL", "role": "ITEM_ROLE_ASSISTANT"}
    item = {**call, "content": [{"tool_call": {"call_id": "c"}}]}
    started = json.dumps({"type": "item_started", "item": item})
    done = await replay("--check", "-", stdin=f"\n\r\n{started}\n", agent="mock")
    assert done.code == 1
    assert "line 3: form" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--agent", "nobody", "-"], 5, "There is no agent 'nobody'"),
        (["/no/such/file"], 2, "/no/such/file can't be read: No such file or directory."),
        (["--client", "/no/such/file", "-"], 2, "/no/such/file can't be read"),
        (["--client", "-", "-"], 2, "Standard input can't be both"),
        (["/"], 2, "/ can't be read: Is a directory."),
    ],
)
async def test_what_cannot_be_replayed(arguments: list[str], code: int, sentence: str) -> None:
    done = await replay(*arguments)
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err


def test_an_event_is_one_line_of_canonical_json() -> None:
    event = event_pb2.Event(sequence=1 << 60)
    event.item_delta.text = "a\nb\u2028ž"
    assert json_line(event) == (
        '{"sequence": "1152921504606846976", "itemDelta": {"text": "a\\nb\u2028ž"}}'
    )
