"""All clients do the same: one set of scenarios, run by each of them against a daemon of its own.

`scenarios.json` says what is done and what is expected; a program for each client carries it out.
What they print of the same stream is compared, too: see `test_all_clients_say_the_same`.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from agentstream.v1 import error_pb2, service_pb2, service_pb2_grpc
from tests.clients.conftest import NAMES, Json, Program, program
from tests.clients.faulty import faulty_server
from tests.faults.scale import randomness
from tests.support.daemon import Daemon, daemon, start
from tests.support.fault_proxy import FaultProxy, Faults, fault_proxy

SCENARIOS: list[Json] = json.loads(Path(__file__).with_name("scenarios.json").read_text())
TOKEN = "a-token-of-the-tests-0123456789"
READER = "a-token-that-only-reads-0123456789"
# Calls of grpclib lose a status that is there when the connection closes right after it.
NOTICE = "--drain-notice-seconds=0.5"
MEGABYTE = "x" * 1_000_000
# 1.6 MB of events come in batches of up to 1 MB: cuts hit the first batch, or a later one.
CUTS = Faults(cut_after_bytes=1_500_000)
IMPATIENT = """
interrupt_grace_seconds = 0.3
max_queued_messages = 1
[agents.mock.options]
ack_timeout_seconds = 0.3
"""


def plan(client: Program, connections: Json) -> Json:
    """What a client is to do."""
    scenarios = []
    for scenario in SCENARIOS:
        if scenario.get("resumes") and not client.resumes:
            continue
        text = json.dumps(scenario["steps"])
        text = text.replace("$session", f"{client.name}-{scenario['name']}")
        text = text.replace('"$megabyte"', json.dumps(MEGABYTE))
        scenarios.append({"name": scenario["name"], "steps": json.loads(text)})
    return {"connections": connections, "scenarios": scenarios}


class Restarting:
    """A daemon that is ended and started again, on the same port and data.

    It is killed, or stopped as a deploy does it: then it drains.
    """

    def __init__(self, directory: Path, *, kill: bool) -> None:
        self._directory = directory
        self._kill = kill
        self._task: asyncio.Task[None] | None = None
        self.running: Daemon

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Start it."""
        self.running = await start(self._directory, listen=[address])

    def restart(self, session_id: str) -> None:
        """End it, start it again, and let the session do something."""
        self._task = asyncio.create_task(self._restart(session_id))

    async def _restart(self, session_id: str) -> None:
        await (self.running.kill() if self._kill else self.running.stop())
        await self.start(self.running.target)
        async with self.running.aio_channel() as channel:
            stub = service_pb2_grpc.AgentServiceStub(channel)
            part = service_pb2.InputPart(text="say back")
            await stub.SendMessage(
                service_pb2.SendMessageRequest(session_id=session_id, parts=[part])
            )

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            await self._task
        await self.running.stop()


@dataclass(frozen=True, slots=True)
class Servers:
    """What clients connect to.

    Attributes:
        connections: By name.
        draining: The daemon that is stopped once a stream of it is open.
        restarting: The one that is killed then, and started again.
        deploying: The one that is stopped then, and started again.
        cutting: The proxy that cuts connections.
    """

    connections: Json
    draining: Daemon
    restarting: Restarting
    deploying: Restarting
    cutting: FaultProxy


def certificates(directory: Path) -> dict[str, str]:
    """Files of certificates for both sides, and of the authority that signed them."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    for name, host in (("server", "127.0.0.1"), ("client", "client.example")):
        issued = authority.issue_cert(host)
        issued.private_key_and_cert_chain_pem.write_to_path(str(directory / f"{name}.pem"))
    return {name: str(directory / f"{name}.pem") for name in ("ca", "server", "client")}


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[Servers]:
    """Daemons of all kinds that the scenarios need."""
    token_file = directory / "token"
    token_file.write_text(f"{TOKEN}\n{READER} read\n")
    token_file.chmod(0o600)
    config = directory / "agentstreamd.toml"
    config.write_text(IMPATIENT)
    pem = certificates(directory)
    tls = (
        f"--tls-certificate-file={pem['server']}",
        f"--tls-key-file={pem['server']}",
        f"--tls-client-ca-file={pem['ca']}",
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        main = await enter(daemon(directory / "main", f"--config={config}"))
        guarded = await enter(daemon(directory / "guarded", f"--token-file={token_file}"))
        encrypted = await enter(daemon(directory / "encrypted", *tls, f"--token-file={token_file}"))
        draining = await enter(daemon(directory / "draining", NOTICE))
        proxy = await enter(fault_proxy(main.target, CUTS, randomness("conformance")))
        faulty = await enter(faulty_server(directory / "faulty"))
        restarting = Restarting(directory / "restarting", kill=True)
        deploying = Restarting(directory / "deploying", kill=False)
        for one in (restarting, deploying):
            await one.start()
            stack.push_async_callback(one.stop)
        connections = {
            "main": {"address": main.target},
            "restarting": {"address": restarting.running.target},
            "deploying": {"address": deploying.running.target},
            "tls": {"address": encrypted.target, "token": TOKEN, "tls": pem},
            "no-token": {"address": guarded.target},
            "wrong-token": {"address": guarded.target, "token": "another"},
            "token": {"address": guarded.target, "token": TOKEN},
            "reader": {"address": guarded.target, "token": READER},
            "cut": {"address": proxy.target},
            "draining": {"address": draining.target},
            "faulty": {"address": faulty},
        }
        yield Servers(connections, draining, restarting, deploying, proxy)


def expectations() -> Iterator[tuple[str, int, Json]]:
    """What the scenarios expect."""
    for scenario in SCENARIOS:
        for number, step in enumerate(scenario["steps"]):
            if "expect" in step:
                yield scenario["name"], number, step["expect"]


def differs(expected: Any, got: Any, path: str = "") -> Iterator[str]:
    """Where what was got is not as expected; more than is expected may be there."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key, value in expected.items():
            if key == "kinds":
                kinds = [next(iter(set(event) & KINDS)) for event in got["events"]]
                yield from differs(value, kinds, f"{path}.kinds")
            else:
                yield from differs(value, got.get(key), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differs(one, other, f"{path}[{index}]")
    elif expected != got:
        yield f"{path}: expected {str(expected)[:200]}, got {str(got)[:500]}"


KINDS = {
    "sessionStarted",
    "sessionUpdated",
    "sessionEnded",
    "turnStarted",
    "turnEnded",
    "itemStarted",
    "itemDelta",
    "itemCompleted",
    "permissionRequested",
    "permissionResolved",
    "questionRequested",
    "questionResolved",
    "formRequested",
    "formResolved",
    "error",
    "agentUnparsed",
}

_results: dict[str, dict[tuple[str, int], Json]] = {}


async def results_of(client: Program, directory: Path) -> dict[tuple[str, int], Json]:
    """What the client made of the scenarios; once for all tests."""
    if client.name not in _results:
        async with servers(directory) as made:
            # In the order of the scenarios that wait for it.
            happenings = [lambda: made.draining.signal(signal.SIGTERM)]
            if client.resumes:
                happenings.insert(0, lambda: made.deploying.restart(f"{client.name}-deploy"))
                happenings.insert(0, lambda: made.restarting.restart(f"{client.name}-restart"))
            todo = iter(happenings)
            _results[client.name] = await client.run(
                plan(client, made.connections), lambda: next(todo)()
            )
            assert next(todo, None) is None, "all of it happened"
            assert made.cutting.total_cuts > 0 or not client.resumes
    return _results[client.name]


async def test_the_client_does_what_the_scenarios_say(client: Program, tmp_path: Path) -> None:
    results = await results_of(client, tmp_path)
    steps = plan(client, {})["scenarios"]
    assert set(results) == {(s["name"], i) for s in steps for i in range(len(s["steps"]))}
    wrong = [
        f"{name}, step {number}{difference}"
        for name, number, expected in expectations()
        if (name, number) in results
        for difference in differs(expected, results[name, number])
    ]
    unexpected = [
        f"{name}, step {number}: {result['error']}"
        for (name, number), result in results.items()
        if "error" in result
        and (name, number) not in {(n, i) for n, i, e in expectations() if "error" in e}
    ]
    assert wrong + unexpected == []


def normalized(client: str, value: Any) -> Any:
    """What differs from run to run made the same: ids that the daemon makes up, and times."""
    text = json.dumps(value, sort_keys=True)
    text = text.replace(f"{client}-", "CLIENT-")
    found: dict[str, str] = {}
    text = re.sub(
        r"[0-9a-f]{32}", lambda match: found.setdefault(match[0], f"id{len(found)}"), text
    )
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)
    return json.loads(text)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "grpcio"])
async def test_all_clients_say_the_same(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a client prints of a stream, as ProtoJSON, is what the first one prints."""
    first = await results_of(program("grpcio"), tmp_path_factory.mktemp("first"))
    other = await results_of(program(name), tmp_path_factory.mktemp("other"))
    steps = {scenario["name"]: scenario["steps"] for scenario in SCENARIOS}
    for key, result in other.items():
        if key[0] in ("agents", "draining") or "cancelAfter" in steps[key[0]][key[1]]:
            continue  # what is installed here; cut at any event
        same = normalized("grpcio", first[key]) == normalized(name, result)
        assert same, f"{key}: {list(differs(first[key], result))[:3]}"


async def test_all_clients_print_one_stored_stream_alike(tmp_path: Path) -> None:
    """The stream of one session, with the native messages, read by all clients."""
    session = {"sessionId": "s", "config": {"agent": "mock", "workingDirectory": "/"}}
    script = next(scenario for scenario in SCENARIOS if scenario["name"] == "turn")["steps"][1]
    message = {**script["request"], "sessionId": "s"}
    follow = {"stream": {"sessionId": "s", "follow": True}, "until": "turnEnded"}
    make = [
        {"call": "CreateSession", "request": session},
        {"call": "SendMessage", "request": message},
        follow,
    ]
    read = [{"stream": {"sessionId": "s", "includeRaw": True}}]
    async with daemon(tmp_path / "data") as running:
        connections = {"main": {"address": running.target}}
        made = {"connections": connections, "scenarios": [{"name": "make", "steps": make}]}
        await program("grpcio").run(made)
        again = {"connections": connections, "scenarios": [{"name": "read", "steps": read}]}
        printed = await asyncio.gather(*(program(name).run(again) for name in NAMES))
    streams = [result["read", 0]["events"] for result in printed]
    assert len(streams[0]) > 20
    for name, stream in zip(NAMES, streams, strict=True):
        if name == "betterproto":
            assert stream == microseconds(streams[0])
            continue
        assert stream == streams[0], f"{name}: {list(differs(streams[0], stream))[:3]}"


def microseconds(value: Any) -> Any:
    """Times without nanoseconds: betterproto2 has Python's datetime for them."""
    return json.loads(re.sub(r"(\d\d:\d\d:\d\d\.\d{6})\d{3}Z", r"\1Z", json.dumps(value)))


def test_the_scenarios_provoke_every_reason_of_the_contract() -> None:
    text = json.dumps(SCENARIOS)
    names = {name.removeprefix("ERROR_REASON_") for name in error_pb2.ErrorReason.keys()}  # noqa: SIM118
    provoked = {name for name in names if f'"reason": "{name}"' in text}
    assert names - provoked == {"UNSPECIFIED"}, "which is never sent"
