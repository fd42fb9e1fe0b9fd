"""Drives one session of OpenCode on a server that it may share with others."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agentstream.v1 import agent_pb2, error_pb2
from agentstreamd.adapters.base import (
    AgentExit,
    AgentFailed,
    AgentUnavailable,
    Answer,
    Driver,
    DriverContext,
    InvalidSetting,
    NotDelivered,
    Prompt,
)
from agentstreamd.adapters.opencode import calls, commands, launch
from agentstreamd.adapters.opencode.api import Refused, Unreachable
from agentstreamd.adapters.opencode.inbox import Inbox
from agentstreamd.adapters.opencode.native import dict_in, text_in
from agentstreamd.adapters.opencode.normalizer import OpenCodeNormalizer
from agentstreamd.adapters.opencode.pool import Pool
from agentstreamd.adapters.opencode.reconciler import Reconciler
from agentstreamd.adapters.opencode.recovery import session_event
from agentstreamd.adapters.opencode.server import Limits, Listener, Server
from agentstreamd.adapters.opencode.state import Remembered
from agentstreamd.adapters.opencode.turns import Guards
from agentstreamd.model import Draft
from agentstreamd.process import ProcessError

_log = logging.getLogger(__name__)

TAKEN_SECONDS = 3.0
"""How long an interrupt waits for its turn to be taken up: one that overtakes it has no effect."""


class OpenCodeDriver(Driver, Listener):
    """Drives one session; see `Driver`. `executable` finds the CLI or raises `AgentUnavailable`."""

    def __init__(
        self,
        context: DriverContext,
        executable: Callable[[], str],
        pool: Pool,
        limits: Limits,
        guards: Guards,
    ) -> None:
        config = context.config
        self._context = context
        self._executable = executable
        self._pool = pool
        self._limits = limits
        self._remembered = Remembered.load(context.state)
        self._model = config.model
        self._mode = config.permission_mode
        self._native_id = context.native_session_id or config.resume_native_session_id
        self._directory = self._remembered.directory or config.working_directory
        self._server: Server | None = None
        self._key = ""
        self._opened = False
        self._normalizer = OpenCodeNormalizer(
            session_id=self._native_id,
            mcp_servers=[server.name for server in config.mcp_servers],
            grants=self._remembered.grants,
            guards=guards,
        )
        self._inbox = Inbox(self._normalizer, self._publish, self._on_exit)
        self._reconciler = Reconciler(self._normalizer, self._inbox.put, limits)
        self._sending: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def server(self) -> Server | None:
        """The server it uses now."""
        return self._server

    # --- Driver --------------------------------------------------------------------------------

    async def send(self, prompt: Prompt) -> None:
        """See `Driver.send`."""
        self._sending = sending = asyncio.get_running_loop().create_future()
        try:
            server = await self._ready()
            await self._open_session(server)
            await self._deliver(server, prompt)
        except (Unreachable, ProcessError, AgentUnavailable, OSError) as error:
            code = error_pb2.ERROR_CODE_AGENT_START_FAILED
            if isinstance(error, Unreachable):
                code = error_pb2.ERROR_CODE_AGENT_PROTOCOL
            raise AgentFailed(str(error), code) from error
        finally:
            sending.set_result(None)
            self._sending = None

    async def steer(self, prompt: Prompt) -> None:
        """See `Driver.steer`. OpenCode reads the message with its next step of the turn."""
        server = self._server
        if server is None or not self._normalizer.turns.open:
            raise NotDelivered("No turn is running.")
        if prompt.command:
            raise NotDelivered("OpenCode carries out commands only when no turn is running.")
        call = calls.prompt(self._native_id, calls.new_message_id(), prompt, self._settings())
        self._normalizer.sent(call.line())
        try:
            await server.call(call, self._directory)
        except (Refused, Unreachable) as error:
            raise NotDelivered(f"OpenCode did not take the message: {error}") from error

    async def interrupt(self) -> None:
        """See `Driver.interrupt`."""
        if self._sending is not None:
            await asyncio.shield(self._sending)
        if self._server is None or not self._normalizer.turns.open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_SECONDS):
                await self._taken.wait()
        try:
            await self._abort()
        except Unreachable as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_AGENT_PROTOCOL) from error

    async def answer(self, request_id: str, answer: Answer) -> None:
        """See `Driver.answer`."""
        server = self._server
        ask = self._normalizer.requests.pending.get(request_id)
        if server is None or ask is None or ask.answered:
            raise NotDelivered("OpenCode does not wait for this answer any more.")
        encoded = calls.answer(ask, answer)
        self._normalizer.sent(encoded.call.line())
        try:
            await server.call(encoded.call, ask.directory or self._directory)
        except (Refused, Unreachable) as error:
            self._normalizer.not_sent(request_id=request_id)
            raise NotDelivered(f"OpenCode did not take the answer: {error}") from error
        if encoded.granted:
            granted = encoded.granted
            self._remember(self._remembered.granted(granted))
            await self._inbox.put(lambda: self._normalizer.requests.grant(granted))
            sessions = {self._native_id, ask.session_id}
            self._background(self._note_grants(server, sessions, encoded.granted))
        if encoded.abort:
            with contextlib.suppress(Refused, Unreachable):
                await self._abort()

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """See `Driver.update`. Both take effect with the next message. Raises `InvalidSetting`."""
        if model is not None:
            launch.check_model(model)
        if permission_mode is not None and permission_mode not in launch.PERMISSION_MODES:
            raise InvalidSetting("permission_mode", "is not a known permission mode")
        self._model = self._model if model is None else model
        self._mode = self._mode if permission_mode is None else permission_mode

    async def close(self, *, forget: bool = False) -> None:
        """See `Driver.close`. The native session stays; it is the user's."""
        server = self._server
        if server is not None:
            if self._normalizer.turns.open and server.alive:
                await self._end_turn(server)
            self._let_go()
            await self._inbox.emptied(self._limits.abort_seconds)
        for task in self._tasks:
            task.cancel()
        self._inbox.close()
        self._normalizer.finish()

    # --- Listener ------------------------------------------------------------------------------

    async def on_event(self, native: bytes) -> None:
        """See `Listener.on_event`."""
        await self._inbox.put(native)

    async def on_reconnected(self) -> None:
        """See `Listener.on_reconnected`."""
        server = self._server
        await self._reconciler.begin()
        if server is not None and self._normalizer.turns.open:
            self._background(self._reconcile(server))

    async def on_gone(self, exit: AgentExit) -> None:
        """See `Listener.on_gone`."""
        await self._inbox.put(exit)

    # --- from the inbox ------------------------------------------------------------------------

    async def _publish(self, drafts: Sequence[Draft]) -> None:
        normalizer = self._normalizer
        if drafts:
            await self._context.sink.publish(drafts)
        turns = normalizer.turns
        if turns.taken:
            self._taken.set()
        if not turns.open:
            self._over.set()
        for ask in normalizer.take_accepts():
            self._background(self._accept(calls.once(ask), ask.directory or self._directory))
        if turns.must_abort:
            turns.must_abort = False
            self._background(self._abort_or_kill())

    def _on_exit(self, exit: AgentExit) -> None:
        self._let_go()
        self._over.set()
        self._context.sink.exited(exit)

    # --- servers and sessions ------------------------------------------------------------------

    async def _ready(self) -> Server:
        """The server for the next message. Raises as `Pool.lease`, and `AgentUnavailable`."""
        plan = launch.plan_server(
            executable=self._executable(),
            config=self._context.config,
            environment=self._context.environment,
            permission_mode=self._mode,
        )
        server = self._server
        if server is not None and not server.alive:
            # Its last events and its end come before those of the next one.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.request_seconds):
                    while self._server is server:
                        await self._inbox.emptied(self._limits.request_seconds)
                        await asyncio.sleep(0.01)
        if self._server is not None and (self._key != plan.key or not self._server.alive):
            self._let_go()
        if self._server is None:
            self._server = await self._pool.lease(plan)
            self._server.words.used_by(self._context.session_uid)
            self._key = plan.key
            self._opened = False
        return self._server

    async def _open_session(self, server: Server) -> None:
        """Begin the native session, or make sure that it is there."""
        if self._native_id and self._opened:
            return
        if not self._native_id:
            settings = self._settings()
            agents = await server.api.get("/agent", self._directory)
            call = calls.create(
                title=self._context.config.title,
                settings=settings,
                metadata={"agentstream_session": self._context.session_uid},
                rules=launch.users_rules(agents, settings.agent, self._mode),
            )
            info = await server.call(call, self._directory)
            kind = "session.created"
        else:
            try:
                info = await server.api.get(f"/session/{self._native_id}", self._directory)
            except Refused as error:
                if error.status != 404:
                    raise
                raise AgentFailed(
                    f"OpenCode has no session {self._native_id} any more.",
                    error_pb2.ERROR_CODE_SESSION_NOT_FOUND,
                ) from error
            kind = "session.updated"
        if not isinstance(info, dict) or not text_in(info, "id"):
            raise AgentFailed(
                "OpenCode's answer is not a session.", error_pb2.ERROR_CODE_AGENT_PROTOCOL
            )
        self._native_id = text_in(info, "id")
        self._directory = text_in(info, "directory") or self._directory
        self._remember(self._remembered.replaced(directory=self._directory))
        server.attach(self._native_id, self)
        self._opened = True
        await self._inbox.put(session_event(dict_in({"info": info}, "info"), kind))

    async def _deliver(self, server: Server, prompt: Prompt) -> None:
        settings = self._settings()
        if prompt.command:
            call = await commands.request_of(
                server, self._native_id, self._directory, prompt, settings
            )
        else:
            call = calls.prompt(self._native_id, calls.new_message_id(), prompt, settings)
        self._taken.clear()
        self._over.clear()
        self._normalizer.sent(call.line())
        try:
            if prompt.command:
                seconds = self._limits.taken_seconds
                self._keep(
                    await commands.begin(server, call, self._directory, self._taken, seconds)
                )
            else:
                await server.call(call, self._directory)
        except BaseException:
            self._normalizer.not_sent()
            raise
        self._background(self._watch(server))

    def _settings(self) -> calls.TurnSettings:
        config = self._context.config
        return calls.TurnSettings(
            model=self._model,
            agent=launch.agent_of(config, self._mode),
            variant=config.effort,
            system=config.system_prompt,
        )

    def _let_go(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.detach(self)
            self._pool.release(server)

    # --- during a turn -------------------------------------------------------------------------

    async def _watch(self, server: Server) -> None:
        """See to it that the turn ends, also where the server does not say so."""
        await self._reconciler.watch(server, self._native_id, self._directory, self._over)

    async def _reconcile(self, server: Server) -> None:
        await self._reconciler.run(server, self._native_id, self._directory, self)

    async def _abort(self) -> None:
        server = self._server
        if server is None:
            return
        call = calls.abort(self._native_id)
        self._normalizer.sent(call.line())
        await server.call(call, self._directory, seconds=self._limits.abort_seconds)

    async def _abort_or_kill(self) -> None:
        server = self._server
        try:
            await self._abort()
        except (Refused, Unreachable) as error:
            _log.error("%s; the server is killed", error)
            if server is not None:
                server.kill()

    async def _end_turn(self, server: Server) -> None:
        """Stop the running turn, which also ends its tools; a server that can't is killed."""
        await self._abort_or_kill()
        try:
            async with asyncio.timeout(self._limits.abort_seconds):
                await self._over.wait()
        except TimeoutError:
            _log.warning("session %s: its turn did not end", self._context.session_id)

    async def _accept(self, call: calls.Call, directory: str) -> None:
        server = self._server
        if server is not None:
            await server.call(call, directory)

    async def _note_grants(
        self, server: Server, sessions: set[str], granted: list[tuple[str, str]]
    ) -> None:
        """Have the server itself remember, from the next turn on; until then the driver does."""
        for session_id in sessions:
            await server.call(calls.remember(session_id, granted), self._directory)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("session %s: %s", self._context.session_id, error)

    def _remember(self, state: Remembered) -> None:
        if state != self._remembered:
            self._remembered = state
            self._context.sink.save_state(state.dump())
