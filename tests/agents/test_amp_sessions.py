"""Amp through the whole daemon: queued prompts, permissions, a timeout."""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from agentstream.v1 import (
    event_pb2,
    interaction_pb2,
    service_pb2,
    service_pb2_grpc,
    session_pb2,
)
from agentstreamd.laws import check
from tests.support.amp_actor import AmpActorServer
from tests.support.amp_lab import amp_environment
from tests.support.amp_server import AmpServer
from tests.support.anthropic_server import reply, result_of, says, text, tool_use
from tests.support.daemon import daemon
from tests.support.hermetic import make_workspace
from tests.support.laboratory import agent_executable

QUEUE = service_pb2.WHEN_BUSY_QUEUE


class Client:
    """One session of a daemon, and its events so far."""

    def __init__(self, responses: AsyncIterable[service_pb2.StreamEventsResponse]) -> None:
        self._responses = aiter(responses)
        self._waiting: deque[event_pb2.Event] = deque()
        self.events: list[event_pb2.Event] = []

    async def until(self, payload: str) -> event_pb2.Event:
        while True:
            while self._waiting:
                event = self._waiting.popleft()
                self.events.append(event)
                if event.WhichOneof("payload") == payload:
                    return event
            response = await anext(self._responses)
            self._waiting.extend(response.batch.events)


CALLS = {
    "amp": tool_use("Bash", {"cmd": "touch made"}, id="toolu_1"),
    "amp-newest": tool_use("shell_command", {"command": "touch made"}, id=f"TU-{1:022}"),
}
CALL_IDS = {"amp": "toolu_1", "amp-newest": f"TU-{1:022}"}


@pytest.fixture(params=CALLS)
def cli(request: pytest.FixtureRequest) -> str:
    """Name of a pin: the CLI that runs its agent loop itself, and the one whose server does."""
    name: str = request.param
    return name


@pytest.fixture
async def model(cli: str) -> AsyncIterator[AmpServer]:
    async with AmpServer() if cli == "amp" else AmpActorServer() as server:
        yield server
        server.check()


@pytest.mark.parametrize("timeout_seconds", [0, 1], ids=["answered", "expired"])
async def test_permissions_and_queued_prompts_through_the_daemon(
    tmp_path: Path, cli: str, model: AmpServer, timeout_seconds: int
) -> None:
    model.script(
        reply(CALLS[cli], when=says("First")),
        reply(text("One."), when=result_of(CALL_IDS[cli])),
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
    executable = agent_executable(cli)
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
        assert asked.call_id == CALL_IDS[cli]
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
