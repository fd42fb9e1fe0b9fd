"""Making sessions."""

import asyncio
from typing import Any

import pytest
from google.protobuf import duration_pb2

from agentstream.v1 import agent_pb2, error_pb2, session_pb2
from agentstreamd.adapters.base import AgentFailed, AgentUnavailable, InvalidSetting
from agentstreamd.sessions.checks import check_config
from agentstreamd.sessions.roots import Roots
from tests.support.scripted_adapter import (
    RAW,
    Script,
    ScriptedDriver,
    message,
    session_started,
    turn_started,
)
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import Lab, Refused, until


async def test_the_daemon_says_session_started_where_the_agent_does_not(lab: Lab) -> None:
    made = await lab.create(title="T", labels={"team": "a"}, model="m")
    (started,) = await lab.only("session_started")
    assert (started.agent, started.agent_version, started.model) == ("scripted", "1.2.3", "m")
    assert started.working_directory == str(lab.directory)
    assert started.permission_mode == agent_pb2.PERMISSION_MODE_DEFAULT
    assert (await lab.events())[0].synthetic
    assert (made.config.title, dict(made.config.labels)) == ("T", {"team": "a"})
    assert (made.state, made.latest_sequence) == (session_pb2.SESSION_STATE_IDLE, 1)
    assert made == await lab.get()


async def test_what_the_agent_says_of_its_start_is_completed_and_comes_first(
    lab: Lab, script: Script
) -> None:
    async def on_open(driver: ScriptedDriver) -> None:
        await driver.publish(*message("early", "warming up"))
        await driver.publish(session_started(model="full-name", agent_version="9"))

    script.on_open = on_open
    await lab.create(model="alias")
    first, *rest = await lab.events()
    assert first.session_started.model == "full-name"
    assert first.session_started.agent == "scripted"
    assert first.session_started.working_directory == str(lab.directory)
    assert not first.synthetic
    assert first.raw[0].text.encode() == RAW[0]
    assert [event.WhichOneof("payload") for event in rest] == [
        "item_started",
        "item_delta",
        "item_completed",
    ]
    assert (await lab.get()).agent_version == "9"


async def test_state_that_a_driver_saves_as_it_opens_is_kept(lab: Lab, script: Script) -> None:
    async def on_open(driver: ScriptedDriver) -> None:
        driver.context.sink.save_state(b"early")

    script.on_open = on_open
    await lab.create()
    await lab.restart()
    await lab.send()
    await until(lambda: script.prompts)
    assert script.driver.context.state == b"early"


async def test_more_than_the_backlog_said_before_the_session_is_there_blocks_nobody(
    lab: Lab, script: Script
) -> None:
    async def on_open(driver: ScriptedDriver) -> None:
        for number in range(20):
            await driver.publish(*message(f"m{number}", "x" * 900_000))

    script.on_open = on_open
    await lab.create()
    assert len(await lab.only("item_completed")) == 20


async def test_the_same_call_again_gives_the_session_as_it_is_now(lab: Lab) -> None:
    await lab.create(title="T")
    await lab.update("title", title="U")
    again = await lab.create(title="T")
    assert again.config.title == "U"
    await lab.restart()
    assert (await lab.create(title="T")).uid == again.uid
    assert await lab.kinds() == ["session_started", "session_updated"]


async def test_an_id_that_is_taken_names_the_settings_that_differ(lab: Lab) -> None:
    await lab.create(title="T", env={"TOKEN": "a"}, model="m")
    await lab.update("title", title="U")
    with Refused(error_pb2.ERROR_REASON_SESSION_EXISTS, session_id="s", fields="model,env"):
        await lab.create(title="T", env={"TOKEN": "b"})


async def test_of_two_calls_at_once_one_makes_the_session(lab: Lab, script: Script) -> None:
    first, second = await asyncio.gather(lab.create(), lab.create())
    assert first.uid == second.uid
    assert script.calls == ["open"]


async def test_two_calls_at_once_with_other_settings_make_one_session(lab: Lab) -> None:
    first, second = await asyncio.gather(
        lab.create(title="a"), lab.create(title="b"), return_exceptions=True
    )
    assert isinstance(first, session_pb2.Session)
    with Refused(error_pb2.ERROR_REASON_SESSION_EXISTS, fields="title"):
        assert isinstance(second, BaseException)
        raise second


async def test_without_an_id_each_call_makes_a_session(lab: Lab) -> None:
    assert (await lab.create("")).session_id != (await lab.create("")).session_id


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AgentFailed("no"), error_pb2.ERROR_REASON_AGENT_NOT_RESPONDING),
        (AgentUnavailable("no"), error_pb2.ERROR_REASON_AGENT_UNAVAILABLE),
        (InvalidSetting("model", "no"), error_pb2.ERROR_REASON_INVALID_FIELD),
    ],
)
async def test_an_agent_that_does_not_open_leaves_nothing_behind(
    lab: Lab, script: Script, error: Exception, reason: error_pb2.ErrorReason.ValueType
) -> None:
    async def on_open(driver: ScriptedDriver) -> None:
        await driver.publish(session_started(), turn_started(), *message("m", "text"))
        driver.context.sink.save_state(b"state")
        raise error

    script.on_open = on_open
    with Refused(reason):
        await lab.create()
    assert script.calls == ["open", "close"]
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.get()
    script.on_open = Script.on_open
    await lab.create()
    assert await lab.kinds() == ["session_started"]


async def test_a_fault_of_the_driver_leaves_nothing_behind(lab: Lab, script: Script) -> None:
    async def on_open(driver: ScriptedDriver) -> None:
        raise ZeroDivisionError

    script.on_open = on_open
    with pytest.raises(ZeroDivisionError):
        await lab.create()
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.get()


async def test_a_session_goes_on_coming_into_being_without_its_caller(
    lab: Lab, script: Script
) -> None:
    opened = asyncio.Event()

    async def on_open(driver: ScriptedDriver) -> None:
        await opened.wait()

    script.on_open = on_open
    call = asyncio.ensure_future(lab.create())
    await until(lambda: script.calls)
    call.cancel()
    await asyncio.wait([call])
    opened.set()
    await lab.create()
    assert script.calls == ["open"]


async def test_a_session_that_the_log_does_not_take_is_not_there(lab: Lab) -> None:
    lab.gate.error = disk_full()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.create()
    lab.gate.error = None
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.get()
    await lab.create()


async def test_an_agent_that_is_not_there_is_refused(lab: Lab) -> None:
    with Refused(error_pb2.ERROR_REASON_AGENT_NOT_FOUND, agent="nobody"):
        await lab.create(agent="nobody")
    lab.adapter.agent.state = agent_pb2.AGENT_STATE_NOT_INSTALLED
    lab.adapter.agent.unavailable_reason = "not on PATH"
    with Refused(error_pb2.ERROR_REASON_AGENT_UNAVAILABLE, detail="not on PATH"):
        await lab.create()


async def test_settings_that_the_adapter_refuses_are_named(lab: Lab) -> None:
    lab.adapter.refusal = InvalidSetting("agent_options[colour]", "no such option")
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.create()
    assert refused.fields == ["config.agent_options[colour]"]


async def test_a_draining_daemon_makes_no_sessions(lab: Lab) -> None:
    lab.manager.start_draining()
    with Refused(error_pb2.ERROR_REASON_SERVER_DRAINING):
        await lab.create()


@pytest.mark.parametrize("session_id", ["-a", "a b", "a" * 129, "ä", "a/b", "a\n"])
async def test_an_id_that_is_none_is_refused(lab: Lab, session_id: str) -> None:
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.create(session_id)
    assert refused.fields == ["session_id"]


def stdio(name: str = "n", command: str = "c", **fields: object) -> session_pb2.McpServer:
    made = session_pb2.McpStdio(command=command, **fields)  # type: ignore[arg-type]
    return session_pb2.McpServer(name=name, stdio=made)


def http(url: str = "https://h", **headers: str) -> session_pb2.McpServer:
    return session_pb2.McpServer(name="n", http=session_pb2.McpHttp(url=url, headers=headers))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"agent": ""}, "config.agent"),
        ({"working_directory": ""}, "config.working_directory"),
        ({"working_directory": "relative"}, "config.working_directory"),
        ({"working_directory": "/nowhere/at/all"}, "config.working_directory"),
        ({"working_directory": "/\0"}, "config.working_directory"),
        ({"permission_mode": 99}, "config.permission_mode"),
        ({"request_policy": 99}, "config.request_policy"),
        ({"request_timeout": duration_pb2.Duration()}, "config.request_timeout"),
        ({"request_timeout": duration_pb2.Duration(seconds=-1)}, "config.request_timeout"),
        ({"request_timeout": duration_pb2.Duration(seconds=2**62)}, "config.request_timeout"),
        ({"request_timeout": duration_pb2.Duration(nanos=2**30)}, "config.request_timeout"),
        ({"model": "-m"}, "config.model"),
        ({"mode": "a\0"}, "config.mode"),
        ({"effort": "--high"}, "config.effort"),
        ({"resume_native_session_id": "-r"}, "config.resume_native_session_id"),
        ({"system_prompt": "a\0b"}, "config.system_prompt"),
        ({"agent_options": {"o": "\0"}}, "config.agent_options['o']"),
        ({"env": {"1A": "b"}}, "config.env['1A']"),
        ({"env": {"A=B": "b"}}, "config.env['A=B']"),
        ({"env": {"A": "\0"}}, "config.env['A']"),
        ({"title": "t" * 513}, "config.title"),
        ({"labels": {"": "v"}}, "config.labels['']"),
        ({"labels": {"k": "v" * 257}}, "config.labels['k']"),
        ({"labels": {"ä" * 129: "v"}}, f"config.labels['{'ä' * 129}']"),
        ({"labels": {str(n): "" for n in range(65)}}, "config.labels"),
        ({"mcp_servers": [stdio("a b")]}, "config.mcp_servers[0].name"),
        ({"mcp_servers": [stdio(), stdio()]}, "config.mcp_servers[1].name"),
        ({"mcp_servers": [stdio(command="")]}, "config.mcp_servers[0].stdio.command"),
        ({"mcp_servers": [stdio(command="\0")]}, "config.mcp_servers[0].stdio.command"),
        ({"mcp_servers": [stdio(args=["a", "\0"])]}, "config.mcp_servers[0].stdio.args[1]"),
        ({"mcp_servers": [stdio(env={"A B": ""})]}, "config.mcp_servers[0].stdio.env['A B']"),
        ({"mcp_servers": [http("ftp://h")]}, "config.mcp_servers[0].http.url"),
        ({"mcp_servers": [http(**{"A:": "b"})]}, "config.mcp_servers[0].http.headers['A:']"),
        ({"mcp_servers": [http(A="b\r\nC: d")]}, "config.mcp_servers[0].http.headers['A']"),
        ({"mcp_servers": [session_pb2.McpServer(name="n")]}, "config.mcp_servers[0].transport"),
    ],
)
async def test_each_setting_that_is_wrong_is_named(
    lab: Lab, config: dict[str, Any], field: str
) -> None:
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.create(**config)
    assert refused.fields == [field]


def test_all_wrong_settings_are_named_at_once() -> None:
    found = check_config(session_pb2.SessionConfig(title="t" * 600, model="-"), Roots([]))
    assert [field for field, _ in found] == [
        "config.agent",
        "config.working_directory",
        "config.model",
        "config.title",
    ]


async def test_settings_at_their_bounds_are_fine(lab: Lab) -> None:
    await lab.create(
        title="t" * 512,
        labels={f"{n:0256}": "v" * 256 for n in range(64)},
        env={"_A1": "x=y\n"},
        mcp_servers=[stdio("a", args=["--x"]), http(**{"X-A": "b c"})],
        request_timeout=duration_pb2.Duration(nanos=1),
    )
