"""What the normalizer and the answers of Claude Code rely on, on the real CLI, old and new."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from agentstream.v1 import event_pb2, interaction_pb2, item_pb2, service_pb2
from agentstreamd.adapters.base import ClientAction, Prompt
from agentstreamd.adapters.claude import answers
from agentstreamd.adapters.claude.client_side import client_actions
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.laws import check
from agentstreamd.model import Kind
from agentstreamd.replay import replay
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    cut,
    error,
    main_thread,
    reply,
    result_of,
    sub_agent,
    task_notification,
    text,
    thinking,
    tool_use,
)
from tests.support.laboratory import CLAUDE_VERSIONS
from tests.support.model_server import Json
from tests.support.raw_claude import RawClaude

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

Claude = Callable[..., RawClaude]

UUID = "11111111-1111-4111-8111-111111111111"


class _Recorded:
    """An adapter as far as replaying needs it."""

    name = "claude"

    def normalizer(self, config: object) -> ClaudeNormalizer:
        return ClaudeNormalizer()

    def client_actions(self, messages: Sequence[bytes]) -> list[ClientAction]:
        return client_actions(messages)


def stream_of(lines: Iterable[Json]) -> list[event_pb2.Event]:
    """The stream of what a CLI wrote; it keeps the laws, and all of it is known."""
    natives = [json.dumps(line).encode() for line in lines]
    events = list(replay(_Recorded(), natives, include_raw=True))  # type: ignore[arg-type]
    assert check(events, raw=True, complete=True) == []
    assert [e for e in events if e.HasField("agent_unparsed")] == []
    unknown = [i for i in items(events) if i.kind == item_pb2.ITEM_KIND_UNKNOWN]
    assert unknown == []
    return events


def items(events: Iterable[event_pb2.Event]) -> list[item_pb2.Item]:
    return [e.item_completed.item for e in events if e.HasField("item_completed")]


def prompt(*parts: service_pb2.InputPart) -> Json:
    message: Json = json.loads(answers.encode_prompt(Prompt("turn", UUID, parts)))
    return message


@EVERY_CLAUDE
async def test_an_edit_accepted_for_the_session_is_not_asked_for_again_and_others_are(
    claude: Claude, model_server: AnthropicServer, workspace: Path
) -> None:
    mine, other = workspace / "mine.txt", workspace / "other.txt"
    edit = {"file_path": str(mine), "old_string": "one", "new_string": "two"}
    model_server.script(
        reply(tool_use("Write", {"file_path": str(mine), "content": "one\n"}, id="toolu_1")),
        reply(tool_use("Edit", edit, id="toolu_2"), when=result_of("toolu_1")),
        reply(
            tool_use("Write", {"file_path": str(other), "content": "x\n"}, id="toolu_3"),
            when=result_of("toolu_2"),
        ),
        reply(text("Done."), when=result_of("toolu_3")),
    )
    async with claude() as cli:
        await cli.prompt("Edit")
        asked = await cli.permission()
        normalizer = ClaudeNormalizer()
        (draft,) = normalizer.feed(json.dumps(asked).encode())
        for_session = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
        assert for_session in draft.event.permission_requested.allowed_decisions
        request = normalizer.request(asked["request_id"])
        assert request is not None
        answer = interaction_pb2.PermissionAnswer(decision=for_session)
        await cli.send(json.loads(answers.encode_answer(request, answer).line))
        asked = await cli.permission()
        assert asked["request"]["tool_use_id"] == "toolu_3"
        await cli.deny(asked, "Not that one.")
        await cli.result()
    assert mine.read_text() == "two\n"
    assert not other.exists()
    stream_of(cli.lines)


@EVERY_CLAUDE
@pytest.mark.parametrize("written", ["/cost of living?", "/nosuch", "/tmp/foo is a path", "!ls"])
async def test_text_that_looks_like_a_command_reaches_the_model(
    claude: Claude, model_server: AnthropicServer, written: str
) -> None:
    model_server.script(reply(text("Read.")))
    async with claude() as cli:
        await cli.send(prompt(service_pb2.InputPart(text=written)))
        await cli.result()
    assert model_server.requests[0].prompt.strip() == written


@EVERY_CLAUDE
async def test_files_in_a_prompt_reach_the_model(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Read.")))
    file = service_pb2.InputFile(name="notes.md", media_type="text/markdown", data=b"# Grue\n")
    async with claude() as cli:
        await cli.send(prompt(service_pb2.InputPart(text="See"), service_pb2.InputPart(file=file)))
        await cli.result()
    [document] = [b for b in model_server.requests[0].news if b["type"] == "document"]
    assert document["source"]["data"] == "# Grue\n"
    assert document["title"] == "notes.md"


@EVERY_CLAUDE
async def test_a_prompt_during_a_turn_of_the_agent_gets_its_own_end(
    claude: Claude, model_server: AnthropicServer, workspace: Path
) -> None:
    os.mkfifo(workspace / "go")
    go = os.open(workspace / "go", os.O_RDWR)
    command = {"command": "read word < go", "run_in_background": True}
    gate = Gate("in the agent's own turn")
    model_server.script(
        reply(tool_use("Bash", command, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
        reply(text("It has ", gate, "ended."), when=task_notification),
        reply(text("Yours."), when=lambda request: "And mine?" in request.prompt),
    )
    mine = prompt(service_pb2.InputPart(text="And mine?"))
    async with claude("--allowedTools", "Bash", "--replay-user-messages") as cli:
        await cli.prompt("Work in the background")
        await cli.result()
        os.write(go, b"now\n")
        await gate.reached()
        await cli.until(lambda line: "It has " in cli.deltas)
        sent_after = len(cli.lines)
        await cli.send(mine)
        await cli.control("get_session_cost")  # it has read the prompt
        gate.open()
        await cli.until(lambda line: line["type"] == "result" and line["result"] == "Yours.")
    os.close(go)

    normalizer = ClaudeNormalizer()
    natives = [json.dumps(line).encode() for line in cli.lines]
    for native in natives[:sent_after]:
        normalizer.feed(native)
    normalizer.sent(json.dumps(mine).encode())
    after = [draft for native in natives[sent_after:] for draft in normalizer.feed(native)]
    ends = [n for n, draft in enumerate(after) if draft.kind is Kind.TURN_ENDED]
    texts = [
        part.text.text
        for draft in after
        if draft.kind is Kind.ITEM_COMPLETED
        for part in draft.event.item_completed.item.content
    ]
    assert ends == [len(after) - 1]
    assert [t for t in texts if t] == ["It has ended.", "Yours."]
    stream_of(cli.lines)


@EVERY_CLAUDE
async def test_a_stream_that_was_cut_leaves_no_half_message_behind(
    claude: Claude, model_server: AnthropicServer
) -> None:
    gate = Gate()
    model_server.script(
        reply(thinking("Hm."), text("Half a ", gate, cut())),
        reply(text("The whole sentence."), repeat=True),
    )
    async with claude() as cli:
        await cli.prompt("Speak")
        await cli.until(lambda line: cli.deltas == ["Half a "])
        gate.open()
        await cli.result()
    model_server.forget_script()
    events = stream_of(cli.lines)
    messages = [i for i in items(events) if i.role == item_pb2.ITEM_ROLE_ASSISTANT]
    assert messages[0].status == item_pb2.ITEM_STATUS_FAILED


@EVERY_CLAUDE
async def test_sub_agents_retries_and_interrupts_keep_the_laws(
    claude: Claude, model_server: AnthropicServer
) -> None:
    task = {
        "description": "Look around",
        "prompt": "Look around, please",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    model_server.script(
        error(429, "rate_limit_error", "Slow down", headers={"retry-after": "0"}),
        reply(tool_use("Agent", task, id="toolu_task"), when=main_thread),
        reply(
            text("Looking."), tool_use("Bash", {"command": "pwd"}, id="toolu_pwd"), when=sub_agent
        ),
        reply(text("Nothing here."), when=sub_agent),
        reply(text("It found nothing."), when=result_of("toolu_task")),
        reply(text("Talking ", Gate(), "on")),
        error(403, "permission_error", "Not you"),
    )
    async with claude() as cli:
        await cli.control("initialize", forwardSubagentText=True)
        await cli.prompt("Delegate")
        await cli.result()
        await cli.prompt("Talk")
        await cli.until(lambda line: "Talking " in cli.deltas)
        await cli.control("interrupt")
        await cli.result()
        await cli.prompt("Again")
        await cli.result()
    events = stream_of(cli.lines)
    by_id = {item.item_id: item for item in items(events)}
    assert by_id[by_id["call:toolu_pwd"].parent_id].parent_id == "call:toolu_task"
    ends = [e.turn_ended.status for e in events if e.HasField("turn_ended")]
    assert ends == [
        event_pb2.TURN_STATUS_COMPLETED,
        event_pb2.TURN_STATUS_INTERRUPTED,
        event_pb2.TURN_STATUS_FAILED,
    ]
