"""Class of fault: answers that race, get lost on their way, or never come.

Budget: none; each request is resolved exactly once, everybody who asks learns how, and a request
whose answer did not reach the agent still waits for one.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2
from grpc import aio

from agentstream.v1 import (
    event_pb2,
    interaction_pb2,
    service_pb2,
    service_pb2_grpc,
    session_pb2,
)
from tests.faults.scale import scaled
from tests.support.e2e import ACCEPT, COMPLETED, INTERRUPTED, REJECT, Bench, Session, lab, refused
from tests.support.grpc_edge import details

CLIENTS = 50
ALREADY_RESOLVED = (grpc.StatusCode.FAILED_PRECONDITION, "REQUEST_ALREADY_RESOLVED")
ROUNDS = scaled(5, 200)
ASK = 'ask permission command "make"\non accept say made\non reject say left alone'


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with lab(tmp_path, {}) as daemon:
        made = Bench(daemon, "mock", tmp_path, {})
        yield made
        await made.finish()


async def answer(
    session: Session, request_id: str, decision: interaction_pb2.PermissionDecision.ValueType
) -> tuple[str, int]:
    """Answer, each client on its own; the outcome and the sequence of the resolution."""
    async with session.lab.daemon.aio_channel() as channel:
        stub = service_pb2_grpc.AgentServiceStub(channel)
        request = service_pb2.RespondRequest(
            session_id=session.id,
            request_id=request_id,
            permission=interaction_pb2.PermissionAnswer(decision=decision),
        )
        try:
            response = await stub.Respond(request)
        except aio.AioRpcError as error:
            if refused(error) != ALREADY_RESOLVED:
                raise
            info = details(error).info
            return info.metadata["outcome"], int(info.metadata["sequence"])
        outcome = interaction_pb2.RequestOutcome.Name(response.permission.outcome)
        return outcome, response.sequence


async def test_of_fifty_clients_that_answer_at_once_exactly_one_wins(bench: Bench) -> None:
    session = await bench.session()
    for number in range(ROUNDS):
        sent = await session.send(ASK)
        asked = await session.permission()
        answers = [
            answer(session, asked.request_id, ACCEPT if client % 2 else REJECT)
            for client in range(CLIENTS)
        ]
        outcomes = set(await asyncio.gather(*answers))
        assert len(outcomes) == 1
        [(outcome, sequence)] = outcomes
        await session.turn_ended(sent.turn_id)
        [resolved] = [
            event
            for event in session.of("permission_resolved")
            if event.permission_resolved.request_id == asked.request_id
        ]
        said = interaction_pb2.RequestOutcome.Name(resolved.permission_resolved.outcome)
        assert (said, resolved.sequence) == (outcome, sequence)
        told = "made" if outcome == "REQUEST_OUTCOME_ACCEPTED" else "left alone"
        assert session.texts[number] == told


async def test_an_answer_that_did_not_reach_the_agent_leaves_the_request_pending(
    bench: Bench,
) -> None:
    session = await bench.session(agent_options={"lose_answers": "3"})
    sent = await session.send(ASK)
    asked = await session.permission()
    for _ in range(3):
        with pytest.raises(aio.AioRpcError) as caught:
            await session.decide(asked)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert details(caught.value).info.reason == "ANSWER_NOT_DELIVERED"
        [pending] = (await session.get()).pending_requests
        assert pending.permission.request_id == asked.request_id
    assert (await session.decide(asked)).outcome == interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    assert (await session.turn_ended(sent.turn_id)).status == COMPLETED
    assert session.texts == ["made"]


@pytest.mark.parametrize(
    ("policy", "status", "texts"),
    [
        (session_pb2.REQUEST_POLICY_REJECT, COMPLETED, ["left alone"]),
        (session_pb2.REQUEST_POLICY_ACCEPT, COMPLETED, ["made"]),
        (session_pb2.REQUEST_POLICY_INTERRUPT, INTERRUPTED, []),
    ],
)
async def test_a_request_that_nobody_answers_is_resolved_as_the_session_says(
    bench: Bench,
    policy: session_pb2.RequestPolicy.ValueType,
    status: event_pb2.TurnStatus.ValueType,
    texts: list[str],
) -> None:
    session = await bench.session(
        request_timeout=duration_pb2.Duration(nanos=50_000_000), request_policy=policy
    )
    waiting = 'ask permission command "make"\nwait interrupt'
    assert (await session.turn(waiting if status == INTERRUPTED else ASK)).status == status
    [resolved] = session.of("permission_resolved")
    assert resolved.permission_resolved.resolved_by == interaction_pb2.RESOLVED_BY_POLICY
    assert session.texts == texts


async def test_an_interrupt_resolves_what_is_open(bench: Bench) -> None:
    session = await bench.session()
    await session.send("parallel\n" + 'ask permission command "make"\n' * 5 + "end")
    for _ in range(5):
        await session.permission()
    await session.interrupt()
    await session.turn_ended()
    assert len(session.of("permission_resolved")) == 5
    assert not (await session.get()).pending_requests


async def test_the_end_of_a_session_resolves_what_is_open(bench: Bench) -> None:
    session = await bench.session()
    await session.send('ask question "Which?" a|b')
    await session.question()
    await session.end()
    await session.stream_ended()
    [resolved] = session.of("question_resolved")
    assert resolved.question_resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
