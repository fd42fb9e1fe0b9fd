"""How many sessions may run a turn at once."""

import asyncio

import pytest

from agentstream.v1 import error_pb2, service_pb2
from tests.unit.sessions.lab import Refused, laboratory, until

QUEUE = service_pb2.WHEN_BUSY_QUEUE
STEER = service_pb2.WHEN_BUSY_STEER


async def test_only_so_many_sessions_may_run_a_turn(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with laboratory(tmp_path_factory.mktemp("max"), max_running_sessions=1) as lab:
        await lab.create("s")
        await lab.create("t")
        first = await lab.send(client_message_id="c")
        await until(lambda: lab.script.prompts)
        with Refused(
            error_pb2.ERROR_REASON_LIMIT_EXCEEDED, limit="max_running_sessions", value="1"
        ):
            await lab.send(session_id="t")
        # What starts no further turn is fine.
        assert await lab.send(client_message_id="c") == first
        await lab.send("more", when_busy=QUEUE)
        await lab.send("now", when_busy=STEER)


async def test_a_turn_that_ends_or_is_deleted_with_its_session_makes_room_for_another(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with laboratory(tmp_path_factory.mktemp("room"), max_running_sessions=1) as lab:
        for session_id in "stu":
            await lab.create(session_id)
        await lab.send()
        assert lab.manager.running == 1
        await lab.manager.delete("s")
        assert lab.manager.running == 0
        await lab.send(session_id="t")
        assert lab.manager.running == 1
        await lab.manager.interrupt(service_pb2.InterruptTurnRequest(session_id="t"))
        assert lab.manager.running == 0
        await lab.send(session_id="u")
        assert lab.manager.running == 1


async def test_of_two_messages_at_once_the_limit_lets_one_pass(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with laboratory(tmp_path_factory.mktemp("max"), max_running_sessions=1) as lab:
        await lab.create("s")
        await lab.create("t")
        sent = await asyncio.gather(
            lab.send(client_message_id="a"),
            lab.send(session_id="t", client_message_id="b"),
            return_exceptions=True,
        )
        assert sum(isinstance(one, service_pb2.SendMessageResponse) for one in sent) == 1
