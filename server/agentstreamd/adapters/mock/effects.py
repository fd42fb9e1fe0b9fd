"""Directives that do not make items: settings of the session, errors and faults."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentstream.v1 import error_pb2
from agentstreamd.adapters.mock.acting import Agent, TurnFailed
from agentstreamd.adapters.mock.script import (
    Directive,
    filler,
    json_value,
    quoted,
    size,
    text_of,
)
from agentstreamd.adapters.mock.stage import Json, Stage

Effect = Callable[[Agent, Stage, Directive], Awaitable[None]]
"""Carries out a directive."""

_HTTP_STATUS = {"RATE_LIMITED": 429, "OVERLOADED": 529, "AUTHENTICATION": 401}
_OVERSIZED_BYTES = 65 * 1024 * 1024
_STUBBORN = (
    *(sys.executable, "-c"),
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)",
)
_NOT_A_LINE = "this is not of the mock agent's protocol"


async def _recall(agent: Agent, stage: Stage, directive: Directive) -> None:
    await stage.add_text(f"turn {agent.turn} of {agent.native_session_id}")


async def _settings(agent: Agent, stage: Stage, directive: Directive) -> None:
    await stage.add_text(json.dumps(agent.describe(), indent=2, sort_keys=True))


async def _model(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.line({"type": "session_updated", "model": directive.rest})


async def _mode(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.line({"type": "session_updated", "mode": directive.rest})


async def _permission_mode(agent: Agent, stage: Stage, directive: Directive) -> None:
    if directive.rest not in ("default", "accept_edits", "plan", "bypass"):
        raise directive.wrong("permission_mode takes default, accept_edits, plan or bypass")
    agent.permission_mode = directive.rest
    mode = f"PERMISSION_MODE_{directive.rest.upper()}"
    stage.writer.line({"type": "session_updated", "permission_mode": mode})


async def _title(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.line({"type": "session_updated", "title": text_of(directive.rest)})


async def _tools(agent: Agent, stage: Stage, directive: Directive) -> None:
    names = [name.strip() for name in directive.rest.split("|")]
    stage.writer.line({"type": "session_updated", "tools": {"names": names}})


async def _mcp(agent: Agent, stage: Stage, directive: Directive) -> None:
    name, rest = quoted(directive.rest)
    status, _, error = rest.partition(" ")
    server = {"name": name, "status": status or "connected", "error": error}
    stage.writer.line({"type": "session_updated", "mcp_servers": {"servers": [server]}})


async def _usage(agent: Agent, stage: Stage, directive: Directive) -> None:
    value, _ = json_value(directive.rest)
    if not value:
        raise directive.wrong("usage needs a JSON object")
    agent.usage = json.loads(value)


async def _error(agent: Agent, stage: Stage, directive: Directive) -> None:
    code, rest = _code(directive)
    retry = rest == "retry" or rest.startswith("retry ")
    message = rest.removeprefix("retry").strip() if retry else rest
    error: Json = {
        "type": "error",
        "message": text_of(message) or f"The script reports {code.lower()}.",
        "code": f"ERROR_CODE_{code}",
        "native_code": f"{code.lower()}_error",
    }
    if code in _HTTP_STATUS:
        error["http_status"] = _HTTP_STATUS[code]
    if retry:
        error |= {"will_retry": True, "attempt": 1, "max_attempts": 3, "retry_delay": "0.5s"}
    stage.writer.line(error)


async def _fail(agent: Agent, stage: Stage, directive: Directive) -> None:
    code, message = _code(directive)
    raise TurnFailed(code, text_of(message) or f"The script fails with {code.lower()}.")


def _code(directive: Directive) -> tuple[str, str]:
    name, _, rest = directive.rest.partition(" ")
    code = name.upper() or "UNSPECIFIED"
    if f"ERROR_CODE_{code}" not in error_pb2.ErrorCode.keys():  # noqa: SIM118 - not a mapping
        raise directive.wrong(f"there is no error code {name!r}")
    return code, rest.strip()


async def _exit(agent: Agent, stage: Stage, directive: Directive) -> None:
    code = int(directive.rest) if directive.rest.isdecimal() else 1
    await agent.quit(exit_code=code)


async def _crash(agent: Agent, stage: Stage, directive: Directive) -> None:
    number = int(directive.rest) if directive.rest.isdecimal() else 11
    await agent.quit(signal=number)


async def _silent(agent: Agent, stage: Stage, directive: Directive) -> None:
    await stage.writer.flush()
    stage.writer.muted = True
    agent.refuses_interrupt = True
    await asyncio.Event().wait()


async def _refuse(agent: Agent, stage: Stage, directive: Directive) -> None:
    if directive.rest == "interrupt":
        agent.refuses_interrupt = True
    elif directive.rest == "term":
        agent.refuse_term()
    else:
        raise directive.wrong("refuse takes interrupt or term")


async def _stderr(agent: Agent, stage: Stage, directive: Directive) -> None:
    agent.stderr(text_of(directive.rest) + "\n")


async def _garbage(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.verbatim((text_of(directive.rest) or _NOT_A_LINE).encode())


async def _invalid_utf8(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.verbatim(b'{"type":"status","detail":"\xff\xfe"}')


async def _oversized(agent: Agent, stage: Stage, directive: Directive) -> None:
    left = size(directive.rest) or _OVERSIZED_BYTES
    piece = filler(1024 * 1024).encode()
    while left > 0:
        stage.writer.verbatim(piece[:left], end=b"")
        await stage.writer.flush()
        left -= len(piece)
    stage.writer.verbatim(b"")


async def _unterminated(agent: Agent, stage: Stage, directive: Directive) -> None:
    stage.writer.verbatim(text_of(directive.rest).encode(), end=b"")
    await agent.quit(exit_code=0)


async def _close_stdout(agent: Agent, stage: Stage, directive: Directive) -> None:
    if not agent.is_process:
        raise directive.wrong("close_stdout needs agent_options[process]=true")
    await stage.writer.flush()
    os.close(1)
    await asyncio.Event().wait()


async def _spawn(agent: Agent, stage: Stage, directive: Directive) -> None:
    if not agent.is_process:
        raise directive.wrong("spawn needs agent_options[process]=true")
    path, how = quoted(directive.rest)
    # Outlives the agent on purpose: what starts it must find and end it.
    child = await asyncio.create_subprocess_exec(
        *(_STUBBORN if "stubborn" in how.split() else ("sleep", "3600")),
        start_new_session="setsid" in how.split(),
    )
    Path(path).write_text(str(child.pid))  # noqa: ASYNC240 - a dozen bytes


EFFECTS: dict[str, Effect] = {
    "close_stdout": _close_stdout,
    "crash": _crash,
    "error": _error,
    "exit": _exit,
    "fail": _fail,
    "garbage": _garbage,
    "invalid_utf8": _invalid_utf8,
    "mcp": _mcp,
    "mode": _mode,
    "model": _model,
    "oversized": _oversized,
    "permission_mode": _permission_mode,
    "recall": _recall,
    "refuse": _refuse,
    "settings": _settings,
    "silent": _silent,
    "spawn": _spawn,
    "stderr": _stderr,
    "title": _title,
    "tools": _tools,
    "unterminated": _unterminated,
    "usage": _usage,
}
