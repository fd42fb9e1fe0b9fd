"""Daemons that drain and come back behind Envoy, while clients go on.

A daemon owns its data directory, so a rolling restart is: the old one drains and ends, a new one
starts on the same data and address. Envoy and the clients outlive that.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from agentstream.client import (
    AsyncClient,
    AsyncSession,
    Backoff,
    Unavailable,
    typed_errors,
)
from agentstream.v1 import error_pb2, event_pb2, service_pb2
from agentstreamd.laws import check
from agentstreamd.service.tls import Certificates as ServerCertificates
from agentstreamd.service.tls import TlsFiles
from tests.mesh.conftest import TOKEN, meshed
from tests.mesh.test_envoy import LIST, new_session
from tests.support.envoy import Certificates, envoy
from tests.support.grpc_edge import running
from tests.support.model_server import DEADLINE
from tests.support.sessions import fake_sessions

Answer = TypeVar("Answer")

SESSIONS = 4
READERS = 2
RESTARTS = 2
NOTICE = 3.0
"""Envoy looks at health every second."""
PAUSE = 0.02
"""Between messages, in seconds: about as many as are carried out."""
# Patient: while a loaded machine starts a daemon, attempts fail at once.
BACKOFF = Backoff(initial=0.05, maximum=0.5, attempts=200)


async def test_a_daemon_that_drains_gets_no_more_calls(
    tmp_path: Path, certificates: Certificates
) -> None:
    """The server of a daemon in this process: it drains for as long as it is let."""
    chain, key = certificates.daemon
    tls = ServerCertificates(TlsFiles(chain, key, certificates.ca))
    async with (
        asyncio.timeout(DEADLINE),
        fake_sessions(tmp_path / "log") as sessions,
        running(sessions, tls=tls) as daemon,
        envoy(tmp_path, certificates, upstream=daemon.server.addresses[0].port) as proxy,
        proxy.client() as client,
    ):
        await sessions.add("quiet")
        await proxy.healthy(True)
        stream = client.stub.StreamEvents(
            service_pb2.StreamEventsRequest(session_id="quiet", follow=True)
        )
        assert (await anext(aiter(stream))).HasField("opened")
        await daemon.server.drain()
        with pytest.raises(Unavailable) as caught, typed_errors():
            async for _ in stream:
                pass
        assert caught.value.reason == "SERVER_DRAINING"
        await proxy.healthy(False)
        before = len(sessions.calls)
        with pytest.raises(Unavailable, match="no healthy upstream"), typed_errors():
            await client.stub.ListAgents(LIST)
        assert len(sessions.calls) == before


async def served(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer to a call that may be repeated, once there is a daemon to give it."""
    while True:
        try:
            with typed_errors():
                return await call()
        except Unavailable:
            pass
        await asyncio.sleep(PAUSE)


@dataclass
class Load:
    """A session under load, and what its clients saw.

    Attributes:
        client: The connection of all of them.
        session: The session.
        seen: The events that each reader was given.
        sent: How many messages were accepted.
        ended: How many ends of turns all readers have seen together.
        finishing: The session is being ended.
        cuts: What readers were told of cuts.
        news: Set whenever a message was accepted or an event read.
    """

    client: AsyncClient
    session: AsyncSession
    seen: list[list[event_pb2.Event]] = field(default_factory=list)
    sent: int = 0
    ended: int = 0
    finishing: bool = False
    cuts: list[object] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, stop: asyncio.Event) -> None:
        """Send one message after the other, each again and again until it is accepted."""
        while not stop.is_set():
            request = service_pb2.SendMessageRequest(
                session_id=self.session.session_id,
                client_message_id=f"message-{self.sent}",
                when_busy=service_pb2.WHEN_BUSY_QUEUE,
            )
            request.parts.add(text=f"say number {self.sent}\ntool Bash {{}} => done")
            await served(functools.partial(self._sent, request))
            self.sent += 1
            self.news.set()
            await asyncio.sleep(PAUSE)

    async def _sent(self, request: service_pb2.SendMessageRequest) -> None:
        await self.client.stub.SendMessage(request, timeout=DEADLINE)

    async def read(self) -> None:
        """Follow the session to its end."""
        events: list[event_pb2.Event] = []
        self.seen.append(events)
        stream = self.client.follow(
            self.session.session_id,
            backoff=BACKOFF,
            on_reconnect=lambda error, delay: self.cuts.append(error),
        )
        async with stream:
            async for event in stream:
                events.append(event)
                self.ended += event.WhichOneof("payload") == "turn_ended"
                if event.WhichOneof("payload") == "session_ended":
                    assert self.finishing, event
                self.news.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition on what was sent and seen holds."""
        while not reached():
            self.news.clear()
            await self.news.wait()

    async def go_on(self) -> None:
        """Wait until more messages were accepted, and all readers have seen what came of them."""
        wanted = self.sent + 5
        await self.until(lambda: self.sent >= wanted)
        latest = (await served(self.session.get)).latest_sequence
        await self.until(lambda: all(len(events) >= latest for events in self.seen))

    async def finish(self) -> None:
        """End the session when all that was sent has been carried out."""
        await self.until(lambda: self.ended == READERS * self.sent)
        self.finishing = True
        await self.session.end()


async def test_clients_notice_nothing_of_a_rolling_restart_but_latency(
    tmp_path: Path, certificates: Certificates
) -> None:
    stop = asyncio.Event()
    async with (
        asyncio.timeout(DEADLINE),
        meshed(tmp_path, certificates, f"--drain-notice-seconds={NOTICE}") as mesh,
        mesh.envoy.client(TOKEN) as client,
        asyncio.TaskGroup() as readers,
    ):
        loads = [Load(client, await new_session(client, tmp_path)) for _ in range(SESSIONS)]
        async with asyncio.TaskGroup() as senders:
            for load in loads:
                for _ in range(READERS):
                    readers.create_task(load.read())
                senders.create_task(load.send(stop))
            for _ in range(RESTARTS):
                await asyncio.gather(*(load.go_on() for load in loads))
                await mesh.restart()
            await asyncio.gather(*(load.go_on() for load in loads))
            stop.set()
        for load in loads:
            await load.finish()
    for load in loads:
        first, *others = load.seen
        assert [event.sequence for event in first] == list(range(1, len(first) + 1))
        assert all(other == first for other in others)
        assert check(first, complete=True) == []
        assert_each_message_was_taken_once(first, load.sent)
        assert len(load.cuts) >= READERS * RESTARTS  # they were cut indeed


def assert_each_message_was_taken_once(events: list[event_pb2.Event], sent: int) -> None:
    turns = Counter(
        event.turn_started.client_message_id
        for event in events
        if event.WhichOneof("payload") == "turn_started"
    )
    assert turns == {f"message-{number}": 1 for number in range(sent)}
    ends = [event.turn_ended for event in events if event.WhichOneof("payload") == "turn_ended"]
    # A turn that runs while the daemon drains ends as failed, and says why: at most one for each.
    failed = [end for end in ends if end.status != event_pb2.TURN_STATUS_COMPLETED]
    assert len(failed) <= RESTARTS
    assert {end.error.code for end in failed} <= {error_pb2.ERROR_CODE_DAEMON_RESTARTED}
