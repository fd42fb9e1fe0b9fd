"""Drives Claude Code: one long-lived process for a session, started when it is needed.

The process starts with the first message and stays for the next ones, which saves most of a second
each and keeps the CLI's background work alive. When it is gone, for whatever reason, the next
message starts another that resumes the native session, with the model, the permission mode and the
permissions that were granted for the session put back: the CLI forgets those.
"""

import asyncio
import logging
import os
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from agentstream.v1 import agent_pb2, error_pb2
from agentstreamd.adapters.base import (
    AgentExit,
    AgentFailed,
    AgentUnavailable,
    Answer,
    CapabilityNotSupported,
    Driver,
    DriverContext,
    InvalidSetting,
    NotDelivered,
    Prompt,
)
from agentstreamd.adapters.claude import answers
from agentstreamd.adapters.claude.connection import Connection, Limits, Listener, StartFailed
from agentstreamd.adapters.claude.failures import Reason
from agentstreamd.adapters.claude.launch import Launch, check_model, plan_launch
from agentstreamd.adapters.claude.normalizer import ClaudeNormalizer
from agentstreamd.adapters.claude.state import Remembered
from agentstreamd.model import Draft, Kind
from agentstreamd.process import ProcessError, ProcessGone, ProcessSpec, StopPolicy

_log = logging.getLogger(__name__)

_SESSION_NAMESPACE = uuid.UUID("7b0d6c1e-5a0c-5d53-9f43-5f6f0c0a7d11")


def own_session_id(session_uid: str) -> str:
    """The native id of a session that begins with us.

    It follows from the uid, so that a daemon that died before it had noted the id finds the
    conversation again.
    """
    return str(uuid.uuid5(_SESSION_NAMESPACE, session_uid))


class ClaudeDriver(Driver, Listener):
    """Drives one session; see `Driver`.

    `executable` finds the CLI, anew for each start, or raises `AgentUnavailable`.
    `Sink.exited` is called for each process that was ready once; one that fails to start is
    reported by the `AgentFailed` of `send` alone.
    """

    def __init__(
        self, context: DriverContext, executable: Callable[[], str], limits: Limits
    ) -> None:
        self._context = context
        self._executable = executable
        self._limits = limits
        self._remembered = Remembered.load(context.state)
        self._model = context.config.model
        self._mode = context.config.permission_mode
        self._own_id = own_session_id(context.session_uid or uuid.uuid4().hex)
        known = context.native_session_id or context.config.resume_native_session_id
        self._native_id = known or self._own_id
        self._begun = bool(known)
        self._connection: Connection | None = None
        self._starting: Connection | None = None
        self._closes = 0
        self._files: tuple[Path, ...] = ()
        self._sending: asyncio.Future[None] | None = None

    # --- Driver --------------------------------------------------------------------------------

    async def send(self, prompt: Prompt) -> None:
        """See `Driver.send`."""
        try:
            line = answers.encode_prompt(prompt)
        except CapabilityNotSupported as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_INVALID_REQUEST) from error
        self._sending = sending = asyncio.get_running_loop().create_future()
        closes = self._closes
        try:
            connection = await self._ready(closes)
            try:
                await connection.prompt(line, prompt.message_id)
            except ProcessGone:  # between the turns, and nobody had noticed yet
                connection = await self._ready(closes)
                await connection.prompt(line, prompt.message_id)
        except ProcessGone as error:
            message = f"Claude Code did not take the message: {error}"
            raise AgentFailed(message, error_pb2.ERROR_CODE_AGENT_EXITED) from error
        finally:
            sending.set_result(None)
            self._sending = None

    async def interrupt(self) -> None:
        """See `Driver.interrupt`."""
        if self._sending is not None:
            # An interrupt that overtakes its message has no effect.
            await asyncio.shield(self._sending)
        connection = self._connection
        if connection is None or not connection.turn_open:
            return  # it would be answered, but never followed by a result
        try:
            await connection.interrupt()
        except ProcessGone:
            return  # the exit ends the turn
        except AgentFailed as error:
            _log.warning("session %s: %s", self._context.session_id, error)

    async def answer(self, request_id: str, answer: Answer) -> None:
        """See `Driver.answer`."""
        connection = self._connection
        if connection is None or not connection.alive:
            raise NotDelivered("Claude Code is not running any more.")
        request = connection.waiting(request_id)
        if request is None:
            raise NotDelivered("Claude Code does not wait for this answer any more.")
        encoded = answers.encode_answer(request, answer)
        try:
            await connection.write(encoded.line)
        except ProcessGone as error:
            raise NotDelivered("Claude Code ended before it took the answer.") from error
        self._remember(self._remembered.granted(encoded.granted))

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """See `Driver.update`.

        Bypass takes effect with the next message where the process was not started for it: the
        CLI must be restarted for that. Raises `InvalidSetting` too.
        """
        if model is not None:
            check_model(model)
        if permission_mode is not None and permission_mode not in answers.PERMISSION_MODES:
            raise InvalidSetting("permission_mode", "is not a known permission mode")
        connection = self._connection
        try:
            if model is not None:
                if connection is not None and connection.alive:
                    await connection.control("set_model", {"model": model} if model else {})
                self._model = model
                self._remember(self._remembered.replaced(model=""))
            if permission_mode is not None:
                if (
                    connection is not None
                    and connection.alive
                    and connection.can_take(permission_mode)
                ):
                    mode = answers.PERMISSION_MODES[permission_mode]
                    await connection.control("set_permission_mode", {"mode": mode})
                self._mode = permission_mode
        except ProcessGone as error:
            raise AgentFailed(
                f"Claude Code ended before it took the change: {error}",
                error_pb2.ERROR_CODE_AGENT_EXITED,
            ) from error

    async def close(self, *, forget: bool = False) -> None:
        """See `Driver.close`. May come while `send` runs, which then fails."""
        self._closes += 1
        for connection in (self._starting, self._connection):
            if connection is not None:
                await connection.stop()
        if self._sending is not None:
            # A process that is just being made is ended by the send that makes it.
            await asyncio.wait({self._sending}, timeout=self._limits.polite_seconds)
        if self._starting is None and self._connection is None:
            self._remove_files()

    # --- Listener ------------------------------------------------------------------------------

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """See `Listener.on_drafts`."""
        for draft in drafts:
            if draft.kind is Kind.TURN_ENDED:
                self._begun = True
                if not self._remembered.conversation:
                    self._remember(self._remembered.replaced(conversation=True))
            elif draft.kind is Kind.SESSION_STARTED:
                self._learn_model(draft.event.session_started.model)
            elif draft.kind is Kind.SESSION_UPDATED:
                updated = draft.event.session_updated
                self._learn_model(updated.model)
                self._native_id = updated.native_session_id or self._native_id
                if self._connection is None or self._connection.can_take(self._mode):
                    self._mode = updated.permission_mode or self._mode
        await self._context.sink.publish(drafts)

    def on_exit(self, connection: Connection, exit: AgentExit) -> None:
        """See `Listener.on_exit`."""
        if self._connection is connection:
            self._connection = None
            self._remove_files()
        self._context.sink.exited(exit)

    # --- starting ------------------------------------------------------------------------------

    async def _ready(self, closes: int) -> Connection:
        """The running process, started if there is none. Raises AgentFailed.

        `closes` is how often the driver had been closed when this was set out to do: closed since
        then, it starts nothing.
        """
        connection = self._connection
        if connection is not None and not connection.alive:
            await connection.ended()  # its last events come before those of the next process
            connection = None
        if connection is not None and not connection.can_take(self._mode):
            await connection.stop()
            connection = None
        if connection is None:
            connection = self._connection = await self._start(closes)
        return connection

    async def _start(self, closes: int) -> Connection:
        resume = self._begun
        try:
            try:
                return await self._start_process(resume, closes)
            except StartFailed as error:
                if not self._other_way(resume, error.failure.reason):
                    raise
                return await self._start_process(not resume, closes)
        except StartFailed as error:
            self._check_open(closes)
            raise AgentFailed(error.failure.message, error.failure.code) from None
        except (AgentUnavailable, ProcessError, OSError, ValueError) as error:
            message = f"Claude Code could not be started: {error}"
            raise AgentFailed(message, error_pb2.ERROR_CODE_AGENT_START_FAILED) from error

    def _other_way(self, resumed: bool, reason: Reason) -> bool:
        """Whether to begin instead of to resume, or the other way round.

        Processes and daemons die between beginning a session and having it noted. A conversation
        that was there is never begun anew, though: its user would not learn that it is lost.
        """
        if reason is Reason.SESSION_EXISTS:
            return not resumed
        lost = self._remembered.conversation or self._native_id != self._own_id
        return reason is Reason.SESSION_NOT_FOUND and resumed and not lost

    async def _start_process(self, resume: bool, closes: int) -> Connection:
        self._check_open(closes)
        launch = self._launch(resume)
        self._write_files(launch)
        try:
            child = await self._context.processes.spawn(self._spec(launch))
            # A normalizer of its own: some of the CLI's figures count from its start.
            connection = Connection(
                child, ClaudeNormalizer(), self, self._limits, can_bypass=launch.can_bypass
            )
            self._starting = connection
            if self._closes != closes:
                await connection.stop()
            self._check_open(closes)
            await connection.start(launch.initialize)
            self._check_open(closes)
        except BaseException:
            self._remove_files()
            raise
        finally:
            self._starting = None
        return connection

    def _check_open(self, closes: int) -> None:
        if self._closes != closes:
            raise AgentFailed(
                "Claude Code was stopped before it had the message.",
                error_pb2.ERROR_CODE_AGENT_EXITED,
            )

    def _spec(self, launch: Launch) -> ProcessSpec:
        return ProcessSpec(
            argv=launch.argv,
            cwd=self._context.config.working_directory,
            env=launch.env,
            label=f"claude of session {self._context.session_id}",
            stop=StopPolicy(
                polite_grace_seconds=self._limits.polite_seconds,
                term_grace_seconds=self._limits.term_seconds,
                sweep_grace_seconds=self._limits.sweep_seconds,
            ),
        )

    def _launch(self, resume: bool) -> Launch:
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", self._context.session_uid) or self._own_id
        return plan_launch(
            executable=self._executable(),
            config=self._context.config,
            environment=self._context.environment,
            native_session_id=self._native_id,
            resume=resume,
            model=self._model or self._remembered.model,
            permission_mode=self._mode,
            remembered=self._remembered,
            file_prefix=self._context.state_directory / stem,
            as_root=os.geteuid() == 0,
        )

    def _write_files(self, launch: Launch) -> None:
        for path, content in launch.files.items():
            path.unlink(missing_ok=True)  # of a daemon that was killed
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
        self._files = tuple(launch.files)

    def _remove_files(self) -> None:
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files = ()

    # --- what is kept --------------------------------------------------------------------------

    def _learn_model(self, model: str) -> None:
        if model and not self._model and not self._remembered.model:
            self._remember(self._remembered.replaced(model=model))

    def _remember(self, state: Remembered) -> None:
        if state != self._remembered:
            self._remembered = state
            self._context.sink.save_state(state.dump())
