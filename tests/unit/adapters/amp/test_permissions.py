"""What is decided without asking, and the program that asks."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.amp import permit
from agentstreamd.adapters.amp.asks import Ask
from agentstreamd.adapters.amp.desk import Asking, PermissionDesk
from agentstreamd.adapters.amp.policy import Remembered, Verdict, decide, grant_key

DEFAULT = agent_pb2.PERMISSION_MODE_DEFAULT
EDITS = agent_pb2.PERMISSION_MODE_ACCEPT_EDITS
PLAN = agent_pb2.PERMISSION_MODE_PLAN
BYPASS = agent_pb2.PERMISSION_MODE_BYPASS


def edit(path: str) -> Ask:
    return Ask("edit_file", json.dumps({"path": path, "old_str": "a", "new_str": "b"}))


@pytest.mark.parametrize(
    ("mode", "ask", "allowed"),
    [
        (DEFAULT, Ask("Read", "{}"), True),
        (DEFAULT, Ask("Bash", '{"cmd":"ls"}'), None),
        (DEFAULT, Ask("mcp__x__y", "{}"), None),
        (DEFAULT, edit("a.txt"), None),
        (EDITS, edit("a.txt"), True),
        (EDITS, edit("../a.txt"), None),
        (EDITS, edit("link/a.txt"), None),
        (EDITS, edit(".amp/settings.json"), None),
        (EDITS, edit("sub/.git/hooks/x"), None),
        (EDITS, Ask("apply_patch", json.dumps({"patch": "*** Update File: ../x\n"})), None),
        (EDITS, Ask("edit_file", "broken"), None),
        (PLAN, Ask("Bash", '{"cmd":"ls"}'), False),
        (PLAN, Ask("web_search", "{}"), None),
        (BYPASS, Ask("Bash", '{"cmd":"ls"}'), True),
    ],
)
def test_modes(
    tmp_path: Path, mode: agent_pb2.PermissionMode.ValueType, ask: Ask, allowed: bool | None
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "link").symlink_to(tmp_path)
    verdict = decide(mode, ask, str(workspace), Remembered())
    assert (verdict.allow if verdict else None) is allowed


def test_a_grant_is_for_the_same_command_and_survives_saving() -> None:
    ask = Ask("Bash", '{"cmd":"npm test"}')
    saved = Remembered().granted(grant_key(ask, "/w")).dump()
    remembered = Remembered.load(saved)
    assert decide(DEFAULT, ask, "/w", remembered) == Verdict(True)
    assert decide(DEFAULT, Ask("Bash", '{"cmd":"npm start"}'), "/w", remembered) is None
    assert decide(PLAN, ask, "/w", remembered) != Verdict(True)
    assert Remembered.load(b"broken") == Remembered()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[PermissionDesk]:
    deep = tmp_path / ("d" * 100)  # longer than the path of a socket may be
    deep.mkdir()
    made = PermissionDesk(deep)
    yield made
    await made.close()


async def run_program(desk: PermissionDesk, secret: str, tmp_path: Path) -> tuple[int, str]:
    private = tmp_path / "permit.json"
    private.write_text(json.dumps({"socket": str(desk.path), "secret": secret}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-E", permit.__file__, str(private)),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"AGENT_TOOL_NAME": "Bash", "AGENT_TOOL_USE_ID": "c1", "AMP_THREAD_ID": "T-1"},
    )
    _, said = await process.communicate('{"cmd":"ü"}'.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [(Verdict(True), (0, "")), (Verdict(False, "Nein, ü."), (2, "Nein, ü."))],
)
async def test_the_program_carries_the_verdict(
    desk: PermissionDesk, tmp_path: Path, verdict: Verdict, expected: tuple[int, str]
) -> None:
    asked: list[Ask] = []

    async def handle(asking: Asking) -> None:
        asked.append(asking.ask)
        asking.verdict.set_result(verdict)

    secret = await desk.register(handle)
    assert await run_program(desk, secret, tmp_path) == expected
    assert asked == [Ask("Bash", '{"cmd":"ü"}', "c1", "T-1", os.getcwd())]
    assert desk.path.stat().st_mode & 0o777 == 0o600


async def test_a_wrong_secret_no_daemon_and_a_closing_one_reject(
    desk: PermissionDesk, tmp_path: Path
) -> None:
    async def handle(asking: Asking) -> None:
        await desk.close()

    secret = await desk.register(handle)
    assert (await run_program(desk, "guessed", tmp_path))[0] == permit.REJECTED
    assert (await run_program(desk, secret, tmp_path))[0] == permit.REJECTED
    assert (await run_program(desk, secret, tmp_path))[0] == permit.REJECTED
