"""Amp through the whole daemon: queued prompts, permissions, a timeout; the newest CLI."""

from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from agentstream.v1 import (
    error_pb2,
    event_pb2,
    interaction_pb2,
    service_pb2,
    service_pb2_grpc,
    session_pb2,
)
from agentstreamd.adapters.base import AgentFailed
from agentstreamd.laws import check
from tests.support.amp_lab import AmpLab, amp_environment, amp_lab
from tests.support.amp_server import AmpServer
from tests.support.anthropic_server import reply, result_of, says, text, tool_use
from tests.support.daemon import daemon
from tests.support.hermetic import make_workspace
from tests.support.laboratory import agent_executable

QUEUE = service_pb2.WHEN_BUSY_QUEUE


class Client:
    """One session of a daemon, and its events so far."""

    def __init__(self, responses: AsyncIterable[service_pb2.StreamEventsResponse]) -> None:
        self._responses = responses
        self.events: list[event_pb2.Event] = []

    async def until(self, payload: str) -> event_pb2.Event:
        async for response in self._responses:
            for event in response.batch.events:
                self.events.append(event)
                if event.WhichOneof("payload") == payload:
                    return event
        raise AssertionError(f"the stream ended before {payload}")


@pytest.fixture
async def model() -> AsyncIterator[AmpServer]:
    async with AmpServer() as server:
        yield server
        server.check()


@pytest.mark.parametrize("timeout_seconds", [0, 1], ids=["answered", "expired"])
async def test_permissions_and_queued_prompts_through_the_daemon(
    tmp_path: Path, model: AmpServer, timeout_seconds: int
) -> None:
    model.script(
        reply(tool_use("Bash", {"cmd": "touch made"}, id="toolu_1"), when=says("First")),
        reply(text("One."), when=result_of("toolu_1")),
        reply(text("Two."), when=says("Second")),
    )
    workspace = make_workspace(tmp_path / "workspace")
    config = session_pb2.SessionConfig(
        agent="amp",
        working_directory=str(workspace),
        env=amp_environment(tmp_path / "home", model.url),
    )
    if timeout_seconds:
        config.request_timeout.CopyFrom(duration_pb2.Duration(seconds=timeout_seconds))
    executable = agent_executable("amp")
    flag = f"--agent-executables=amp={executable}"
    async with (
        daemon(tmp_path / "data", flag) as running,
        running.aio_channel() as channel,
    ):
        stub = service_pb2_grpc.AgentServiceStub(channel)
        await stub.CreateSession(service_pb2.CreateSessionRequest(session_id="s", config=config))
        call = stub.StreamEvents(service_pb2.StreamEventsRequest(session_id="s", follow=True))
        client = Client(call)
        for prompt in ("First", "Second"):
            part = service_pb2.InputPart(text=prompt)
            await stub.SendMessage(
                service_pb2.SendMessageRequest(session_id="s", parts=[part], when_busy=QUEUE)
            )
        asked = (await client.until("permission_requested")).permission_requested
        assert asked.call_id == "toolu_1"
        if not timeout_seconds:
            answer = interaction_pb2.PermissionAnswer(
                decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
            )
            await stub.Respond(
                service_pb2.RespondRequest(
                    session_id="s", request_id=asked.request_id, permission=answer
                )
            )
        resolved = (await client.until("permission_resolved")).permission_resolved
        assert resolved.outcome == (
            interaction_pb2.REQUEST_OUTCOME_EXPIRED
            if timeout_seconds
            else interaction_pb2.REQUEST_OUTCOME_ACCEPTED
        )
        for _ in range(2):
            ended = (await client.until("turn_ended")).turn_ended
            assert ended.status == event_pb2.TURN_STATUS_COMPLETED
        await stub.EndSession(service_pb2.EndSessionRequest(session_id="s"))
        await client.until("session_ended")
    assert (workspace / "made").exists() is not bool(timeout_seconds)
    assert check(client.events, complete=True, raw=False) == []
    assert not any(event.HasField("agent_unparsed") for event in client.events)


# --- the newest CLI, as far as it goes without its servers ---------------------------------------


@pytest.fixture
async def newest(tmp_path: Path) -> AsyncIterator[AmpLab]:
    async with amp_lab(tmp_path, agent_executable("amp-newest")) as made:
        yield made


async def test_the_newest_says_its_version_and_modes(newest: AmpLab) -> None:
    agent = await (await newest.adapter()).describe()
    assert agent.version == "0.0.1790142911-g7618fb"
    assert [mode.name for mode in agent.modes] == ["low", "medium", "high", "ultra"]


async def test_the_newest_says_that_its_key_is_wrong(newest: AmpLab) -> None:
    newest.server.key = "another"
    session = await newest.session()
    with pytest.raises(AgentFailed) as caught:
        await session.driver().send(session.prompt("Hi"))
    assert caught.value.code == error_pb2.ERROR_CODE_AUTHENTICATION


async def test_the_newest_says_that_its_server_cannot_be_reached(newest: AmpLab) -> None:
    session = await newest.session(env={"AMP_URL": "http://127.0.0.1:9"})
    with pytest.raises(AgentFailed) as caught:
        await session.driver().send(session.prompt("Hi"))
    assert caught.value.code == error_pb2.ERROR_CODE_NETWORK
