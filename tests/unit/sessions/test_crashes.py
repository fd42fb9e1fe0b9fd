"""Daemons that are killed, at any commit; the next one goes on from what was durable."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentstream.v1 import error_pb2, event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AgentExit, Answer, Prompt
from agentstreamd.model import delta, started, tool_call_item
from agentstreamd.sessions.errors import SessionError
from tests.support.scripted_adapter import (
    RAW,
    Script,
    ScriptedDriver,
    message,
    turn_ended,
    turn_started,
    withdrawn,
)
from tests.unit.sessions.lab import ACCEPT, REJECT, Lab, Refused, laboratory, until

QUEUE = service_pb2.WHEN_BUSY_QUEUE


async def running(lab: Lab) -> ScriptedDriver:
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


async def half_said(driver: ScriptedDriver) -> None:
    """An open message, an open call."""
    item = message("half", "")[0].event.item_started.item
    await driver.publish(
        started(item, RAW),
        delta("half", 0, event_pb2.DELTA_KIND_TEXT, "so f", RAW),
        started(tool_call_item("t", name="Bash", arguments_json="", call_id="c"), RAW),
    )


async def test_what_was_under_way_is_closed(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await half_said(driver)
    await driver.ask()
    await lab.get()
    await lab.crash()
    events = await lab.events()
    ended = events[-1].turn_ended
    assert (ended.status, ended.error.code) == (
        event_pb2.TURN_STATUS_FAILED,
        error_pb2.ERROR_CODE_DAEMON_RESTARTED,
    )
    (resolved,) = await lab.only("permission_resolved")
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_CANCELLED
    texts = [i.item.content[0].text.text for i in await lab.only("item_completed")]
    assert "so f" in texts
    shown = await lab.get()
    assert (shown.state, list(shown.pending_requests)) == (session_pb2.SESSION_STATE_IDLE, [])
    await lab.send("second")
    await until(lambda: script.prompts == ["first", "second"])


async def test_what_was_open_outside_a_turn_is_closed_too(lab: Lab) -> None:
    driver = await running(lab)
    await driver.end_turn()
    await half_said(driver)
    await driver.ask()
    await lab.get()
    await lab.crash()
    assert not (await lab.get()).pending_requests
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE


async def test_an_answer_on_its_way_has_an_unknown_outcome(lab: Lab, script: Script) -> None:
    async def never(driver: ScriptedDriver, request_id: str, answer: Answer) -> None:
        await asyncio.Event().wait()

    driver = await running(lab)
    await driver.ask()
    script.on_answer = never
    call = asyncio.ensure_future(lab.respond("ask", ACCEPT))
    await until(lambda: "answer" in script.calls)
    await lab.crash()
    await asyncio.wait([call])
    (resolved,) = await lab.only("permission_resolved")
    assert resolved.outcome == interaction_pb2.REQUEST_OUTCOME_UNKNOWN_AFTER_CRASH
    assert resolved.resolved_by == interaction_pb2.RESOLVED_BY_DAEMON
    with Refused(
        error_pb2.ERROR_REASON_REQUEST_ALREADY_RESOLVED,
        outcome="REQUEST_OUTCOME_UNKNOWN_AFTER_CRASH",
    ):
        await lab.respond("ask", ACCEPT)
    assert not await lab.log.get_prefix("s", "intent/")


async def test_a_message_that_was_not_durable_is_not_there(lab: Lab, script: Script) -> None:
    await lab.create()
    lab.gate.shut()
    call = asyncio.ensure_future(lab.send(client_message_id="c"))
    await asyncio.to_thread(lab.gate.reached.wait)
    await lab.crash()
    await asyncio.wait([call])
    prompts = list(script.prompts)
    assert await lab.kinds() == ["session_started"]
    await lab.send(client_message_id="c")
    await until(lambda: len(script.prompts) == len(prompts) + 1)


async def test_the_queue_goes_on(lab: Lab, script: Script) -> None:
    await running(lab)
    await lab.send("second", when_busy=QUEUE)
    await lab.send("third", when_busy=QUEUE)
    await lab.crash()
    await until(lambda: script.prompts == ["first", "second"])
    await script.driver.end_turn()
    await until(lambda: script.prompts[-1] == "third")
    await script.driver.end_turn()


@pytest.mark.parametrize("when_busy", [QUEUE, service_pb2.WHEN_BUSY_STEER])
async def test_a_message_accepted_before_is_known_after(
    lab: Lab, script: Script, when_busy: service_pb2.WhenBusy.ValueType
) -> None:
    await running(lab)
    first = await lab.send("second", client_message_id="c", when_busy=when_busy)
    await lab.crash()
    assert await lab.send("second", client_message_id="c", when_busy=when_busy) == first
    if when_busy == QUEUE:
        await until(lambda: script.prompts == ["first", "second"])


@pytest.mark.parametrize("ended", [True, False])
async def test_a_message_on_its_way_into_a_turn_is_kept(
    lab: Lab, script: Script, ended: bool
) -> None:
    async def on_steer(driver: ScriptedDriver, prompt: Prompt) -> None:
        if ended:
            await driver.end_turn()
        await asyncio.Event().wait()

    script.on_steer = on_steer
    driver = await running(lab)
    sending = asyncio.ensure_future(
        lab.send("more", client_message_id="c", when_busy=service_pb2.WHEN_BUSY_STEER)
    )
    await until(lambda: "steer" in script.calls)
    turn_id = next(one.turn_id for one in await lab.events() if one.turn_id)
    await lab.crash()
    await asyncio.wait([sending])
    texts = [i.item.content[0].text.text for i in await lab.only("item_completed")]
    assert texts == ["first", "more"]
    again = await lab.send("more", client_message_id="c", when_busy=service_pb2.WHEN_BUSY_STEER)
    assert (again.turn_id, again.disposition) == (
        turn_id,
        service_pb2.MESSAGE_DISPOSITION_STEERED,
    )
    assert driver.prompts == script.prompts == ["first"]
    assert not await lab.log.get_prefix("s", "steer/")


async def test_ids_of_before_the_crash_are_not_given_again(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await driver.say("before", "same")
    await driver.ask("ask")
    await lab.respond("ask", ACCEPT)
    await driver.end_turn()
    await lab.get()
    await lab.crash()
    await lab.send("second")
    await until(lambda: len(script.prompts) == 2)
    await script.driver.say("after", "same")
    await script.driver.ask("ask")
    (pending,) = (await lab.get()).pending_requests
    assert pending.permission.request_id == "ask~2"
    await lab.respond("ask~2", REJECT)
    assert script.driver.answers == [("ask", REJECT)]
    ids = [c.item.item_id for c in await lab.only("item_completed")]
    assert "same~2" in ids


async def test_usage_is_counted_once(lab: Lab, script: Script) -> None:
    for crashed in (False, True):
        if crashed:
            await lab.crash()
        else:
            await lab.create()
        await lab.send()
        await until(lambda: lab.script.driver.prompts)
        usage = session_pb2.Usage(input_tokens=5, cost_micro_usd=7)
        await script.driver.publish(turn_ended(usage=usage))
        await lab.get()
    await lab.crash()
    usage = (await lab.get()).usage
    assert (usage.input_tokens, usage.cost_micro_usd) == (10, 14)
    assert not usage.HasField("output_tokens")


async def scenario(lab: Lab) -> None:
    """A session's life, with something in it of everything."""
    script = lab.script
    await lab.create(title="T")
    await lab.send("first", client_message_id="c1")
    await until(lambda: script.prompts)
    driver = script.driver
    await half_said(driver)
    await lab.get()
    await driver.ask("a")
    await lab.get()
    await lab.respond("a", ACCEPT)
    await lab.send("second", when_busy=QUEUE)
    await driver.ask("b")
    await lab.update("title", title="U")
    await driver.publish(turn_ended())
    await lab.get()
    await until(lambda: len(script.prompts) == 2)
    driver.context.sink.save_state(b"s")
    await driver.ask("c")
    await lab.get()
    await lab.interrupt()
    await driver.publish(turn_started())
    await lab.get()
    await driver.say("by itself")
    await lab.get()
    driver.exit(AgentExit(expected=False, message="crashed"))
    await lab.manager.end("s")


@pytest.mark.parametrize("commit", range(1, 24))
async def test_a_kill_before_any_commit(tmp_path: Path, commit: int) -> None:
    async with laboratory(tmp_path) as lab:
        await lab.stop()
        await lab.start(crash_at=commit)
        task = asyncio.ensure_future(scenario(lab))
        task.add_done_callback(lambda _: lab.gate.hit.set())
        await asyncio.to_thread(lab.gate.hit.wait)
        await lab.crash()
        task.cancel()
        await asyncio.wait([task])
        await lab.check_laws()
        # Killed once more, while it closes what was open or goes on with the queue.
        await lab.crash()
        await lab.check_laws()
        session = await lab.create(title="T")
        if session.state != session_pb2.SESSION_STATE_ENDED:
            if session.turn_id:
                await lab.interrupt()
            await lab.send("last", client_message_id="last")
            await until(lambda: lab.script.driver.prompts[-1:] == ["last"])
            await lab.script.driver.end_turn()
        assert not await lab.log.get_prefix("s", "intent/")
        assert not await lab.log.get_prefix("s", "queue/")


Step = tuple[str, int]
NAMES = [
    *("send", "send", "queue", "queue", "steer", "again"),
    *("say", "say", "half", "ask", "ask", "withdraw", "end_turn", "end_turn", "begin_turn"),
    *("respond", "respond", "interrupt", "discard", "title", "exit", "crash", "restart"),
]


class Life:
    """Carries out steps, and remembers what was promised."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.accepted: dict[str, service_pb2.SendMessageResponse] = {}
        self.requests: dict[str, service_pb2.SendMessageRequest] = {}
        self.discarded = False
        self.number = 0

    async def step(self, name: str, number: int) -> None:
        self.number += 1
        lab, drivers = self.lab, self.lab.script.drivers
        try:
            match name:
                case "send" | "queue" | "steer":
                    await self.send(f"{name}{self.number}", name)
                case "again" if self.accepted:
                    client_id = list(self.accepted)[number % len(self.accepted)]
                    again = await lab.manager.send(self.requests[client_id])
                    assert again == self.accepted[client_id]
                case "crash":
                    await lab.crash()
                case "restart":
                    await lab.restart()
                case "interrupt":
                    await lab.interrupt()
                case "discard":
                    self.discarded = True
                    await lab.interrupt(discard_queue=True)
                case "title":
                    await lab.update("title", title=str(number))
                case "respond":
                    pending = (await lab.get()).pending_requests
                    request_id = pending[0].permission.request_id if pending else "none"
                    await lab.respond(request_id, ACCEPT if number % 2 else REJECT)
                case _ if drivers and drivers[-1].alive:
                    await self.agent(drivers[-1], name, number)
        except SessionError:
            pass

    async def send(self, client_id: str, how: str) -> None:
        when = {"send": 1, "queue": QUEUE, "steer": service_pb2.WHEN_BUSY_STEER}[how]
        request: Any = service_pb2.SendMessageRequest(
            session_id="s",
            client_message_id=client_id,
            parts=[service_pb2.InputPart(text=client_id)],
            when_busy=when,  # type: ignore[arg-type]
        )
        self.requests[client_id] = request
        self.accepted[client_id] = await self.lab.manager.send(request)

    async def agent(self, driver: ScriptedDriver, name: str, number: int) -> None:
        match name:
            case "say":
                await driver.say("text", f"m{number % 3}")
            case "half":
                item = message(f"h{number % 3}", "")[0].event.item_started.item
                part = delta(f"h{number % 3}", 0, event_pb2.DELTA_KIND_TEXT, "x", RAW)
                await driver.publish(started(item, RAW), part)
            case "ask":
                await driver.ask(f"r{number % 3}")
            case "withdraw":
                await driver.publish(withdrawn(f"r{number % 3}"))
            case "end_turn":
                await driver.end_turn()
            case "begin_turn":
                await driver.publish(turn_started())
            case _:
                driver.exit(AgentExit(expected=bool(number % 2)))

    async def settle(self) -> None:
        """Let everything that was accepted come to its end."""
        for _ in range(len(self.accepted) + 2):
            shown = await self.lab.get()
            if not (shown.turn_id or shown.queue):
                return
            if shown.turn_id:
                await self.lab.interrupt()
            await until(
                lambda: (
                    (live := self.lab.manager._live.get("s")) is None
                    or not live.runtime.turns.queue
                    or live.runtime.keeper.turn_id
                )
            )
        raise AssertionError("the queue does not end")

    async def check(self) -> None:
        started_turns = [
            event.turn_id
            for event in await self.lab.events()
            if event.WhichOneof("payload") == "turn_started"
        ]
        for client_id, response in self.accepted.items():
            if response.disposition != service_pb2.MESSAGE_DISPOSITION_STEERED:
                times = started_turns.count(response.turn_id)
                assert times == 1 or (times == 0 and self.discarded), client_id
        prompts = self.lab.script.prompts
        assert len(set(prompts)) == len(prompts), "a message reached the agent twice"


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), max_size=25))
def test_any_life_keeps_the_laws_and_the_promises(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    async def live() -> None:
        async with laboratory(tmp_path_factory.mktemp("life")) as lab:
            await lab.create()
            life = Life(lab)
            for name, number in steps:
                await life.step(name, number)
                await lab.check_laws()
            await life.settle()
            await life.check()

    asyncio.run(live())
