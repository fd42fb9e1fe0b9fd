"""Changing a session's settings."""

import asyncio

import pytest

from agentstream.v1 import agent_pb2, error_pb2
from agentstreamd.adapters.base import AgentFailed
from tests.support.scripted_adapter import (
    Script,
    ScriptedDriver,
    session_started,
    session_updated,
)
from tests.unit.events.helpers import disk_full
from tests.unit.sessions.lab import Lab, Refused, until

PLAN = agent_pb2.PERMISSION_MODE_PLAN


async def test_only_what_the_mask_names_changes(lab: Lab) -> None:
    await lab.create(title="T", labels={"a": "1"}, model="m")
    shown = await lab.update("title", title="U", labels={"b": "2"}, model="n")
    assert (shown.config.title, dict(shown.config.labels), shown.config.model) == (
        "U",
        {"a": "1"},
        "m",
    )
    (updated,) = await lab.only("session_updated")
    assert updated.title == "U"
    assert not updated.HasField("labels")
    assert not updated.HasField("model")


async def test_labels_are_replaced_as_a_whole_and_can_be_emptied(lab: Lab) -> None:
    await lab.create(labels={"a": "1"})
    await lab.update("labels", labels={"b": "2"})
    assert not (await lab.update("labels")).config.labels
    updates = await lab.only("session_updated")
    assert [dict(update.labels.labels) for update in updates] == [{"b": "2"}, {}]


async def test_changes_survive_a_restart(lab: Lab, script: Script) -> None:
    await lab.create()
    await lab.update(
        "title", "labels", "model", "permission_mode", title="T", model="m", permission_mode=PLAN
    )
    await lab.restart()
    shown = (await lab.get()).config
    assert (shown.title, shown.model, shown.permission_mode) == ("T", "m", PLAN)
    await lab.send()
    await until(lambda: script.prompts)
    assert script.driver.context.config.model == "m"


async def test_the_agent_takes_a_model_and_a_mode(lab: Lab, script: Script) -> None:
    taken: list[tuple[str | None, int | None]] = []

    async def on_update(driver: ScriptedDriver, model: str | None, mode: int | None) -> None:
        taken.append((model, mode))

    script.on_update = on_update
    await lab.create()
    await lab.update("model", model="m")
    await lab.update("permission_mode", permission_mode=PLAN)
    assert taken == [("m", None), (None, PLAN)]
    updates = await lab.only("session_updated")
    assert [(u.model, u.permission_mode) for u in updates] == [("m", 0), ("", PLAN)]


async def test_a_change_that_changes_nothing_is_not_said(lab: Lab) -> None:
    await lab.create(title="T", model="m")
    await lab.update("title", "model", "labels", title="T", model="m")
    assert await lab.kinds() == ["session_started"]


async def test_a_change_that_the_agent_says_itself_is_said_once(lab: Lab, script: Script) -> None:
    async def on_update(driver: ScriptedDriver, model: str | None, mode: int | None) -> None:
        await driver.publish(session_updated(model="full-name-of-m", permission_mode=PLAN))

    script.on_update = on_update
    await lab.create()
    shown = await lab.update("model", "permission_mode", model="m", permission_mode=PLAN)
    (updated,) = await lab.only("session_updated")
    assert (updated.model, updated.permission_mode) == ("full-name-of-m", PLAN)
    assert shown.config.model == "m"


async def test_a_change_that_the_agent_repeats_later_is_said_once(lab: Lab, script: Script) -> None:
    await lab.create()
    await lab.send()
    await until(lambda: script.prompts)
    await lab.update("model", model="m")
    await script.driver.publish(session_updated(model="m"))
    assert len(await lab.only("session_updated")) == 1


async def test_what_the_agent_said_before_a_restart_is_not_news_after_it(
    lab: Lab, script: Script
) -> None:
    await lab.create()
    for _ in range(2):
        await lab.send()
        await until(lambda: script.driver.prompts)
        draft = session_started(model="full", agent_version="9", permission_mode=1)
        draft.event.native_session_id = "n"
        await script.driver.publish(draft)
        await script.driver.end_turn()
        assert len(await lab.only("session_updated")) == 1
        await lab.restart()


async def test_a_mode_that_the_agent_took_by_itself_holds_for_its_next_process(
    lab: Lab, script: Script
) -> None:
    await lab.create(permission_mode=PLAN)
    await lab.send()
    await until(lambda: script.prompts)
    edits = agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
    await script.driver.publish(session_updated(permission_mode=edits))
    await script.driver.end_turn()
    assert (await lab.get()).config.permission_mode == edits
    await lab.restart()
    await lab.send()
    await until(lambda: script.driver.prompts)
    assert script.driver.context.config.permission_mode == edits
    # The settings it was made with are what the same call again is compared with.
    await lab.create(permission_mode=PLAN)


@pytest.mark.parametrize(
    ("paths", "config", "field"),
    [
        ([], {}, "update_mask"),
        (["agent"], {"agent": "x"}, "update_mask"),
        (["env"], {}, "update_mask"),
        (["title"], {"title": "t" * 513}, "config.title"),
        (["labels"], {"labels": {"": "v"}}, "config.labels['']"),
        (["model"], {"model": "-m"}, "config.model"),
        (["permission_mode"], {}, "config.permission_mode"),
        (
            ["permission_mode"],
            {"permission_mode": agent_pb2.PERMISSION_MODE_BYPASS},
            "config.permission_mode",
        ),
        (["permission_mode"], {"permission_mode": 99}, "config.permission_mode"),
    ],
)
async def test_each_field_that_is_wrong_is_named(
    lab: Lab, paths: list[str], config: dict[str, object], field: str
) -> None:
    await lab.create()
    with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
        await lab.update(*paths, **config)
    assert refused.fields == [field]


@pytest.mark.parametrize("path", ["model", "permission_mode"])
async def test_what_the_agent_can_not_change_is_refused(
    lab: Lab, script: Script, path: str
) -> None:
    await lab.create()
    setattr(lab.adapter.agent.capabilities, f"change_{path}", False)
    with Refused(
        error_pb2.ERROR_REASON_CAPABILITY_NOT_SUPPORTED,
        agent="scripted",
        capability=f"change_{path}",
    ):
        await lab.update("title", path, title="U", model="m", permission_mode=PLAN)
    assert "update" not in script.calls
    assert (await lab.get()).config.title == ""


async def test_a_change_that_the_agent_does_not_take_is_none(lab: Lab, script: Script) -> None:
    async def on_update(driver: ScriptedDriver, model: str | None, mode: int | None) -> None:
        raise AgentFailed("silent")

    script.on_update = on_update
    await lab.create(model="m")
    with Refused(error_pb2.ERROR_REASON_AGENT_NOT_RESPONDING):
        await lab.update("title", "model", title="U", model="n")
    shown = (await lab.get()).config
    assert (shown.title, shown.model) == ("", "m")
    assert await lab.kinds() == ["session_started"]


async def test_changes_at_once_end_with_what_the_agent_took_last(lab: Lab, script: Script) -> None:
    taken: list[str | None] = []

    async def on_update(driver: ScriptedDriver, model: str | None, mode: int | None) -> None:
        await asyncio.sleep(0)
        taken.append(model)

    script.on_update = on_update
    await lab.create()
    await asyncio.gather(*(lab.update("model", model=str(number)) for number in range(5)))
    assert len(taken) == 5
    assert (await lab.get()).config.model == taken[-1]
    assert [update.model for update in await lab.only("session_updated")] == taken


async def test_a_session_that_has_ended_or_is_not_there(lab: Lab) -> None:
    with Refused(error_pb2.ERROR_REASON_SESSION_NOT_FOUND):
        await lab.update("title")
    await lab.create()
    await lab.manager.end("s")
    with Refused(error_pb2.ERROR_REASON_SESSION_ENDED):
        await lab.update("title", title="T")


async def test_a_change_while_the_log_is_out_comes_into_effect_when_it_is_back(lab: Lab) -> None:
    await lab.create()
    lab.gate.error = disk_full()
    with Refused(error_pb2.ERROR_REASON_LOG_UNAVAILABLE):
        await lab.update("title", title="T")
    lab.gate.error = None
    await lab.until("session_updated")
    assert (await lab.get()).config.title == "T"
