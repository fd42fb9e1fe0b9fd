"""Claude Code through the daemon: what goes wrong between it and its model, and before that."""

from pathlib import Path

import pytest
from grpc import StatusCode, aio

from agentstream.v1 import agent_pb2, error_pb2, item_pb2, service_pb2
from tests.support.anthropic_server import (
    AnthropicReply,
    AnthropicServer,
    Gate,
    cut,
    error,
    refusal,
    reply,
    says,
    text,
)
from tests.support.e2e import COMPLETED, FAILED, Bench, lab, refused
from tests.support.hermetic import base_environment
from tests.support.laboratory import CLAUDE_VERSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_CLAUDE = pytest.mark.parametrize("claude_cli", CLAUDE_VERSIONS, indirect=True)

AT_ONCE = {"retry-after": "0"}
ONE_RETRY = {"CLAUDE_CODE_MAX_RETRIES": "1"}


@EVERY_CLAUDE
@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        (error(400, "invalid_request_error"), error_pb2.ERROR_CODE_INVALID_REQUEST, 400),
        (error(401, "authentication_error"), error_pb2.ERROR_CODE_AUTHENTICATION, 401),
        (
            error(400, "invalid_request_error", "Your credit balance is too low to go on."),
            error_pb2.ERROR_CODE_QUOTA_EXCEEDED,
            400,
        ),
        (
            error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"),
            error_pb2.ERROR_CODE_CONTEXT_WINDOW_EXCEEDED,
            None,
        ),
        (error(429, "rate_limit_error", headers=AT_ONCE), error_pb2.ERROR_CODE_RATE_LIMITED, 429),
        (error(500, headers=AT_ONCE), error_pb2.ERROR_CODE_PROVIDER_FAILED, 500),
        (error(529, "overloaded_error", headers=AT_ONCE), error_pb2.ERROR_CODE_OVERLOADED, 529),
        (refusal("I would "), error_pb2.ERROR_CODE_REFUSED, None),
    ],
    ids=["400", "401", "quota", "context", "429", "500", "529", "refusal"],
)
async def test_a_turn_that_the_model_fails_says_why_and_the_session_goes_on(
    bench: Bench,
    model: AnthropicServer,
    answer: AnthropicReply,
    code: error_pb2.ErrorCode.ValueType,
    status: int | None,
) -> None:
    model.script(reply(text("Here I am."), when=says("Again")), *[answer] * 12)
    session = await bench.session(env=ONE_RETRY)
    ended = await session.turn("Hello?")
    assert ended.status == FAILED
    assert ended.error.code == code
    assert ended.error.message
    assert not ended.error.will_retry
    said = [e.error for e in session.of("error")]
    assert said[-1] == ended.error
    assert all(one.will_retry for one in said[:-1])
    if status is not None:
        assert {one.http_status for one in said if one.HasField("http_status")} <= {status}
    model.forget_script()
    model.script(reply(text("Here I am.")))
    assert (await session.turn("Again")).status == COMPLETED
    assert session.texts[-1] == "Here I am."


@EVERY_CLAUDE
async def test_a_retry_that_succeeds_is_an_error_that_passes(
    bench: Bench, model: AnthropicServer
) -> None:
    model.script(
        error(429, "rate_limit_error", "Slow down", headers=AT_ONCE),
        error(529, "overloaded_error", headers=AT_ONCE),
        reply(text("Here I am.")),
    )
    session = await bench.session()
    ended = await session.turn("Hello?")
    assert ended.status == COMPLETED
    assert not ended.HasField("error")
    first, second = (e.error for e in session.of("error"))
    assert (first.code, first.http_status, first.attempt) == (
        error_pb2.ERROR_CODE_RATE_LIMITED,
        429,
        1,
    )
    assert (second.code, second.attempt) == (error_pb2.ERROR_CODE_OVERLOADED, 2)
    assert first.will_retry
    assert first.HasField("retry_delay")
    assert session.texts == ["Here I am."]


@EVERY_CLAUDE
async def test_a_model_that_cannot_be_reached_is_a_network_error(
    bench: Bench, model: AnthropicServer
) -> None:
    session = await bench.session(env=ONE_RETRY)
    async with model.refusing():
        ended = await session.turn("Anyone there?")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_NETWORK
    model.script(reply(text("Now I am.")))
    assert (await session.turn("And now?")).status == COMPLETED


@EVERY_CLAUDE
async def test_a_stream_that_was_cut_is_taken_back(bench: Bench, model: AnthropicServer) -> None:
    gate = Gate()
    model.script(
        reply(text("Half a ", gate, cut())), reply(text("The whole sentence."), repeat=True)
    )
    session = await bench.session()
    await session.send("Speak")
    await session.delta("Half a ")
    gate.open()
    assert (await session.turn_ended()).status == COMPLETED
    half, *others = [i for i in session.items if i.role == item_pb2.ITEM_ROLE_ASSISTANT]
    assert half.status == item_pb2.ITEM_STATUS_FAILED
    assert half.content[0].text.text == "Half a "
    whole = others[-1]
    assert whole.content[0].text.text == "The whole sentence."
    assert half.superseded_by == whole.item_id


@EVERY_CLAUDE
async def test_without_a_login_the_turn_says_so(bench: Bench, model: AnthropicServer) -> None:
    del bench.env["ANTHROPIC_API_KEY"]
    session = await bench.session()
    ended = await session.turn("Hello?")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_AUTHENTICATION
    assert "/login" in ended.error.message
    assert model.requests == []


@EVERY_CLAUDE
async def test_a_working_directory_that_is_gone_fails_the_turn_not_the_session(
    bench: Bench, model: AnthropicServer, tmp_path: Path
) -> None:
    directory = tmp_path / "brief"
    directory.mkdir()
    session = await bench.session(working_directory=directory)
    directory.rmdir()
    ended = await session.turn("Hello?")
    assert ended.status == FAILED
    assert ended.error.code == error_pb2.ERROR_CODE_AGENT_START_FAILED
    assert str(directory) in ended.error.message
    directory.mkdir()
    model.script(reply(text("Here.")))
    assert (await session.turn("And now?")).status == COMPLETED


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"working_directory": Path("/no/such/directory")}, "config.working_directory"),
        ({"model": "--dangerously-skip-permissions"}, "config.model"),
        ({"agent_options": {"max_turns": "many"}}, "config.agent_options"),
        ({"agent_options": {"no_such_option": "1"}}, "config.agent_options"),
    ],
)
async def test_settings_that_cannot_be_are_refused_by_name(
    bench: Bench, config: dict[str, object], field: str
) -> None:
    with pytest.raises(aio.AioRpcError) as failed:
        await bench.session(**config)  # type: ignore[arg-type]
    assert refused(failed.value) == (StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert field in str(failed.value.details()) or field.removeprefix("config.") in str(
        failed.value.details()
    )


async def test_putting_a_message_into_a_running_turn_is_refused(
    bench: Bench, model: AnthropicServer
) -> None:
    gate = Gate()
    model.script(reply(text("One, ", gate, "two.")))
    session = await bench.session()
    sent = await session.send("Count")
    await session.delta("One, ")
    with pytest.raises(aio.AioRpcError) as failed:
        await session.send("Faster", when_busy=service_pb2.WHEN_BUSY_STEER)
    assert refused(failed.value) == (
        StatusCode.FAILED_PRECONDITION,
        "CAPABILITY_NOT_SUPPORTED",
    )
    gate.open()
    assert (await session.turn_ended(sent.turn_id)).status == COMPLETED


async def test_a_missing_cli_is_told_before_there_is_a_session(
    tmp_path: Path, workspace: Path
) -> None:
    flag = "--agent-executables=claude=/no/such/claude"
    async with lab(tmp_path, base_environment(tmp_path / "home"), flag) as without:
        agent = (await without.stub.GetAgent(service_pb2.GetAgentRequest(name="claude"))).agent
        assert agent.state == agent_pb2.AGENT_STATE_NOT_INSTALLED
        assert "/no/such/claude" in agent.unavailable_reason
        with pytest.raises(aio.AioRpcError) as failed:
            await Bench(without, "claude", workspace, {}).session()
        assert refused(failed.value) == (StatusCode.FAILED_PRECONDITION, "AGENT_UNAVAILABLE")


async def test_a_cli_that_goes_missing_fails_the_turn(
    tmp_path: Path, workspace: Path, claude_cli: Path, model: AnthropicServer
) -> None:
    link = tmp_path / "claude"
    link.symlink_to(claude_cli)
    flag = f"--agent-executables=claude={link}"
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "test-key"}
    async with lab(tmp_path, base_environment(tmp_path / "home"), flag) as other:
        bench = Bench(other, "claude", workspace, env)
        session = await bench.session()
        link.unlink()
        ended = await session.turn("Hello?")
        assert ended.status == FAILED
        assert ended.error.code == error_pb2.ERROR_CODE_AGENT_START_FAILED
        link.symlink_to(claude_cli)
        model.script(reply(text("Here.")))
        assert (await session.turn("And now?")).status == COMPLETED
        await bench.finish()


async def test_the_agent_is_described(bench: Bench) -> None:
    listed = await bench.lab.stub.ListAgents(service_pb2.ListAgentsRequest())
    [agent] = [agent for agent in listed.agents if agent.name == "claude"]
    assert agent.state == agent_pb2.AGENT_STATE_AVAILABLE
    assert agent.version == "2.1.197"
    assert not agent.capabilities.steer
    assert {mode.mode for mode in agent.permission_modes} == {1, 2, 3, 4}
