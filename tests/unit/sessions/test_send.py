"""Messages of clients: starting turns, waiting for them, going into them."""

import asyncio
from functools import partial

import pytest

from agentstream.v1 import error_pb2, event_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AgentFailed, AgentUnavailable, NotDelivered, Prompt
from tests.support.scripted_adapter import (
    Script,
    ScriptedDriver,
    session_updated,
    turn_ended,
    turn_started,
)
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import Lab, Refused, laboratory, until

QUEUE = service_pb2.WHEN_BUSY_QUEUE
STEER = service_pb2.WHEN_BUSY_STEER


async def running(lab: Lab) -> ScriptedDriver:
    """A session whose agent has a message and works on it."""
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


async def test_streaming_after_the_sequence_shows_all_that_the_message_sets_off(
    lab: Lab, script: Script
) -> None:
    await lab.create()
    sent = await lab.send("hello", client_message_id="c1")
    assert (sent.sequence, sent.disposition) == (1, service_pb2.MESSAGE_DISPOSITION_STARTED)
    after = (await lab.events())[sent.sequence :]
    assert [event.WhichOneof("payload") for event in after] == [
        "turn_started",
        "item_started",
        "item_completed",
    ]
    assert {event.turn_id for event in after} == {sent.turn_id}
    assert after[0].turn_started.client_message_id == "c1"
    assert after[0].turn_started.trigger == event_pb2.TURN_TRIGGER_CLIENT
    assert after[2].item_completed.item.content[0].text.text == "hello"
    assert [(e.source, e.synthetic) for e in after] == [(event_pb2.EVENT_SOURCE_DAEMON, False)] * 3
    shown = await lab.get()
    assert (shown.state, shown.turn_id) == (session_pb2.SESSION_STATE_RUNNING, sent.turn_id)
    await until(lambda: script.prompts)
    await script.driver.end_turn()
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE


async def test_a_command_starts_a_turn_of_its_own_kind(lab: Lab, script: Script) -> None:
    await lab.create()
    await lab.send("/compact", command=True)
    (started,) = await lab.only("turn_started")
    assert started.trigger == event_pb2.TURN_TRIGGER_COMMAND


async def test_the_agent_has_no_message_that_is_not_durable(lab: Lab, script: Script) -> None:
    durable: list[list[str]] = []

    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        durable.append([e.WhichOneof("payload") or "" for e in await lab.durable()])

    script.on_send = on_send
    await lab.create()
    lab.gate.shut()
    call = asyncio.ensure_future(lab.send())
    await asyncio.to_thread(lab.gate.reached.wait)
    assert script.calls == ["open"]
    lab.gate.open()
    await call
    await until(lambda: durable)
    assert durable == [["session_started", "turn_started", "item_started", "item_completed"]]


async def test_the_same_message_again_gives_the_same_answer(lab: Lab, script: Script) -> None:
    await lab.create()
    first = await lab.send(client_message_id="c")
    assert await lab.send(client_message_id="c") == first
    await until(lambda: script.prompts)
    await script.driver.end_turn()
    assert await lab.send(client_message_id="c") == first
    await lab.restart()
    assert await lab.send(client_message_id="c") == first
    assert script.prompts == ["hello"]
    assert len(await lab.only("turn_started")) == 1


async def test_the_same_message_many_times_at_once_is_one(lab: Lab, script: Script) -> None:
    await lab.create()
    sent = await asyncio.gather(*(lab.send(client_message_id="c") for _ in range(20)))
    assert all(one == sent[0] for one in sent)
    assert len(await lab.only("turn_started")) == 1


@pytest.mark.parametrize("when_busy", [QUEUE, STEER])
async def test_the_same_message_many_times_at_once_is_queued_or_steered_once(
    lab: Lab, script: Script, when_busy: service_pb2.WhenBusy.ValueType
) -> None:
    driver = await running(lab)
    calls = (lab.send("second", client_message_id="c", when_busy=when_busy) for _ in range(10))
    sent = await asyncio.gather(*calls)
    assert all(one == sent[0] for one in sent)
    await driver.end_turn()
    await until(lambda: len(script.prompts) == 2)
    assert script.prompts == ["first", "second"]
    if when_busy == QUEUE:
        await driver.end_turn()


async def test_another_message_of_the_same_id_is_refused(lab: Lab) -> None:
    await lab.create()
    calls = (lab.send(text, client_message_id="c") for text in ("a", "b"))
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, service_pb2.SendMessageResponse)
    with Refused(error_pb2.ERROR_REASON_MESSAGE_ID_REUSED, client_message_id="c"):
        assert isinstance(second, BaseException)
        raise second


async def test_a_refused_message_may_be_sent_again(lab: Lab) -> None:
    driver = await running(lab)
    with Refused(error_pb2.ERROR_REASON_TURN_IN_PROGRESS):
        await lab.send(client_message_id="c")
    await driver.end_turn()
    sent = await lab.send(client_message_id="c")
    assert sent.disposition == service_pb2.MESSAGE_DISPOSITION_STARTED


async def test_while_a_turn_runs_a_message_is_refused(lab: Lab) -> None:
    await running(lab)
    turn_id = (await lab.get()).turn_id
    with Refused(error_pb2.ERROR_REASON_TURN_IN_PROGRESS, turn_id=turn_id):
        await lab.send("second")


async def test_a_turn_the_agent_began_counts_as_running(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await driver.end_turn()
    await driver.publish(turn_started())
    with Refused(error_pb2.ERROR_REASON_TURN_IN_PROGRESS):
        await lab.send("second")
    queued = await lab.send("second", when_busy=QUEUE)
    await driver.end_turn()
    await until(lambda: script.prompts == ["first", "second"])
    assert (await lab.get()).turn_id == queued.turn_id
    await driver.end_turn()


async def test_queued_messages_start_in_order_as_turns_end(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    queued = [await lab.send(text, when_busy=QUEUE, client_message_id=text) for text in "abc"]
    assert {one.disposition for one in queued} == {service_pb2.MESSAGE_DISPOSITION_QUEUED}
    shown = (await lab.get()).queue
    assert [one.turn_id for one in shown] == [one.turn_id for one in queued]
    assert [(one.preview, one.client_message_id) for one in shown] == [(t, t) for t in "abc"]
    for number in range(4):
        await until(partial(lambda wanted: len(script.prompts) == wanted, number + 1))
        await driver.end_turn()
    assert script.prompts == ["first", "a", "b", "c"]
    started = [e for e in await lab.events() if e.WhichOneof("payload") == "turn_started"]
    assert [event.turn_id for event in started[1:]] == [one.turn_id for one in queued]
    assert {e.turn_started.trigger for e in started[1:]} == {event_pb2.TURN_TRIGGER_QUEUE}
    lengths = [len(update.queue.messages) for update in await lab.only("session_updated")]
    assert lengths == [1, 2, 3, 2, 1, 0]


async def test_what_the_agent_says_with_the_end_of_its_turn_comes_before_the_next_turn(
    lab: Lab, script: Script
) -> None:
    driver = await running(lab)
    await lab.send("second", when_busy=QUEUE)
    await driver.publish(turn_ended(), session_updated(title="late"))
    events = await lab.until("turn_started", 2)
    order = [event.WhichOneof("payload") for event in events]
    assert order[order.index("turn_ended") :][:4] == [
        "turn_ended",
        "session_updated",
        "session_updated",
        "turn_started",
    ]
    await driver.end_turn()


async def test_the_queue_survives_a_restart(lab: Lab, script: Script) -> None:
    await running(lab)
    queued = [await lab.send(text, when_busy=QUEUE) for text in "ab"]
    await lab.restart()
    await until(lambda: script.prompts[-1] == "a")
    shown = await lab.get()
    assert (shown.turn_id, shown.queue[0].turn_id) == (queued[0].turn_id, queued[1].turn_id)
    ended = await lab.only("turn_ended")
    assert ended[0].error.code == error_pb2.ERROR_CODE_DAEMON_RESTARTED
    await script.driver.end_turn()
    await until(lambda: script.prompts[-1] == "b")
    await script.driver.end_turn()
    await lab.restart()
    assert not (await lab.get()).queue
    assert script.prompts == ["first", "a", "b"]


async def test_a_failed_turn_does_not_stop_the_queue(lab: Lab, script: Script) -> None:
    driver = await running(lab)
    await lab.send("second", when_busy=QUEUE)
    await driver.end_turn(event_pb2.TURN_STATUS_FAILED)
    await until(lambda: script.prompts[-1] == "second")
    await driver.end_turn()


async def test_the_queue_has_a_bound(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with laboratory(tmp_path_factory.mktemp("q"), max_queued_messages=2) as lab:
        await running(lab)
        await lab.send("a", when_busy=QUEUE)
        await lab.send("b", when_busy=QUEUE)
        with Refused(error_pb2.ERROR_REASON_LIMIT_EXCEEDED, limit="max_queued_messages", value="2"):
            await lab.send("c", when_busy=QUEUE)


async def test_the_queue_has_a_bound_in_bytes(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with laboratory(tmp_path_factory.mktemp("q"), max_queued_bytes=1000) as lab:
        driver = await running(lab)
        await lab.send("a" * 450, when_busy=QUEUE)
        await lab.send("b" * 450, when_busy=QUEUE)
        with Refused(error_pb2.ERROR_REASON_LIMIT_EXCEEDED, limit="max_queued_bytes", value="1000"):
            await lab.send("c" * 450, when_busy=QUEUE)
        await driver.end_turn()
        await until(lambda: len(lab.script.prompts) == 2)
        await lab.send("c" * 450, when_busy=QUEUE)


async def test_a_steered_message_goes_into_the_running_turn(lab: Lab, script: Script) -> None:
    driver = await running(lab)

    async def on_steer(driver: ScriptedDriver, prompt: Prompt) -> None:
        await driver.say("I see")

    script.on_steer = on_steer
    before = (await lab.get()).latest_sequence
    sent = await lab.send("more", when_busy=STEER)
    assert sent.disposition == service_pb2.MESSAGE_DISPOSITION_STEERED
    assert sent.turn_id == (await lab.get()).turn_id
    assert sent.sequence == before
    texts = [i.item.content[0].text.text for i in await lab.only("item_completed")]
    assert texts == ["first", "I see", "more"]
    await driver.end_turn()


async def test_steering_starts_a_turn_when_none_runs(lab: Lab) -> None:
    await lab.create()
    sent = await lab.send(when_busy=STEER)
    assert sent.disposition == service_pb2.MESSAGE_DISPOSITION_STARTED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotDelivered("over"), error_pb2.ERROR_REASON_TURN_NOT_RUNNING),
        (AgentFailed("silent"), error_pb2.ERROR_REASON_AGENT_NOT_RESPONDING),
    ],
)
async def test_a_message_that_could_not_be_steered_is_not_in_the_stream(
    lab: Lab, script: Script, error: Exception, reason: error_pb2.ErrorReason.ValueType
) -> None:
    await running(lab)

    async def on_steer(driver: ScriptedDriver, prompt: Prompt) -> None:
        raise error

    script.on_steer = on_steer
    before = await lab.kinds()
    with Refused(reason):
        await lab.send("more", when_busy=STEER, client_message_id="c")
    assert await lab.kinds() == before
    assert not await lab.log.get_prefix("s", "steer/")


async def test_a_message_is_durable_before_it_is_steered(lab: Lab, script: Script) -> None:
    durable: list[int] = []

    async def on_steer(driver: ScriptedDriver, prompt: Prompt) -> None:
        durable.append(len(await lab.log.get_prefix("s", "steer/")))

    driver = await running(lab)
    script.on_steer = on_steer
    await lab.send("more", when_busy=STEER)
    assert durable == [1]
    assert not await lab.log.get_prefix("s", "steer/")
    await driver.end_turn()


async def test_an_agent_that_can_not_steer_is_not_asked_to(lab: Lab, script: Script) -> None:
    await running(lab)
    lab.adapter.agent.capabilities.steer = False
    with Refused(
        error_pb2.ERROR_REASON_CAPABILITY_NOT_SUPPORTED, agent="scripted", capability="steer"
    ):
        await lab.send("more", when_busy=STEER)
    assert "steer" not in script.calls


@pytest.mark.parametrize(
    "capability", ["image_input", "file_input", "commands", "message_model", "message_effort"]
)
async def test_what_the_agent_does_not_take_is_refused(lab: Lab, capability: str) -> None:
    await lab.create()
    setattr(lab.adapter.agent.capabilities, capability, False)
    request = service_pb2.SendMessageRequest(session_id="s")
    request.parts.add(text="/look")
    if capability == "image_input":
        request.parts.add(image=service_pb2.InputImage(media_type="image/png", data=b"x"))
    elif capability == "file_input":
        request.parts.add(file=service_pb2.InputFile(name="a", media_type="text/plain"))
    elif capability == "commands":
        request.command = True
    else:
        setattr(request, capability.removeprefix("message_"), "other")
    with Refused(error_pb2.ERROR_REASON_CAPABILITY_NOT_SUPPORTED, capability=capability):
        await lab.manager.send(request)
    assert await lab.kinds() == ["session_started"]


async def test_images_and_files_are_shown_in_the_stream(lab: Lab, script: Script) -> None:
    await lab.create()
    request = service_pb2.SendMessageRequest(session_id="s")
    request.parts.add(image=service_pb2.InputImage(media_type="image/png", data=b"x"))
    request.parts.add(file=service_pb2.InputFile(name="a.txt", media_type="text/plain", data=b"y"))
    await lab.manager.send(request)
    (completed,) = await lab.only("item_completed")
    image, file = completed.item.content
    assert image.image.data == b"x"
    assert file.file_ref.path == "a.txt"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            AgentFailed("no key", error_pb2.ERROR_CODE_AUTHENTICATION),
            error_pb2.ERROR_CODE_AUTHENTICATION,
        ),
        (AgentUnavailable("gone"), error_pb2.ERROR_CODE_AGENT_START_FAILED),
        (ZeroDivisionError("a fault"), error_pb2.ERROR_CODE_AGENT_INTERNAL),
    ],
)
async def test_a_message_that_the_agent_does_not_take_fails_its_turn(
    lab: Lab, script: Script, error: Exception, code: error_pb2.ErrorCode.ValueType
) -> None:
    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        raise error

    script.on_send = on_send
    await lab.create()
    await lab.send()
    await lab.until("turn_ended")
    assert (await lab.kinds())[-2:] == ["error", "turn_ended"]
    (said,) = await lab.only("error")
    (ended,) = await lab.only("turn_ended")
    assert ended.status == event_pb2.TURN_STATUS_FAILED
    assert said.code == ended.error.code == code
    assert "a fault" not in said.message
    script.on_send = Script.on_send
    await lab.send()
    await until(lambda: len(script.prompts) == 2)


async def test_a_turn_that_ends_before_the_driver_returns_has_ended(
    lab: Lab, script: Script
) -> None:
    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        await driver.end_turn()
        raise AgentFailed("and then it broke")

    script.on_send = on_send
    await lab.create()
    await lab.send()
    await lab.until("turn_ended")
    await lab.get()
    assert "error" not in await lab.kinds()


async def test_a_sender_who_goes_away_has_sent_all_the_same(lab: Lab, script: Script) -> None:
    await lab.create()
    lab.gate.shut()
    call = asyncio.ensure_future(lab.send(client_message_id="c"))
    await asyncio.to_thread(lab.gate.reached.wait)
    call.cancel()
    await asyncio.wait([call])
    lab.gate.open()
    again = await lab.send(client_message_id="c")
    assert again.disposition == service_pb2.MESSAGE_DISPOSITION_STARTED
    await until(lambda: script.prompts)
    assert script.prompts == ["hello"]


async def test_a_message_refused_by_the_log_is_the_same_when_sent_again(
    lab: Lab, script: Script
) -> None:
    await lab.create()
    lab.gate.error = disk_full()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.send(client_message_id="c")
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.send(client_message_id="c")
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.send()
    assert not script.prompts
    lab.gate.error = None
    await lab.until("turn_started")
    sent = await lab.send(client_message_id="c")
    assert sent.turn_id == (await lab.get()).turn_id
    await until(lambda: script.prompts)
    assert script.prompts == ["hello"]


@pytest.mark.parametrize(
    ("parts", "fields", "field"),
    [
        ([], {}, "parts"),
        ([{}], {}, "parts[0]"),
        ([{"text": " \n"}], {}, "parts[0].text"),
        (
            [{"image": service_pb2.InputImage(media_type="image/bmp", data=b"x")}],
            {},
            "parts[0].image.media_type",
        ),
        ([{"image": service_pb2.InputImage(media_type="image/png")}], {}, "parts[0].image.data"),
        (
            [{"image": service_pb2.InputImage(media_type="image/png", data=bytes(20 << 20 | 1))}],
            {},
            "parts[0].image.data",
        ),
        ([{"file": service_pb2.InputFile(media_type="a/b")}], {}, "parts[0].file.name"),
        ([{"file": service_pb2.InputFile(name="a")}], {}, "parts[0].file.media_type"),
        (
            [{"file": service_pb2.InputFile(name="a", media_type="b", data=bytes(32 << 20 | 1))}],
            {},
            "parts[0].file.data",
        ),
        ([{"text": "a"}], {"when_busy": 99}, "when_busy"),
        ([{"text": "a"}], {"client_message_id": "c" * 129}, "client_message_id"),
        ([{"text": "a"}, {"text": "b"}], {"command": True}, "parts"),
    ],
)
async def test_each_field_that_is_wrong_is_named(
    lab: Lab, parts: list[dict[str, object]], fields: dict[str, object], field: str
) -> None:
    await lab.create()
    request = service_pb2.SendMessageRequest(
        session_id="s",
        parts=[service_pb2.InputPart(**part) for part in parts],  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.manager.send(request)
    assert refused.fields == [field]


async def test_a_session_that_is_not_there_is_not_found(lab: Lab) -> None:
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND, session_id="s"):
        await lab.send()
