"""Plays a script: the mock agent's directives and what each of them does."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence

from agentstreamd.adapters.mock import asks
from agentstreamd.adapters.mock.acting import Agent, TurnInterrupted
from agentstreamd.adapters.mock.effects import EFFECTS
from agentstreamd.adapters.mock.script import (
    Directive,
    duration,
    filler,
    is_script,
    json_value,
    parse,
    quoted,
    size,
    text_of,
)
from agentstreamd.adapters.mock.stage import (
    Json,
    Stage,
    file_part,
    image_part,
    pieces_of,
    text_part,
)

_LABEL = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")

# Directives that leave an open message open: deltas go on in it, and faults strike in its middle.
_KEEP_MESSAGE_OPEN = frozenset(
    {"background", "delay", "delta", "message", "native", "on", "repeat", "spontaneous", "wait"}
    | {"crash", "error", "exit", "fail", "garbage", "invalid_utf8", "oversized", "refuse"}
    | {"close_stdout", "silent", "spawn", "stderr", "unterminated", "usage"}
)


class Interpreter:
    """Plays directives on a stage."""

    def __init__(self, agent: Agent, stage: Stage, *, takes_steering: bool = True) -> None:
        """Play for `agent`, under the parent of `stage`."""
        self._agent = agent
        self._takes_steering = takes_steering
        self._stage = stage
        self._writer = stage.writer
        self._outcome = asks.Outcome()
        self._in_message = False
        self._handlers: dict[str, Callable[[Directive], Awaitable[None]]] = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }

    @property
    def directives(self) -> frozenset[str]:
        """The names of all directives that are carried out."""
        return frozenset(self._handlers) | EFFECTS.keys()

    async def play(self, text: str) -> None:
        """Play a message: a script, or else its text as the answer. Raises TurnFailed."""
        if is_script(text):
            await self.run(parse(text))
        elif text:
            await self._stage.add_text(text)
        self._stage.close_message()

    async def run(self, directives: Sequence[Directive]) -> None:
        """Carry directives out. Raises ScriptError, TurnFailed and TurnInterrupted."""
        for directive in directives:
            if directive.name not in _KEEP_MESSAGE_OPEN and not self._in_message:
                self._stage.close_message()
            if handler := self._handlers.get(directive.name):
                await handler(directive)
            else:
                await EFFECTS[directive.name](self._agent, self._stage, directive)
            await self._writer.pace()
            while self._takes_steering and self._agent.steered:
                self._stage.close_message()
                await self.play(self._agent.steered.popleft())

    # Control

    async def _do_repeat(self, directive: Directive) -> None:
        if not directive.rest.isdecimal():
            raise directive.wrong("repeat needs a number")
        for _ in range(int(directive.rest)):
            await self.run(directive.block)

    async def _do_on(self, directive: Directive) -> None:
        if directive.rest in self._outcome.words:
            await self.run(directive.block)

    async def _do_parallel(self, directive: Directive) -> None:
        async with asyncio.TaskGroup() as group:
            for one in directive.block:
                branch = Interpreter(self._agent, self._stage.below(self._stage.parent_id))
                group.create_task(branch._branch(one))

    async def _branch(self, directive: Directive) -> None:
        await self.run((directive,))
        self._stage.close_message()
        await self._writer.flush()

    async def _do_agent(self, directive: Directive) -> None:
        name, prompt = quoted(directive.rest)
        arguments = json.dumps({"agent": name, "prompt": prompt})
        call = await self._stage.call("Task", arguments)
        inner = Interpreter(self._agent, self._stage.below(call["item_id"]))
        await inner.run(directive.block)
        inner._stage.close_message()
        await self._stage.result(call, f"{name or 'agent'} is done")

    async def _do_spontaneous(self, directive: Directive) -> None:
        self._agent.later(directive.block, in_turn=True)

    async def _do_background(self, directive: Directive) -> None:
        self._agent.later(directive.block, in_turn=False)

    async def _do_compact(self, directive: Directive) -> None:
        status = Directive(directive.line, "status", "compacted The conversation was compacted.")
        system = Directive(directive.line, "system", "Summary of the conversation so far.")
        self._agent.later((status, system), in_turn=True, trigger="compaction")

    async def _do_delay(self, directive: Directive) -> None:
        seconds = duration(directive.rest)
        if seconds is None:
            raise directive.wrong("delay needs a time, as in 50ms or 1s")
        await self._writer.flush()
        await asyncio.sleep(seconds)

    async def _do_wait(self, directive: Directive) -> None:
        await self._writer.flush()
        if directive.rest == "steer":
            await self._agent.was_steered.wait()
        elif directive.rest == "interrupt":
            await asyncio.Event().wait()
        else:
            raise directive.wrong("wait takes interrupt or steer")

    # Messages

    async def _do_message(self, directive: Directive) -> None:
        self._stage.close_message()
        self._stage.open_message()
        self._in_message = True
        try:
            await self.run(directive.block)
        finally:
            self._in_message = False
        self._stage.close_message()

    async def _do_say(self, directive: Directive) -> None:
        await self._stage.add_text(text_of(directive.rest))

    async def _do_text(self, directive: Directive) -> None:
        wanted = size(directive.rest)
        if wanted is None:
            raise directive.wrong("text needs a size, as in 5MB")
        await self._stage.add_text(filler(wanted))

    async def _do_delta(self, directive: Directive) -> None:
        self._stage.grow(text_of(directive.rest))

    async def _do_think(self, directive: Directive) -> None:
        visibility, _, text = directive.rest.partition(" ")
        if visibility not in ("full", "summary", "redacted"):
            visibility, text = "full", directive.rest
        if visibility == "redacted":
            text = ""
        await self._stage.add_reasoning(text_of(text), visibility)

    async def _do_json(self, directive: Directive) -> None:
        label, rest = quoted(directive.rest)
        value, _ = json_value(rest)
        self._stage.add_part({"json": {"label": label, "json": value or json.dumps(rest)}})

    async def _do_image(self, directive: Directive) -> None:
        how, _, rest = directive.rest.partition(" ")
        if how == "tool":
            call = await self._stage.call("Screenshot", "{}")
            await self._stage.result(call, "", image_part())
        elif how in ("url", "path") and rest:
            self._stage.add_part({"image": {"media_type": "image/png", how: rest}})
        elif wanted := size(how):
            self._stage.add_part(image_part(filler(wanted).encode()))
        else:
            self._stage.add_part(image_part())

    async def _do_retract(self, directive: Directive) -> None:
        first, _, second = directive.rest.partition("=>")
        stage = self._stage
        taken_back = stage.item("message", "MESSAGE", "ASSISTANT")
        successor = stage.item("message", "MESSAGE", "ASSISTANT")
        wrong, right = text_of(first.strip()), text_of(second.strip())
        stage.started(taken_back)
        await stage.deltas(taken_back["item_id"], 0, "text", pieces_of(wrong))
        # First started, then named: an item that nobody has seen supersedes nothing.
        stage.started(successor)
        stage.completed(
            taken_back, text_part(wrong), failed=True, superseded_by=successor["item_id"]
        )
        await stage.deltas(successor["item_id"], 0, "text", pieces_of(right))
        stage.completed(successor, text_part(right))

    async def _do_lone_surrogate(self, directive: Directive) -> None:
        item = self._stage.item("message", "MESSAGE", "ASSISTANT")
        self._stage.started(item)
        whole = {**item, "content": [text_part("half a pair: \ud83d")]}
        line = {"type": "item_completed", "item": whole, "failed": False}
        self._writer.verbatim(json.dumps(line).encode())

    # Tools

    async def _do_tool(self, directive: Directive) -> None:
        name, rest = quoted(directive.rest)
        arguments, rest = json_value(rest)
        output = rest.removeprefix("=>").strip() if rest.startswith("=>") else "ok"
        failed = output.startswith("! ")
        call = await self._stage.call(name, arguments or "{}")
        await self._stage.result(call, text_of(output.removeprefix("! ")), error=failed)

    async def _do_call(self, directive: Directive) -> None:
        name, rest = quoted(directive.rest)
        await self._stage.call(name, json_value(rest)[0] or "{}")

    async def _do_read(self, directive: Directive) -> None:
        await self._file("Read", "read", directive.rest, output="old")

    async def _do_write(self, directive: Directive) -> None:
        path, text = quoted(directive.rest)
        diff = f"@@ -0,0 +1 @@\n+{text_of(text)}\n"
        await self._file("Write", "write", path, diff=diff, output=f"wrote {path}")

    async def _do_edit(self, directive: Directive) -> None:
        path, rest = quoted(directive.rest)
        old, _, new = (rest or "old => new").partition("=>")
        diff = asks.edit_diff(text_of(old.strip()), text_of(new.strip()))
        await self._file("Edit", "patch", path, diff=diff, output=f"changed {path}")

    async def _do_delete(self, directive: Directive) -> None:
        await self._file("Delete", "delete", directive.rest, output=f"deleted {directive.rest}")

    async def _do_move(self, directive: Directive) -> None:
        path, new_path = quoted(directive.rest)
        await self._file("Move", "move", path, new_path=new_path, output=f"moved {path}")

    async def _file(
        self, tool: str, action: str, path: str, *, diff: str = "", new_path: str = "", output: str
    ) -> None:
        part = file_part(path, action, diff=diff, new_path=new_path)
        call = await self._stage.call(tool, json.dumps({"path": path}), part)
        await self._stage.result(call, output, part)

    async def _do_ask(self, directive: Directive) -> None:
        self._outcome = await asks.ask(self._agent, self._stage, directive)
        if self._outcome.interrupt:
            raise TurnInterrupted

    # Other items

    async def _do_status(self, directive: Directive) -> None:
        key, rest = "", directive.rest
        if rest.startswith("key="):
            key, _, rest = rest.removeprefix("key=").partition(" ")
        label, _, detail = rest.partition(" ")
        if not _LABEL.fullmatch(label):
            raise directive.wrong("the label of a status is lower_snake_case")
        self._status({"label": label, "detail": text_of(detail), "key": key})

    async def _do_todo(self, directive: Directive) -> None:
        entries = [entry.strip() for entry in directive.rest.split("|")]
        todo = [
            {
                "text": entry.removeprefix("[x]").strip(),
                "status": "completed" if entry.startswith("[x]") else "pending",
            }
            for entry in entries
        ]
        done = sum(entry["status"] == "completed" for entry in todo)
        detail = f"{done} of {len(todo)} done"
        part = {"json": {"label": "todo", "json": json.dumps(todo)}}
        self._status({"label": "todo", "detail": detail, "key": "todo"}, part)

    def _status(self, status: Json, *more: Json) -> None:
        self._stage.whole(self._stage.item("status", "STATUS", "SYSTEM"), {"status": status}, *more)

    async def _do_system(self, directive: Directive) -> None:
        item = self._stage.item("system", "SYSTEM", "SYSTEM")
        self._stage.whole(item, text_part(text_of(directive.rest)))

    async def _do_unknown(self, directive: Directive) -> None:
        kind, rest = quoted(directive.rest)
        value, _ = json_value(rest)
        self._writer.line({"type": kind or "novelty", "value": json.loads(value or "{}")})

    async def _do_native(self, directive: Directive) -> None:
        self._writer.verbatim(directive.rest.encode())
