"""`make demo`: one session, live on the terminal, then the same stream resumed from its middle.

    AGENT=claude  the real Claude Code, pinned, with a scripted model: no key, no network (default)
    AGENT=codex   the real Codex, likewise
    AGENT=amp     the real Amp, likewise; it asks no questions
    AGENT=opencode  the real OpenCode, likewise
    AGENT=mock    no agent at all
    LIVE=1        your own installed agent, with your home, login and model

Ends with 1 when a part of the demonstration is missing, when the two readings of the stream differ,
or when the stream breaks a law.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import json_format
from rich.console import Console
from rich.text import Text

from agentstream.cli.answering import Answerer
from agentstream.cli.context import Context, json_line
from agentstream.cli.conversation import Conversation
from agentstream.cli.display import Display
from agentstream.cli.prompts import Answer, Request
from agentstream.client import AsyncClient, connect_aio, typed_errors
from agentstream.v1 import event_pb2, interaction_pb2, service_pb2, session_pb2
from agentstreamd.laws import check
from tests.support.amp_demo_script import PROMPT as AMP_PROMPT
from tests.support.amp_demo_script import demo_script as amp_demo_script
from tests.support.amp_lab import amp_environment
from tests.support.amp_server import AmpServer
from tests.support.anthropic_server import AnthropicServer
from tests.support.chat_completions_server import ChatCompletionsServer
from tests.support.codex_demo_script import demo_script as codex_demo_script
from tests.support.codex_home import codex_environment
from tests.support.daemon import daemon
from tests.support.demo_script import PROMPT, demo_script
from tests.support.hermetic import claude_environment
from tests.support.opencode_demo_script import opencode_demo_script
from tests.support.opencode_lab import opencode_environment
from tests.support.responses_server import ResponsesServer
from tools.agents.install import install

_SESSION = "demo"
_PACE_SECONDS = 0.03
_COMPLETED = "a completed turn"
_THINKING_SECONDS = 0.8
"""How long the demonstration seems to think before it answers, for people to see it."""

_LIVE_PROMPT = """\
Please do exactly this, it is a demonstration. 1. With your shell tool, write a haiku about a silent
pond to poem.txt in the working directory. 2. Ask me, with your tool for questions to the user if
you have one, who shall disturb the pond: Frog, Cat or Compiler. 3. Edit the second line of poem.txt
to fit my answer, with your edit tool. 4. Say in one sentence what you did."""

_MOCK_PROMPT = """\
think They want a poem in a file. I'll write it, then ask about it.
say I'll write a first version, for which I need your permission.
ask permission command "printf 'The old silent pond' > poem.txt"
say It is there. One thing is up to you.
ask question "Who shall disturb the pond?" Frog | Cat | Compiler
say **Frog**, then. See the difference:
edit poem.txt "A splash in the pond" => "A frog jumps into the pond"
say Done: `poem.txt` has its poem.
usage {"input_tokens": 1200, "output_tokens": 120}"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What an agent needs to play.

    Attributes:
        prompt: What it is asked.
        flags: Flags for the daemon.
        environment: Environment of the session.
        daemon_environment: Environment of the daemon.
        cannot: Parts of the demonstration that the agent can't show.
    """

    prompt: str
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    daemon_environment: Mapping[str, str] = field(default_factory=dict)
    cannot: Sequence[str] = ()


StageMaker = Callable[[Path], contextlib.AbstractAsyncContextManager[Stage]]


@contextlib.asynccontextmanager
async def _claude(scratch: Path) -> AsyncIterator[Stage]:
    executable = install("claude").executable
    async with AnthropicServer(pace=_PACE_SECONDS if sys.stdout.isatty() else 0) as model:
        model.script(*demo_script())
        environment = claude_environment(scratch / "home", model.url)
        yield Stage(PROMPT, [f"--agent-executables=claude={executable}"], environment)


@contextlib.asynccontextmanager
async def _codex(scratch: Path) -> AsyncIterator[Stage]:
    executable = install("codex").executable
    async with ResponsesServer(pace=_PACE_SECONDS if sys.stdout.isatty() else 0) as model:
        model.script(*codex_demo_script())
        environment = codex_environment(scratch / "home", model.url)
        yield Stage(PROMPT, [f"--agent-executables=codex={executable}"], environment)


@contextlib.asynccontextmanager
async def _opencode(scratch: Path) -> AsyncIterator[Stage]:
    executable = install("opencode").executable
    async with ChatCompletionsServer(pace=_PACE_SECONDS if sys.stdout.isatty() else 0) as model:
        model.script(*opencode_demo_script())
        environment = opencode_environment(scratch / "home", model.url)
        yield Stage(PROMPT, [f"--agent-executables=opencode={executable}"], environment)


@contextlib.asynccontextmanager
async def _amp(scratch: Path) -> AsyncIterator[Stage]:
    executable = install("amp").executable
    async with AmpServer(pace=_PACE_SECONDS if sys.stdout.isatty() else 0) as model:
        model.script(*amp_demo_script(scratch / "work"))
        yield Stage(
            AMP_PROMPT,
            [f"--agent-executables=amp={executable}"],
            amp_environment(scratch / "home", model.url),
            cannot=("streamed text", "a question that was answered"),
        )


@contextlib.asynccontextmanager
async def _mock(_: Path) -> AsyncIterator[Stage]:
    yield Stage(_MOCK_PROMPT)


@contextlib.asynccontextmanager
async def _live(_: Path) -> AsyncIterator[Stage]:
    yield Stage(_LIVE_PROMPT, daemon_environment=os.environ)


STAGES: Mapping[str, StageMaker] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "amp": _amp,
    "mock": _mock,
}
"""How each agent is set up to play without a key and without a network."""


class _Automatic(Answerer):
    """Answers for the person who is not there: yes, and the first option of each question."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def ask(self, request: Request) -> Answer:
        """The answer to `request`."""
        match request:
            case interaction_pb2.PermissionRequest():
                await self._say("yes")
                return interaction_pb2.PermissionAnswer(
                    decision=interaction_pb2.PERMISSION_DECISION_ACCEPT
                )
            case interaction_pb2.QuestionRequest():
                answered = interaction_pb2.AnsweredQuestions()
                for question in request.questions:
                    answer = answered.answers.add(question_id=question.question_id)
                    if question.options:
                        answer.labels.append(question.options[0].label)
                    else:
                        answer.text = "as you like"
                await self._say(", ".join(a.text or a.labels[0] for a in answered.answers))
                return interaction_pb2.QuestionAnswer(answered=answered)
        await self._say("cancel")
        return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)

    async def _say(self, words: str) -> None:
        self._console.print(Text.assemble(("  the demo answers: ", "dim"), (words, "bold magenta")))
        if self._console.is_terminal:
            await asyncio.sleep(_THINKING_SECONDS)


async def demonstrate(agent: str, scratch: Path, *, live: bool) -> int:
    """Run the demonstration in the directory `scratch`; returns the exit code."""
    console = Console(highlight=False, markup=False, emoji=False)
    context = Context("", console, Console(stderr=True, highlight=False, markup=False))
    make = _live if live else STAGES.get(agent)
    if make is None:
        print(f"demo: no agent {agent!r}; there are: {', '.join(STAGES)}", file=sys.stderr)
        return 2
    work, data = scratch / "work", scratch / "data"
    work.mkdir()
    async with make(scratch) as stage:
        environment = stage.daemon_environment
        async with daemon(data, *stage.flags, environment=environment) as running:
            _headline(console, f"{agent} through agentstreamd at {running.target}, live")
            async with connect_aio(running.target) as client:
                events = await _play(client, agent, stage, work, context)
            middle = len(events) // 2
            _headline(console, f"the same stream, read again after event {middle}")
            resumed = await _read_again(running.target, middle)
    display = Display(context)
    for line in resumed:
        display.show(json_format.Parse(line, event_pb2.Event()))
    display.finish()
    return _verdict(console, events, middle, resumed, live=live, cannot=stage.cannot)


async def _play(
    client: AsyncClient, agent: str, stage: Stage, directory: Path, context: Context
) -> list[event_pb2.Event]:
    """One turn, shown live; returns all events of the session."""
    config = session_pb2.SessionConfig(
        agent=agent, working_directory=str(directory), env=stage.environment
    )
    with typed_errors():
        await client.stub.CreateSession(
            service_pb2.CreateSessionRequest(session_id=_SESSION, config=config)
        )
    events: list[event_pb2.Event] = []
    display = Display(context)

    def show(event: event_pb2.Event) -> None:
        events.append(event)
        display.show(event)

    conversation = Conversation(
        client, _SESSION, show=show, notice=context.notice, answerer=_Automatic(context.out)
    )
    try:
        await conversation.start()
        turn = await conversation.send([service_pb2.InputPart(text=stage.prompt)])
        await conversation.wait(turn)
        with typed_errors():
            await client.stub.EndSession(service_pb2.EndSessionRequest(session_id=_SESSION))
        await conversation.wait_ended()
    finally:
        await conversation.close()
        display.finish()
    return events


async def _read_again(address: str, after: int) -> list[str]:
    """The events after `after`, as the command line prints them."""
    command = (sys.executable, "-m", "agentstream.cli.main", "events", _SESSION)
    process = await asyncio.create_subprocess_exec(
        *(*command, f"--after={after}", "--json", f"--address={address}"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()


def _verdict(
    console: Console,
    events: Sequence[event_pb2.Event],
    middle: int,
    resumed: Sequence[str],
    *,
    live: bool,
    cannot: Sequence[str],
) -> int:
    parts = _parts(events)
    missing = [what for what, there in parts.items() if not there and what not in cannot]
    same = sum(a == b for a, b in zip(resumed, map(json_line, events[middle:]), strict=False))
    wanted = len(events) - middle
    violations = check(events, complete=True, raw=False)
    differs = same != wanted or len(resumed) != wanted
    # A real model does as it likes: what it left out does not prove anything wrong.
    needed = [what for what in missing if what == _COMPLETED or not live]
    failed = differs or bool(violations) or bool(needed)
    for violation in violations:
        console.print(Text(f"demo: {violation}", "red"), soft_wrap=True)
    if missing:
        console.print(
            Text(f"demo: not seen: {', '.join(missing)}", "red" if needed else "yellow"),
            soft_wrap=True,
        )
    console.print()
    words = (
        f"demo: {len(events)} events; read again after {middle}: {same} of {wanted} the same; "
        f"{len(violations)} laws broken"
    )
    console.print(Text(words, "bold red" if failed else "bold green"), soft_wrap=True)
    return 1 if failed else 0


def _parts(events: Sequence[event_pb2.Event]) -> dict[str, bool]:
    """What the demonstration should show, and whether it did."""
    accepted = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
    items = [event.item_completed.item for event in events if event.HasField("item_completed")]
    return {
        "streamed text": any(
            event.item_delta.kind == event_pb2.DELTA_KIND_TEXT and not event.synthetic
            for event in events
        ),
        "a permission that was given": any(
            event.permission_resolved.outcome == accepted for event in events
        ),
        "a question that was answered": any(
            event.question_resolved.outcome == accepted for event in events
        ),
        "a diff": any(part.file_ref.diff for item in items for part in item.content),
        _COMPLETED: any(
            event.turn_ended.status == event_pb2.TURN_STATUS_COMPLETED for event in events
        ),
    }


def _headline(console: Console, words: str) -> None:
    console.print()
    console.rule(Text(words, "bold"), align="left")


def main() -> int:
    """Run the demonstration that the environment asks for; returns the exit code."""
    agent = os.environ.get("AGENT") or "claude"
    live = os.environ.get("LIVE", "") not in ("", "0")
    try:
        with tempfile.TemporaryDirectory(prefix="agentstream-demo-") as scratch:
            return asyncio.run(demonstrate(agent, Path(scratch).resolve(), live=live))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
