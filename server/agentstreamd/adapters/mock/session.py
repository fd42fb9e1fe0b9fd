"""A session of the mock agent: its turns, one after the other, and what is said to it."""

import asyncio
import contextlib
import hashlib
import signal as signals
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import NoReturn

from agentstreamd.adapters.mock.acting import TurnFailed, TurnInterrupted
from agentstreamd.adapters.mock.interpreter import Interpreter
from agentstreamd.adapters.mock.script import Directive, ScriptError, is_script
from agentstreamd.adapters.mock.stage import Ids, Json, Stage, Writer

VERSION = "1.0.0"
TOOLS = ["Bash", "Edit", "Read", "Task", "Write"]
DEFAULT_MODEL = "mock-1"


@dataclass(frozen=True, slots=True)
class _Job:
    """Something to play: a prompt, or directives that were put off."""

    prompt: Json | None = None
    directives: Sequence[Directive] = ()
    in_turn: bool = True
    trigger: str = "agent"


class Quit:
    """Ends the program that sessions run in."""

    def __init__(
        self,
        end: Callable[[int | None, int | None], None],
        stderr: Callable[[str], None],
        *,
        is_process: bool,
    ) -> None:
        """`end` gets the exit code or the number of a signal."""
        self.end = end
        self.stderr = stderr
        self.is_process = is_process


class MockSession:
    """One session; see `interpreter.Agent` for what directives use of it."""

    def __init__(
        self, start: Json, write: Callable[[bytes], Coroutine[None, None, None]], program: Quit
    ) -> None:
        """Begin a session as the message `start` says; call `run` then."""
        self.settings: Json = dict(start.get("settings", {}))
        self.native_session_id = str(start.get("native_session_id", "mock"))
        self.turn = int(start.get("turns", 0))
        self.permission_mode = str(self.settings.get("permission_mode", "default"))
        self.granted: set[str] = set()
        self.steered: deque[str] = deque()
        self.was_steered = asyncio.Event()
        self.refuses_interrupt = False
        self.usage: Json = {}
        self._chosen: Json = {}
        self.is_process = program.is_process
        self.stderr = program.stderr
        self._program = program
        self._writer = Writer(str(start["session"]), write)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._asked: dict[str, asyncio.Future[Json]] = {}
        self._playing: asyncio.Task[None] | None = None
        self._in_turn = False
        self._interrupt_next = False
        self._later: list[_Job] = []
        self._beside: set[asyncio.Future[None]] = set()
        self._background_count = 0

    async def run(self) -> None:
        """Do what the session is asked to, for ever."""
        try:
            await self._run()
        finally:
            for task in self._beside:
                task.cancel()

    async def _run(self) -> None:
        self._writer.line(
            {
                "type": "hello",
                "version": VERSION,
                "native_session_id": self.native_session_id,
                "model": self.settings.get("model") or DEFAULT_MODEL,
                "tools": TOOLS,
            }
        )
        while True:
            await self._writer.flush()
            job = await self._jobs.get()
            self.turn += 1
            await self._play_turn(job, Stage(self._writer, Ids(str(self.turn))))

    def receive(self, message: Json) -> None:
        """Take a message of the client."""
        match message.get("type"):
            case "prompt":
                self._jobs.put_nowait(_Job(message))
            case "steer":
                self._steer(message)
            case "interrupt":
                self._interrupt()
            case "answer":
                asked = self._asked.pop(str(message.get("request_id")), None)
                if asked is not None and not asked.done():
                    asked.set_result(message.get("answer", {}))
            case "update":
                self._update(message)
            case _:
                self._writer.line({"type": "ignored", "message": message})
        if not self._writer.muted:
            self._do_beside(self._writer.flush())

    # What directives use

    def describe(self) -> Json:
        """The session's settings."""
        return {
            **self.settings,
            "model": self.settings.get("model") or DEFAULT_MODEL,
            "permission_mode": self.permission_mode,
            **self._chosen,
        }

    async def ask(self, request: Json) -> Json:
        """Send a request and wait for its answer."""
        asked: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        request_id = request["request_id"]
        self._asked[request_id] = asked
        self._writer.line(request)
        try:
            await self._writer.flush()
            return await asked
        finally:
            self._asked.pop(request_id, None)

    def later(
        self, directives: Sequence[Directive], *, in_turn: bool, trigger: str = "agent"
    ) -> None:
        """Play directives after the running turn."""
        self._later.append(_Job(directives=directives, in_turn=in_turn, trigger=trigger or "agent"))

    async def quit(self, *, exit_code: int | None = None, signal: int | None = None) -> NoReturn:
        """End the program, and with it all its sessions."""
        await self._writer.flush()
        self._program.end(exit_code, signal)
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets was set")

    def refuse_term(self) -> None:
        """Ignore SIGTERM, where the agent is a process."""
        if self.is_process:
            signals.signal(signals.SIGTERM, signals.SIG_IGN)

    # Turns

    async def _play_turn(self, job: _Job, stage: Stage) -> None:
        started: Json = {"type": "turn_started", "native_turn_id": f"turn-{self.turn}"}
        if job.prompt is not None:
            started["prompt_id"] = job.prompt.get("id", "")
        else:
            started["trigger"] = job.trigger
        self._writer.line(started)
        self.usage = {}
        self._in_turn = True
        self._choose(job.prompt or {})
        ended: Json = {"status": "COMPLETED", "stop_reason": "end_turn"}
        try:
            if self._interrupt_next:
                raise TurnInterrupted
            await self._play(job, stage)
        except (TurnInterrupted, asyncio.CancelledError):
            if _is_being_cancelled():
                raise
            ended = {"status": "INTERRUPTED", "stop_reason": "interrupted"}
        except TurnFailed as error:
            ended = _failed(error.code, str(error))
        except ScriptError as error:
            ended = _failed("INVALID_REQUEST", f"The script can't be run: {error}.")
        self._choose({})
        self._in_turn = False
        self._interrupt_next = False
        self.steered.clear()
        self.was_steered.clear()
        read = len(_texts(job.prompt)) if job.prompt else 0
        written = stage.written_characters
        usage = {"input_tokens": read, "output_tokens": written, "cost_micro_usd": read + written}
        self._writer.line(
            {
                "type": "turn_ended",
                **ended,
                "status": f"TURN_STATUS_{ended['status']}",
                "usage": self.usage or usage,
                "native_turn_id": f"turn-{self.turn}",
            }
        )
        for later in self._later:
            if later.in_turn:
                self._jobs.put_nowait(later)
            else:
                self._do_beside(self._play_beside(later))
        self._later.clear()

    def _choose(self, prompt: Json) -> None:
        """Take the model and effort that a message has for its turn; without one, give them up."""
        before = self.describe()["model"]
        self._chosen = {name: prompt[name] for name in ("model", "effort") if prompt.get(name)}
        if (model := self.describe()["model"]) != before:
            self._writer.line({"type": "session_updated", "model": model})

    async def _play_beside(self, job: _Job) -> None:
        """Play outside of turns."""
        self._background_count += 1
        stage = Stage(self._writer, Ids(f"b{self._background_count}"))
        try:
            await Interpreter(self, stage, takes_steering=False).run(job.directives)
        except (TurnFailed, TurnInterrupted, ScriptError) as error:
            self._writer.line({"type": "error", "message": f"In the background: {error}"})
        stage.close_message()
        await self._writer.flush()

    async def _play(self, job: _Job, stage: Stage) -> None:
        """Play in a task of its own, which an interrupt cancels."""
        self._playing = asyncio.create_task(self._perform(job, Interpreter(self, stage), stage))
        try:
            await asyncio.wait({self._playing})
        finally:
            # Only where the session itself is being ended: then there is nobody left to tell.
            self._playing.cancel()
        await _result_of(self._playing)

    async def _perform(self, job: _Job, interpreter: Interpreter, stage: Stage) -> None:
        if job.prompt is None:
            await interpreter.run(job.directives)
            stage.close_message()
            return
        text = _texts(job.prompt)
        if job.prompt.get("command"):
            self._command(text, stage)
            return
        attachments = _attachments(job.prompt)
        if attachments and not is_script(text):
            text = "\n".join([*([text] if text else []), *attachments])
        elif attachments:
            await stage.add_text("\n".join(attachments))
            stage.close_message()
        await interpreter.play(text)
        while self.steered:
            await interpreter.play(self.steered.popleft())
        # From here on a message is too late for this turn.
        self._in_turn = False

    def _command(self, text: str, stage: Stage) -> None:
        name, _, rest = text.strip().partition(" ")
        match name:
            case "/model" if rest:
                self.settings["model"] = rest
                self._writer.line({"type": "session_updated", "model": rest})
                said = f"The model is {rest}."
            case "/compact":
                said = "The conversation was compacted."
                status = {"label": "compacted", "detail": said}
                stage.whole(stage.item("status", "STATUS", "SYSTEM"), {"status": status})
            case "/echo":
                said = rest
            case "/help":
                said = "Commands: /compact, /echo TEXT, /help, /model NAME."
            case _:
                said = f"There is no command {name}."
        stage.whole(stage.item("system", "SYSTEM", "SYSTEM"), {"text": {"text": said}})

    # What the client says

    def _interrupt(self) -> None:
        if self.refuses_interrupt:
            return
        if self._in_turn and self._playing is not None:
            self._playing.cancel()
        elif not self._jobs.empty():
            # The client's turn has begun, but the agent has not come to its prompt yet.
            self._interrupt_next = True

    def _steer(self, message: Json) -> None:
        if not self._in_turn and self._jobs.empty():
            self._acknowledge(message, "No turn is running.")
            return
        self._acknowledge(message)
        self.steered.append("\n".join([_texts(message), *_attachments(message)]).strip())
        self.was_steered.set()

    def _update(self, message: Json) -> None:
        for name in ("model", "permission_mode"):
            if name in message:
                self.settings[name] = message[name]
        self.permission_mode = str(self.settings.get("permission_mode", self.permission_mode))
        self._acknowledge(message)

    def _acknowledge(self, message: Json, error: str = "") -> None:
        self._writer.line({"type": "ack", "id": message.get("id", ""), "error": error})

    def _do_beside(self, work: Coroutine[None, None, None]) -> None:
        # The event loop holds tasks weakly only: keep it until it is done.
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def _is_being_cancelled() -> bool:
    """Whether the session itself is being ended, not just a turn of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _result_of(task: "asyncio.Task[None]") -> None:
    """Raise what a finished task raised; of several, the first that is ours to tell."""
    try:
        await task
    except BaseExceptionGroup as group:
        known, _ = group.split((TurnFailed, TurnInterrupted, ScriptError))
        if known is None:
            raise
        leaf: BaseException = known
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        raise leaf from None


def _failed(code: str, message: str) -> Json:
    return {"status": "FAILED", "error": {"message": message, "code": f"ERROR_CODE_{code}"}}


def _texts(prompt: Json) -> str:
    return "\n".join(str(part["text"]) for part in prompt.get("parts", ()) if "text" in part)


def _attachments(prompt: Json) -> list[str]:
    """A line for each image and file: name, type, size and digest."""
    lines = []
    for part in prompt.get("parts", ()):
        for kind in ("image", "file"):
            if kind not in part:
                continue
            data = b""
            with contextlib.suppress(ValueError):
                data = b64decode(part[kind].get("data", ""))
            words = [kind, part[kind].get("name", ""), part[kind].get("media_type", "")]
            digest = hashlib.sha256(data).hexdigest()
            lines.append(" ".join([*filter(None, words), f"{len(data)} bytes", f"sha256 {digest}"]))
    return lines
