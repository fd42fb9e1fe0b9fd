"""Sessions that nobody uses: they leave the memory, and come back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2, error_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import AdapterError, AgentExit
from agentstreamd.sessions.keyed_locks import KeyedLocks
from tests.support.scripted_adapter import Script, ScriptedDriver, nothing
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import Lab, Refused, laboratory, until


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path, idle_agent_seconds=0.02) as lab:
        yield lab


async def loaded(lab: Lab) -> ScriptedDriver:
    await lab.create()
    await lab.send("first")
    await until(lambda: lab.script.prompts)
    return lab.script.driver


def unloaded(lab: Lab) -> bool:
    return len(lab.manager._live) == 0


async def test_an_idle_agent_is_stopped_and_started_again_on_demand(
    lab: Lab, script: Script
) -> None:
    driver = await loaded(lab)
    driver.context.sink.save_state(b"mine")
    await driver.end_turn()
    await until(lambda: unloaded(lab))
    assert not driver.alive
    assert not driver.forgotten
    assert (await lab.get()).state == session_pb2.SESSION_STATE_IDLE
    assert await lab.send("second", client_message_id="c")
    await until(lambda: len(script.drivers) == 2 and script.driver.prompts == ["second"])
    assert script.driver.context.state == b"mine"
    await script.driver.end_turn()
    assert "agent_exited" not in str(await lab.events())


async def test_a_session_at_work_stays(lab: Lab, script: Script) -> None:
    driver = await loaded(lab)
    await driver.end_turn()
    await driver.ask()
    await asyncio.sleep(0.05)
    assert not unloaded(lab)
    assert driver.alive
    driver.exit(AgentExit(expected=True))
    await until(lambda: unloaded(lab))


async def test_a_session_that_is_used_while_its_agent_stops_comes_back(
    lab: Lab, script: Script
) -> None:
    gone = asyncio.Event()

    async def on_close(driver: ScriptedDriver) -> None:
        await gone.wait()

    script.on_close = on_close
    driver = await loaded(lab)
    await driver.end_turn()
    await until(lambda: "close" in script.calls)
    call = asyncio.ensure_future(lab.send("second"))
    gone.set()
    await call
    await until(lambda: script.driver.prompts[-1:] == ["second"])
    await script.driver.end_turn()


async def test_an_agent_that_speaks_as_it_is_stopped_is_heard(lab: Lab, script: Script) -> None:
    async def on_close(driver: ScriptedDriver) -> None:
        await driver.say("bye")

    script.on_close = on_close
    driver = await loaded(lab)
    await driver.end_turn()
    await until(lambda: unloaded(lab))
    texts = [i.item.content[0].text.text for i in await lab.only("item_completed")]
    assert texts[:2] == ["first", "bye"]
    script.on_close = nothing


async def test_while_the_log_is_out_nothing_is_unloaded(lab: Lab, script: Script) -> None:
    driver = await loaded(lab)
    await lab.get()
    lab.gate.error = disk_full()
    await driver.say("kept")
    await driver.end_turn()
    await until(lambda: "close" in script.calls)
    await asyncio.sleep(0.05)
    assert not unloaded(lab)
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.send("second")
    lab.gate.error = None
    await lab.until("turn_ended")
    await until(lambda: unloaded(lab))


async def test_idle_sessions_leave_nothing_in_memory(lab: Lab) -> None:
    for number in range(20):
        await lab.create(f"s{number}")
        with lab.manager.following(f"s{number}"):
            pass
    await until(lambda: unloaded(lab))
    live = lab.manager._live
    await until(lambda: not live._unloading)
    assert not live._following
    assert len(live.locks) == 0
    assert not lab.manager._tasks


async def test_ids_taken_before_the_session_was_unloaded_stay_taken(
    lab: Lab, script: Script
) -> None:
    driver = await loaded(lab)
    await driver.say("one", "same")
    await driver.end_turn()
    await until(lambda: unloaded(lab))
    await lab.send("second")
    await until(lambda: len(script.drivers) == 2 and script.driver.prompts)
    await script.driver.say("two", "same")
    await script.driver.end_turn()
    ids = [i.item.item_id for i in await lab.only("item_completed")]
    assert {"same", "same~2"} <= set(ids)


# Lists


async def listed(lab: Lab, **fields: object) -> service_pb2.ListSessionsResponse:
    return await lab.manager.list(service_pb2.ListSessionsRequest(**fields))  # type: ignore[arg-type]


async def test_sessions_are_listed_page_by_page_in_memory_or_not(lab: Lab) -> None:
    for number in range(7):
        await lab.create(f"s{number}")
    await lab.send("hello", session_id="s3")
    found: list[session_pb2.Session] = []
    token = ""
    while True:
        page = await listed(lab, page_size=3, page_token=token)
        assert len(page.sessions) <= 3
        found.extend(page.sessions)
        token = page.next_page_token
        if not token:
            break
    assert [one.session_id for one in found] == [f"s{n}" for n in range(7)]
    assert found[3].state == session_pb2.SESSION_STATE_RUNNING
    for one in found:
        assert one == await lab.get(one.session_id)
    await until(lambda: len(lab.manager._live) == 1)
    again = (await listed(lab)).sessions
    assert [one.session_id for one in again] == [f"s{n}" for n in range(7)]
    assert [one.latest_sequence for one in again] == [one.latest_sequence for one in found]


async def test_a_list_has_only_sessions_with_all_the_labels(lab: Lab) -> None:
    await lab.create("a", labels={"team": "x", "env": "prod"})
    await lab.create("b", labels={"team": "x"})
    await lab.create("c")
    page = await listed(lab, labels={"team": "x"})
    assert [one.session_id for one in page.sessions] == ["a", "b"]
    page = await listed(lab, labels={"team": "x", "env": "prod"})
    assert [one.session_id for one in page.sessions] == ["a"]
    assert not (await listed(lab, labels={"team": ""})).sessions


async def test_a_list_can_leave_ended_sessions_out(lab: Lab) -> None:
    await lab.create("a")
    await lab.create("b")
    await lab.manager.end("a")
    assert [one.session_id for one in (await listed(lab, live_only=True)).sessions] == ["b"]
    assert len((await listed(lab)).sessions) == 2


@pytest.mark.parametrize("size", [-1, 1001])
async def test_a_page_size_out_of_bounds_is_refused(lab: Lab, size: int) -> None:
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await listed(lab, page_size=size)
    assert refused.fields == ["page_size"]
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD):
        await lab.manager.list_agents(service_pb2.ListAgentsRequest(page_size=size))


async def test_a_token_of_somebody_else_is_refused(lab: Lab) -> None:
    with Refused(error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN) as refused:
        await listed(lab, page_token="zzz")
    assert refused.fields == ["page_token"]
    with Refused(error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN):
        await lab.manager.list_agents(service_pb2.ListAgentsRequest(page_token="zzz"))


async def test_agents_are_listed_and_described(lab: Lab) -> None:
    page = await lab.manager.list_agents(service_pb2.ListAgentsRequest())
    assert [agent.name for agent in page.agents] == ["scripted"]
    assert (await lab.manager.get_agent("scripted")).version == "1.2.3"
    with Refused(error_pb2.ERROR_REASON_AGENT_NOT_FOUND, agent="x"):
        await lab.manager.get_agent("x")


async def test_whether_an_agent_is_logged_in_is_found_out_where_asked(lab: Lab) -> None:
    assert not (await lab.manager.get_agent("scripted")).HasField("login")
    asked = await lab.manager.get_agent("scripted", include_login=True)
    assert (asked.version, asked.login.detail) == ("1.2.3", "asked")
    lab.adapter.logged_in = AdapterError("it hangs, with sk-ant-api03-0123456789abcdef0123456789")
    failed = await lab.manager.get_agent("scripted", include_login=True)
    assert failed.login.state == agent_pb2.LOGIN_STATE_UNSPECIFIED
    assert failed.login.detail.startswith("it hangs")
    assert "0123456789" not in failed.login.detail
    lab.adapter.agent.state = agent_pb2.AGENT_STATE_UNUSABLE
    unusable = await lab.manager.get_agent("scripted", include_login=True)
    assert not unusable.HasField("login")


async def test_locks_are_taken_in_turn_and_go_with_the_last_user() -> None:
    locks = KeyedLocks()
    order: list[int] = []

    async def work(number: int) -> None:
        async with locks.hold("a"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    first = [asyncio.ensure_future(work(number)) for number in range(3)]
    await asyncio.wait([first[0]])
    late = asyncio.ensure_future(work(3))
    first[2].cancel()
    await asyncio.wait([*first, late])
    assert order == [0, 0, 1, 1, 3, 3]
    assert len(locks) == 0
