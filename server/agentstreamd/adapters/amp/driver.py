"""Drives Amp: one process for a session, started with its first message.

The process stays for the next messages. It ends with an error, an interrupt or by being stopped;
the next message then starts another that continues the thread.
"""

import asyncio
import itertools
import logging
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agentstream.v1 import agent_pb2, error_pb2, event_pb2, interaction_pb2
from agentstreamd.adapters.amp import failures, launch, settings, version
from agentstreamd.adapters.amp.client_side import encode_prompt
from agentstreamd.adapters.amp.connection import Connection, Limits, Listener, StartFailed
from agentstreamd.adapters.amp.desk import Asking, PermissionDesk
from agentstreamd.adapters.amp.normalizer import AmpNormalizer
from agentstreamd.adapters.amp.policy import Remembered, Verdict, decide, grant_key
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
from agentstreamd.model import Draft, Kind
from agentstreamd.process import ProcessError, ProcessGone, ProcessSpec, StopPolicy

_log = logging.getLogger(__name__)

Installed = Callable[[], Awaitable[tuple[str, str]]]
"""Finds the executable and its version, anew for each start, or raises `AgentUnavailable`."""

_REJECTED = "The user rejected this tool call."


class AmpDriver(Driver, Listener):
    """Drives one session; see `Driver`.

    `Sink.exited` is called for each process that has spoken; one that fails to start is reported by
    the `AgentFailed` of `send` alone.
    """

    def __init__(
        self, context: DriverContext, installed: Installed, desk: PermissionDesk, limits: Limits
    ) -> None:
        self._context = context
        self._installed = installed
        self._desk = desk
        self._limits = limits
        self._remembered = Remembered.load(context.state)
        self._mode = context.config.permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT
        self._given_thread = context.config.resume_native_session_id
        self._thread = context.native_session_id or self._given_thread
        self._numbers = itertools.count(1)
        self._asked = itertools.count(1)
        self._asks: dict[str, Asking] = {}
        self._connection: Connection | None = None
        self._secret = ""
        self._files: tuple[Path, ...] = ()
        self._interrupted = False
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Driver --------------------------------------------------------------------------------

    async def send(self, prompt: Prompt) -> None:
        """See `Driver.send`."""
        self._interrupted = False
        try:
            executable, number = await self._installed()
            line = encode_prompt(prompt, images=version.takes_images(number))
        except CapabilityNotSupported as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_INVALID_REQUEST) from error
        except (AgentUnavailable, ProcessError, OSError) as error:
            raise _not_started(error) from error
        connection = await self._running()
        if connection is not None:
            try:
                await connection.prompt(line)
                return
            except ProcessGone:  # between the turns, and nobody had noticed yet
                await connection.ended()
        await self._start(executable, number, line)

    async def interrupt(self) -> None:
        """See `Driver.interrupt`."""
        self._interrupted = True
        if self._connection is not None:
            await self._connection.interrupt()

    async def answer(self, request_id: str, answer: Answer) -> None:
        """See `Driver.answer`."""
        asking = self._asks.get(request_id)
        if asking is None or asking.verdict.done():
            raise NotDelivered("Amp does not wait for this answer any more.")
        if not isinstance(answer, interaction_pb2.PermissionAnswer):
            raise NotDelivered("Amp asks for permissions only.")
        allow = answer.decision != interaction_pb2.PERMISSION_DECISION_REJECT
        asking.verdict.set_result(Verdict(allow, "" if allow else answer.message or _REJECTED))
        if not await asyncio.shield(asking.delivered):
            raise NotDelivered("Amp ended its question before it took the answer.")
        if answer.decision == interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION:
            directory = self._context.config.working_directory
            self._remember(self._remembered.granted(grant_key(asking.ask, directory)))
        if answer.interrupt and not allow:
            self._background(self.interrupt())

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """See `Driver.update`.

        Modes take effect at once, since the daemon decides; only leaving bypass takes a new
        process, with the next message.
        """
        if model is not None:
            raise CapabilityNotSupported("change_model", "Amp chooses models by its modes.")
        if permission_mode is not None:
            if permission_mode not in agent_pb2.PermissionMode.values():
                raise InvalidSetting("permission_mode", "is not a known permission mode")
            self._mode = permission_mode or agent_pb2.PERMISSION_MODE_DEFAULT

    async def close(self, *, forget: bool = False) -> None:
        """See `Driver.close`."""
        if self._connection is not None:
            await self._connection.stop()
        self._clean_up()

    # --- Listener ------------------------------------------------------------------------------

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """See `Listener.on_drafts`."""
        for draft in drafts:
            if draft.kind is Kind.SESSION_UPDATED:
                self._thread = draft.event.session_updated.native_session_id or self._thread
            elif draft.event.turn_ended.status == event_pb2.TURN_STATUS_COMPLETED:
                # Not of others: a first turn that was cut may not have been stored by Amp.
                self._remember(Remembered(conversation=True, grants=self._remembered.grants))
        await self._context.sink.publish(drafts)

    def on_exit(self, connection: Connection, exit: AgentExit) -> None:
        """See `Listener.on_exit`."""
        if self._connection is connection:
            self._connection = None
            self._clean_up()
        self._context.sink.exited(exit)

    # --- permissions ---------------------------------------------------------------------------

    async def _on_asking(self, asking: Asking) -> None:
        directory = self._context.config.working_directory
        verdict = decide(self._mode, asking.ask, directory, self._remembered)
        connection = self._connection
        if verdict is None and connection is None:
            verdict = Verdict(False, "The session is not running any more.")
        if verdict is not None:
            asking.verdict.set_result(verdict)
            return
        assert connection is not None
        request_id = f"permission-{next(self._asked)}"
        self._asks[request_id] = asking
        try:
            await connection.ask(request_id, asking.ask)
            await asyncio.shield(asking.verdict)
        except asyncio.CancelledError:
            if not asking.verdict.done():
                asking.verdict.cancel()
                self._background(connection.withdraw(request_id))
            raise
        finally:
            del self._asks[request_id]

    def _background(self, work: "Awaitable[None]") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- starting ------------------------------------------------------------------------------

    async def _running(self) -> Connection | None:
        """The process, if it can take a message."""
        connection = self._connection
        if connection is None:
            return None
        if not connection.usable:
            await connection.ended()  # its last events come before those of the next process
            return None
        if connection.allows_all and self._mode != agent_pb2.PERMISSION_MODE_BYPASS:
            await connection.stop()
            return None
        return connection

    async def _start(self, executable: str, number: str, line: bytes) -> None:
        try:
            try:
                await self._start_process(executable, number, line)
            except StartFailed as error:
                lost = error.failure.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
                begun = self._remembered.conversation or self._thread == self._given_thread
                if not lost or begun:
                    raise
                # Processes die between beginning a thread and having it stored. A conversation
                # that was there is never begun anew: its user would not learn that it is lost.
                self._thread = ""
                await self._start_process(executable, number, line)
        except StartFailed as error:
            raise AgentFailed(error.failure.message, error.failure.code) from None
        except (ProcessError, OSError) as error:
            raise _not_started(error) from error

    async def _start_process(self, executable: str, number: str, line: bytes) -> None:
        config, limits = self._context.config, self._limits
        environment = {**self._context.environment, **config.env}
        if not launch.has_key(environment):
            raise StartFailed(failures.NO_KEY)
        bypass = self._mode == agent_pb2.PERMISSION_MODE_BYPASS
        trusted = config.agent_options.get("workspace_settings") == "trust"
        problem = settings.workspace_problem(config.working_directory)
        if problem and not (bypass or trusted):
            raise AgentFailed(
                f"{problem}. Amp would follow it instead of this session's permissions. Remove it, "
                "or create the session with agent_options[workspace_settings] = trust.",
                error_pb2.ERROR_CODE_AGENT_START_FAILED,
            )
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", self._context.session_uid) or uuid.uuid4().hex
        self._secret = await self._desk.register(self._on_asking)
        plan = launch.plan_launch(
            executable=executable,
            config=config,
            environment=self._context.environment,
            thread_id=self._thread,
            permission_mode=self._mode,
            user_settings=settings.user_settings(environment),
            file_prefix=self._context.state_directory / stem,
            socket_path=self._desk.path,
            secret=self._secret,
        )
        try:
            self._write_files(plan)
            child = await self._context.processes.spawn(
                ProcessSpec(
                    argv=plan.argv,
                    cwd=config.working_directory,
                    env=plan.env,
                    label=f"amp of session {self._context.session_id}",
                    stop=StopPolicy(
                        polite_grace_seconds=limits.polite_seconds,
                        term_grace_seconds=limits.term_seconds,
                        sweep_grace_seconds=limits.sweep_seconds,
                    ),
                )
            )
            normalizer = AmpNormalizer(
                version=number, one_shot=config.one_shot, numbers=self._numbers
            )
            self._connection = Connection(
                child,
                normalizer,
                self,
                limits,
                allows_all=bypass,
                cuts_turns=version.cuts_turns(number),
            )
            starting = asyncio.ensure_future(self._connection.start(line))
            if self._interrupted:
                await self._connection.interrupt()
            await starting
        except BaseException:
            self._connection = None
            self._clean_up()
            raise

    def _write_files(self, plan: launch.Launch) -> None:
        self._files = tuple(plan.files)
        for path, (mode, content) in plan.files.items():
            path.unlink(missing_ok=True)  # of a daemon that was killed
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as file:
                file.write(content)

    def _clean_up(self) -> None:
        self._desk.forget(self._secret)
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files = ()

    def _remember(self, state: Remembered) -> None:
        if state != self._remembered:
            self._remembered = state
            self._context.sink.save_state(state.dump())


def _not_started(error: Exception) -> AgentFailed:
    return AgentFailed(
        f"Amp could not be started: {error}", error_pb2.ERROR_CODE_AGENT_START_FAILED
    )
