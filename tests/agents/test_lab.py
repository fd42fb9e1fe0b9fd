"""The laboratory itself, on the real Claude Code driven by hand: each scripted move has its effect.

Also the place to look up how a scenario is written.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import demo_script, mcp_echo, netns
from tests.support.anthropic_server import (
    AnthropicServer,
    Gate,
    after,
    cut,
    error,
    error_event,
    hang,
    main_thread,
    redacted_thinking,
    refusal,
    reply,
    reset,
    result_of,
    says,
    sub_agent,
    task_notification,
    text,
    thinking,
    tool_use,
)
from tests.support.laboratory import CLAUDE_VERSIONS, agent_executable
from tests.support.model_server import Json
from tests.support.raw_claude import RawClaude
from tools.agents.install import InstallError, names, resolve

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

Claude = Callable[..., RawClaude]


@pytest.mark.parametrize("name", CLAUDE_VERSIONS)
def test_the_installed_cli_is_the_pinned_version(name: str) -> None:
    command = [str(agent_executable(name)), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split()[0] == resolve(name).version


@pytest.mark.parametrize("name", names())
def test_a_pin_resolves_to_a_program_of_its_installation(name: str) -> None:
    agent = resolve(name)
    assert agent.executable.is_relative_to(agent.directory)
    assert agent.version in agent.directory.name
    assert "{" not in f"{agent.package} {agent.executable}"


def test_an_agent_without_a_pin_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(InstallError, match="'nope'; there are: claude, "):
        resolve("nope")


@pytest.mark.skipif(not netns.inside(), reason="not in a network namespace")
def test_only_loopback_can_be_reached() -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


@EVERY_CLAUDE
async def test_a_reply_streams_chunk_by_chunk(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(
        reply(thinking("Hm, ", "a greeting."), redacted_thinking(), text("Hel", "lo, ", "Wörld"))
    )
    async with claude() as cli:
        await cli.prompt("Greet the world")
        result = await cli.result()
    assert cli.deltas == ["Hel", "lo, ", "Wörld"]
    assert result["result"] == "Hello, Wörld"
    assert [a["message"]["content"][0]["type"] for a in cli.of("assistant")] == [
        "thinking",
        "redacted_thinking",
        "text",
    ]
    [request] = model_server.requests
    assert request.prompt == "Greet the world"
    assert (request.is_sub_agent, request.outcome) == (False, "answered")
    assert request.headers["x-api-key"] == "test-key"


@EVERY_CLAUDE
async def test_a_tool_runs_once_its_permission_is_given(
    claude: Claude, model_server: AnthropicServer, workspace: Path
) -> None:
    model_server.script(
        reply(text("Writing."), tool_use("Bash", {"command": "echo hi > a.txt"}, id="toolu_w")),
        reply(text("Written."), when=result_of("toolu_w")),
    )
    async with claude() as cli:
        await cli.prompt("Write a file")
        asked = await cli.permission()
        assert not (workspace / "a.txt").exists()
        assert asked["request"]["tool_use_id"] == "toolu_w"
        await cli.allow(asked)
        assert (await cli.result())["result"] == "Written."
    assert (workspace / "a.txt").read_text() == "hi\n"


async def test_a_denial_reaches_the_model(claude: Claude, model_server: AnthropicServer) -> None:
    model_server.script(
        reply(tool_use("Bash", {"command": "rm -r important"}, id="toolu_rm")),
        reply(text("Then not."), when=result_of("toolu_rm")),
    )
    async with claude() as cli:
        await cli.prompt("Clean up")
        await cli.deny(await cli.permission(), "Never that.")
        await cli.result()
    result = model_server.requests[1].tool_results["toolu_rm"]
    assert result["is_error"]
    assert "Never that." in result["content"]


@EVERY_CLAUDE
async def test_a_gate_holds_the_stream_for_an_interrupt(
    claude: Claude, model_server: AnthropicServer
) -> None:
    gate = Gate("in the middle of a sentence")
    model_server.script(reply(text("This is ", gate, "never said")))
    async with claude() as cli:
        await cli.prompt("Talk")
        await gate.reached()
        await cli.until(lambda line: cli.deltas == ["This is "])
        assert (await cli.control("interrupt"))["subtype"] == "success"
        result = await cli.result()
        await model_server.requests[0].ended.wait()
    assert result["terminal_reason"] == "aborted_streaming"
    assert model_server.requests[0].outcome == "dropped"


@EVERY_CLAUDE
async def test_an_opened_gate_lets_the_stream_go_on(
    claude: Claude, model_server: AnthropicServer
) -> None:
    gate = Gate()
    model_server.script(reply(text("One, ", gate, "two.")))
    async with claude() as cli:
        await cli.prompt("Count")
        await gate.reached()
        assert not cli.of("result")
        gate.open()
        assert (await cli.result())["result"] == "One, two."


@EVERY_CLAUDE
async def test_a_429_is_retried(claude: Claude, model_server: AnthropicServer) -> None:
    model_server.script(
        error(429, "rate_limit_error", "Slow down", headers={"retry-after": "0"}),
        reply(text("Here I am.")),
    )
    async with claude() as cli:
        await cli.prompt("Hello?")
        assert (await cli.result())["result"] == "Here I am."
    [retry] = cli.of("system", "api_retry")
    assert retry["error_status"] == 429


async def test_an_error_ends_the_turn(claude: Claude, model_server: AnthropicServer) -> None:
    model_server.script(error(403, "permission_error", "Not you"))
    async with claude() as cli:
        await cli.prompt("Hello?")
        result = await cli.result()
    assert (result["is_error"], result["api_error_status"]) == (True, 403)


async def test_an_error_inside_the_stream_is_retried(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(error_event()), reply(text("Better.")))
    async with claude() as cli:
        await cli.prompt("Hello?")
        assert (await cli.result())["result"] == "Better."


@pytest.mark.parametrize("claude_cli", ["claude"], indirect=True)
async def test_a_cut_stream_is_asked_for_again_without_streaming(
    claude: Claude, model_server: AnthropicServer
) -> None:
    gate = Gate()
    model_server.script(reply(text("Half a ", gate, cut())), reply(text("The whole sentence.")))
    async with claude() as cli:
        await cli.prompt("Speak")
        await cli.until(lambda line: cli.deltas == ["Half a "])
        gate.open()
        assert (await cli.result())["result"] == "The whole sentence."
    assert cli.deltas == ["Half a "]
    first, second = model_server.requests
    assert (first.outcome, second.outcome) == ("cut", "answered")
    assert not second.body.get("stream")


async def test_a_connection_reset_is_retried(claude: Claude, model_server: AnthropicServer) -> None:
    model_server.script(reset(), reply(text("Back.")))
    async with claude() as cli:
        await cli.prompt("Speak")
        assert (await cli.result())["result"] == "Back."
    assert model_server.requests[0].outcome == "cut"


async def test_refused_connections_are_an_error_that_names_them(
    claude: Claude, model_server: AnthropicServer
) -> None:
    async with claude(CLAUDE_CODE_MAX_RETRIES="1") as cli:
        async with model_server.refusing():
            await cli.prompt("Anyone there?")
            result = await cli.result()
        assert result["is_error"]
        assert "ECONNREFUSED" in json.dumps(cli.lines) or "Unable to connect" in result["result"]
        model_server.script(reply(text("Now I am.")))
        await cli.prompt("And now?")
        assert (await cli.result())["result"] == "Now I am."


async def test_a_refusal_is_an_error(claude: Claude, model_server: AnthropicServer) -> None:
    model_server.script(refusal("I would "))
    async with claude() as cli:
        await cli.prompt("Do evil")
        assert (await cli.result())["is_error"]


@EVERY_CLAUDE
async def test_mcp_tools_are_called(
    claude: Claude, model_server: AnthropicServer, tmp_path: Path
) -> None:
    config = {"mcpServers": {"lab": {"command": sys.executable, "args": [mcp_echo.__file__]}}}
    calls: dict[str, Json] = {
        "echo": {"text": "Grüße"},
        "add": {"a": 2, "b": 3},
        "fail": {},
        "image": {},
    }
    model_server.script(
        reply(*(tool_use(f"mcp__lab__{n}", i, id=f"toolu_{n}") for n, i in calls.items())),
        reply(text("Called."), when=after("mcp__lab__echo")),
    )
    options = ("--mcp-config", json.dumps(config), "--strict-mcp-config")
    async with claude(*options, "--allowedTools", "mcp__lab") as cli:
        await cli.prompt("Use the lab")
        assert (await cli.result())["result"] == "Called."
    results = cli.tool_results
    assert "Grüße" in json.dumps(results["toolu_echo"], ensure_ascii=False)
    assert "5" in json.dumps(results["toolu_add"]["content"])
    assert results["toolu_fail"]["is_error"]
    assert results["toolu_image"]["content"][0]["type"] == "image"


@EVERY_CLAUDE
async def test_a_sub_agent_has_replies_of_its_own(
    claude: Claude, model_server: AnthropicServer
) -> None:
    task = {
        "description": "Look around",
        "prompt": "Look around, please",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    model_server.script(
        reply(tool_use("Agent", task, id="toolu_task"), when=main_thread),
        reply(tool_use("Bash", {"command": "pwd"}, id="toolu_pwd"), when=sub_agent),
        reply(text("Nothing here."), when=sub_agent),
        reply(text("It found nothing."), when=result_of("toolu_task")),
    )
    async with claude() as cli:
        await cli.prompt("Send someone")
        assert (await cli.result())["result"] == "It found nothing."
    inner = [line for line in cli.of("assistant") if line["parent_tool_use_id"] == "toolu_task"]
    assert inner[0]["message"]["content"][0]["id"] == "toolu_pwd"
    [started] = [r for r in model_server.requests if says("Look around, please")(r)]
    assert started.is_sub_agent


@EVERY_CLAUDE
async def test_a_question_gets_its_answer(claude: Claude, model_server: AnthropicServer) -> None:
    question = {
        "question": "Which color?",
        "header": "Color",
        "multiSelect": False,
        "options": [
            {"label": "Red", "description": "Warm"},
            {"label": "Blue", "description": "Cold"},
        ],
    }
    model_server.script(
        reply(tool_use("AskUserQuestion", {"questions": [question]}, id="toolu_ask")),
        reply(text("Blue it is."), when=result_of("toolu_ask")),
    )
    async with claude() as cli:
        await cli.prompt("Paint it")
        asked = await cli.permission()
        assert asked["request"]["input"]["questions"] == [question]
        await cli.allow(asked, answers={"Which color?": "Blue"})
        await cli.result()
    answer = model_server.requests[1].tool_results["toolu_ask"]
    assert '"Which color?"="Blue"' in answer["content"]


@EVERY_CLAUDE
async def test_an_image_in_the_prompt_reaches_the_model(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("A dot.")))
    source = {"type": "base64", "media_type": "image/png", "data": mcp_echo.PNG}
    async with claude() as cli:
        await cli.prompt(
            [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
        )
        await cli.result()
    [request] = model_server.requests
    assert [b["source"]["type"] for b in request.news if b["type"] == "image"] == ["base64"]


@EVERY_CLAUDE
async def test_the_end_of_a_background_task_starts_a_turn(
    claude: Claude, model_server: AnthropicServer, workspace: Path
) -> None:
    os.mkfifo(workspace / "go")
    go = os.open(workspace / "go", os.O_RDWR)
    command = {"command": "read word < go", "run_in_background": True}
    model_server.script(
        reply(tool_use("Bash", command, id="toolu_bg")),
        reply(text("Started."), when=result_of("toolu_bg")),
        reply(text("It has ended."), when=task_notification),
    )
    async with claude("--allowedTools", "Bash") as cli:
        await cli.prompt("Work in the background")
        assert (await cli.result())["result"] == "Started."
        os.write(go, b"now\n")
        spontaneous = await cli.result()
    assert spontaneous["result"] == "It has ended."
    assert spontaneous["origin"]["kind"] == "task-notification"
    os.close(go)


@EVERY_CLAUDE
async def test_broken_tool_input_is_the_models_to_mend(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(
        reply(tool_use("Bash", ['{"command": "ec', "ho"], id="toolu_broken")),
        reply(text("My mistake."), when=result_of("toolu_broken")),
    )
    async with claude() as cli:
        await cli.prompt("Echo")
        await cli.result()
    assert model_server.requests[1].tool_results["toolu_broken"]["is_error"]


@EVERY_CLAUDE
async def test_a_stream_that_hangs_can_be_interrupted(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("Wait ", hang(), "never said")), reply(text("Yes?")))
    async with claude() as cli:
        await cli.prompt("Talk")
        await cli.until(lambda line: cli.deltas == ["Wait "])
        await cli.control("interrupt")
        assert (await cli.result())["is_error"]
        await cli.prompt("Still there?")
        assert (await cli.result())["result"] == "Yes?"


async def test_a_reply_can_be_cut_after_any_event(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("never said"), cut_after=1), reply(text("Again.")))
    async with claude() as cli:
        await cli.prompt("Speak")
        assert (await cli.result())["result"] == "Again."
    assert model_server.requests[0].outcome == "cut"
    assert cli.deltas in ([], ["Again."])


@EVERY_CLAUDE
async def test_the_demonstration_plays_to_its_end(
    claude: Claude, model_server: AnthropicServer, workspace: Path
) -> None:
    model_server.script(*demo_script.demo_script())
    async with claude() as cli:
        await cli.prompt(demo_script.PROMPT)
        bash = await cli.permission()
        assert bash["request"]["tool_name"] == "Bash"
        await cli.allow(bash)
        question = await cli.permission()
        [asked] = question["request"]["input"]["questions"]
        await cli.allow(question, answers={asked["question"]: "Cat"})
        edit = await cli.permission()
        assert edit["request"]["tool_name"] == "Edit"
        await cli.allow(edit)
        assert (await cli.result())["subtype"] == "success"
    assert "A cat looks into the pond" in (workspace / demo_script.FILE).read_text()


async def test_a_request_outside_the_script_fails_the_test(
    claude: Claude, model_server: AnthropicServer
) -> None:
    model_server.script(reply(text("unreachable"), when=says("something else")))
    async with claude() as cli:
        await cli.prompt("Surprise")
        result = await cli.result()
    assert "no reply for request 0 of the main thread: 'Surprise'" in result["result"]
    with pytest.raises(AssertionError, match=r"(?s)Surprise.*not used.*unreachable"):
        model_server.check()
    model_server.errors.clear()
    model_server.forget_script()
