"""Drives one session's thread on a shared server.

The server starts with the first message of any session. When it dies, each session on it hears of
it, and the next message resumes the thread on another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentstream.v1 import agent_pb2, error_pb2, interaction_pb2
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
from agentstreamd.adapters.codex import answers
from agentstreamd.adapters.codex.attachment import Attachment, Listener
from agentstreamd.adapters.codex.commands import command_request
from agentstreamd.adapters.codex.launch import (
    ServerSpec,
    ThreadSettings,
    check_effort,
    check_mode,
    check_model,
)
from agentstreamd.adapters.codex.limits import Limits
from agentstreamd.adapters.codex.native import text_in
from agentstreamd.adapters.codex.normalizer import CodexNormalizer, Unsupported
from agentstreamd.adapters.codex.pool import Pool
from agentstreamd.adapters.codex.rpc import Refused, TimedOut
from agentstreamd.adapters.codex.server import AppServer
from agentstreamd.model import Draft, Kind
from agentstreamd.process import ProcessError, ProcessGone

_log = logging.getLogger(__name__)


class _State(msgspec.Struct, omit_defaults=True):
    """What is kept between drivers.

    Attributes:
        conversation: A turn has begun: the thread is on disk and must not be begun anew.
        usual: Model and effort that the thread had before a message brought its own; None when it
            has them.
    """

    conversation: bool = False
    usual: tuple[str, str | None] | None = None


class CodexDriver(Driver, Listener):
    """Drives one session; see `Driver`. `spec` says which server, anew for each start."""

    def __init__(
        self,
        context: DriverContext,
        pool: Pool,
        spec: Callable[[], ServerSpec],
        limits: Limits,
    ) -> None:
        self._context = context
        self._pool = pool
        self._spec = spec
        self._limits = limits
        config = context.config
        self._settings = ThreadSettings(config, config.model, config.permission_mode)
        self._thread_id = context.native_session_id or config.resume_native_session_id
        self._given = bool(config.resume_native_session_id)
        self._state = _load(context.state)
        self._server: AppServer | None = None
        self._attachment: Attachment | None = None
        self._connecting: asyncio.Task[Attachment] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._model = ""
        self._effort: str | None = None
        self._planning = False
        self._begun = False

    # --- Driver --------------------------------------------------------------------------------

    async def send(self, prompt: Prompt) -> None:
        """See `Driver.send`."""
        try:
            check_model(prompt.model)
            check_effort(prompt.effort)
            method, params = self._request_of(prompt)
        except InvalidSetting as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_INVALID_REQUEST) from error
        except CapabilityNotSupported as error:
            raise AgentFailed(str(error), error_pb2.ERROR_CODE_INVALID_REQUEST) from error
        self._sending = sending = asyncio.get_running_loop().create_future()
        try:
            attachment = await self._ready()
            try:
                await self._begin_turn(attachment, method, params, prompt)
            except ProcessGone:  # between the turns, and nobody had noticed yet
                attachment = await self._ready()
                await self._begin_turn(attachment, method, params, prompt)
        except ProcessGone as error:
            message = f"Codex did not take the message: {error}"
            raise AgentFailed(message, error_pb2.ERROR_CODE_AGENT_EXITED) from error
        finally:
            sending.set_result(None)
            self._sending = None

    async def steer(self, prompt: Prompt) -> None:
        """See `Driver.steer`."""
        attachment = self._attachment
        if attachment is None or not await self._turn_runs(attachment):
            raise NotDelivered("No turn is running.")
        params = {
            "threadId": attachment.thread_id,
            "expectedTurnId": attachment.normalizer.turns.running,
            "clientUserMessageId": prompt.message_id,
            "input": answers.prompt_input(prompt),
        }
        try:
            await self._request(attachment, "turn/steer", params)
        except (AgentFailed, ProcessGone) as error:
            raise NotDelivered(f"Codex did not take the message: {error}") from error

    async def interrupt(self) -> None:
        """See `Driver.interrupt`.

        A turn that has not begun yet cannot be interrupted: it is waited for. A command that runs
        survives the interrupt, and is ended after it.
        """
        if self._sending is not None:
            await asyncio.shield(self._sending)
        attachment = self._attachment
        if attachment is None or not await self._turn_runs(attachment):
            return
        normalizer = attachment.normalizer
        turns = {attachment.thread_id: normalizer.turns.running, **normalizer.child_turns}
        for thread_id, turn_id in turns.items():
            params = {"threadId": thread_id, "turnId": turn_id}
            await self._try(attachment, "turn/interrupt", params)
        for thread_id in turns:
            await self._try(attachment, "thread/backgroundTerminals/clean", {"threadId": thread_id})

    async def answer(self, request_id: str, answer: Answer) -> None:
        """See `Driver.answer`."""
        attachment, server = self._attachment, self._server
        if attachment is None or server is None or not attachment.open:
            raise NotDelivered("Codex is not running any more.")
        request = attachment.normalizer.request(request_id)
        if request is None:
            raise NotDelivered("Codex does not wait for this answer any more.")
        line = answers.encode_answer(request, answer)
        attachment.normalizer.sent(line)
        try:
            await server.rpc.write(line)
        except ProcessGone as error:
            raise NotDelivered("Codex ended before it took the answer.") from error
        if _ends_turn(answer):
            # Not awaited: the end of the turn would cancel the request before the session has
            # written how it was answered.
            self._interrupting = asyncio.create_task(self.interrupt())

    async def update(
        self,
        *,
        model: str | None = None,
        permission_mode: agent_pb2.PermissionMode.ValueType | None = None,
    ) -> None:
        """See `Driver.update`. Takes effect with the next turn. Raises `InvalidSetting` too."""
        settings = ThreadSettings(self._context.config, self._settings.model, self._settings.mode)
        if model is not None:
            check_model(model)
            settings.model = model
        if permission_mode is not None:
            check_mode(permission_mode)
            settings.mode = permission_mode
        attachment = self._attachment
        if attachment is not None and attachment.open:
            params: dict[str, Any] = {"threadId": attachment.thread_id}
            if model:
                params["model"] = model
            if permission_mode is not None:
                params |= settings.policy_params()
            if settings.plans or self._planning:
                params["collaborationMode"] = settings.collaboration(*self._usual(settings))
            try:
                await self._request(attachment, "thread/settings/update", params)
            except ProcessGone:
                pass  # the next server starts with them
            else:
                self._planning = settings.plans
        self._settings = settings

    async def close(self, *, forget: bool = False) -> None:
        """See `Driver.close`.

        The server is shared, and stays for others. The thread stays on disk, also with `forget`:
        it is the user's, and can be resumed.
        """
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        attachment, server = self._attachment, self._server
        if attachment is None or server is None:
            return
        if attachment.open and attachment.turn_open:
            await self._stop_turn(attachment, server)
        if attachment.open:
            threads = [attachment.thread_id, *attachment.normalizer.threads.children]
            for thread_id in threads:
                params = {"threadId": thread_id}
                await self._try(attachment, "thread/backgroundTerminals/clean", params)
            await self._try(attachment, "thread/unsubscribe", {"threadId": attachment.thread_id})
        server.detach(attachment, AgentExit(expected=True, message="The session left Codex."))
        await attachment.drained()

    # --- Listener ------------------------------------------------------------------------------

    async def on_drafts(self, drafts: Sequence[Draft]) -> None:
        """See `Listener.on_drafts`."""
        for draft in drafts:
            if draft.kind is Kind.SESSION_UPDATED and self._state.usual is None:
                self._model = draft.event.session_updated.model or self._model
        await self._context.sink.publish(drafts)

    def on_unsupported(self, request: Unsupported) -> None:
        """See `Listener.on_unsupported`."""
        if self._server is not None:
            why = f"agentstream does not support {request.method}"
            self._server.refuse(request.native_id, why)

    def on_exit(self, exit: AgentExit) -> None:
        """See `Listener.on_exit`."""
        server, self._server, self._attachment = self._server, None, None
        self._planning = False
        if server is not None:
            self._pool.release(server)
        if self._begun:
            self._begun = False
            self._context.sink.exited(exit)

    # --- turns ---------------------------------------------------------------------------------

    def _request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        if prompt.command:
            return command_request(prompt)
        params = {
            "clientUserMessageId": prompt.message_id,
            "input": answers.prompt_input(prompt),
        }
        return "turn/start", params

    async def _begin_turn(
        self, attachment: Attachment, method: str, params: dict[str, Any], prompt: Prompt
    ) -> None:
        attachment.turn_open = True
        params = params | self._choice(prompt)
        try:
            await self._request(attachment, method, {"threadId": attachment.thread_id, **params})
        except BaseException as error:
            attachment.turn_open = False
            if isinstance(error, TimedOut) and self._server is not None:
                await self._server.probe()
            raise
        self._keep(conversation=True)
        if not (prompt.model or prompt.effort):
            self._keep(usual=None)

    async def _turn_runs(self, attachment: Attachment) -> bool:
        """Wait until a turn that was asked for has begun; False where none runs."""
        while attachment.open and attachment.turn_open and not attachment.normalizer.turns.running:
            await attachment.turn_change()
        return attachment.open and bool(attachment.normalizer.turns.running)

    async def _stop_turn(self, attachment: Attachment, server: AppServer) -> None:
        """End the running turn; a server that does not do so even in a second time is ended."""
        for attempt in ("first", "second"):
            try:
                async with asyncio.timeout(self._limits.interrupt_seconds):
                    await self.interrupt()
                    while attachment.open and attachment.turn_open:
                        await attachment.turn_change()
                    return
            except TimeoutError:
                _log.warning("%s: no end of the turn (%s)", self._context.session_id, attempt)
                # It may have much to do for others. What hangs for all must go, though.
                await server.probe()
        server.fail("a turn could not be interrupted in time")

    async def _request(self, attachment: Attachment, method: str, params: dict[str, Any]) -> None:
        """Make a request about the thread. Raises what `Rpc.request` raises."""
        server = self._server
        if server is None or not attachment.open:
            raise ProcessGone("Codex's server has ended.")
        await server.rpc.request(
            method, params, on_line=_sent(attachment), on_response=attachment.put
        )

    async def _try(self, attachment: Attachment, method: str, params: dict[str, Any]) -> None:
        """Make a request that may be refused: what it is about may be over."""
        try:
            await self._request(attachment, method, params)
        except TimedOut as error:
            if self._server is not None:
                self._server.fail(str(error))
        except (AgentFailed, ProcessGone) as error:
            _log.info("session %s: %s: %s", self._context.session_id, method, error)

    # --- the thread ----------------------------------------------------------------------------

    async def _ready(self) -> Attachment:
        """The session's place on a running server. Raises AgentFailed."""
        attachment, server = self._attachment, self._server
        if attachment is not None and server is not None:
            if attachment.open and server.alive:
                return attachment
            await attachment.drained()  # its last events come before those of the next
        self._connecting = asyncio.create_task(self._connect())
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if not self._connecting.cancelled():
                self._connecting.cancel()
                raise
            raise AgentFailed(
                "The session was closed while Codex started.",
                error_pb2.ERROR_CODE_AGENT_START_FAILED,
            ) from None
        finally:
            self._connecting = None

    def _choice(self, prompt: Prompt) -> dict[str, Any]:
        """Model and effort of a turn, where they are not what the thread has.

        Those that come with a turn stay with the thread, hence the next one brings back the usual.
        """
        if not prompt.model and not prompt.effort and self._state.usual is None:
            return {}
        usual = self._usual(self._settings)
        self._keep(usual=usual)  # now: whatever becomes of the request, Codex may have taken it
        model, effort = prompt.model or usual[0], prompt.effort or usual[1]
        if effort and not self._settings.plans:
            return {"model": model, "effort": effort}
        # Only so can an effort be taken back where the usual one is the model's own, and only so is
        # it changed while Codex plans.
        return {"collaborationMode": self._settings.collaboration(model, effort)}

    def _usual(self, settings: ThreadSettings) -> tuple[str, str | None]:
        """Model and effort of turns whose message brings none; None for the model's own effort."""
        model, effort = self._state.usual or (self._model, self._effort)
        return settings.model or model, settings.config.effort or effort

    def _keep(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self._state, **changes)
        if changed != self._state:
            self._state = changed
            self._context.sink.save_state(msgspec.json.encode(changed))

    async def _connect(self) -> Attachment:
        try:
            server = await self._pool.acquire(self._spec())
        except (AgentUnavailable, ProcessError, OSError, ValueError) as error:
            message = f"Codex could not be started: {error}"
            raise AgentFailed(message, error_pb2.ERROR_CODE_AGENT_START_FAILED) from error
        normalizer = CodexNormalizer(self._thread_id)
        attachment = Attachment(normalizer, self, self._limits)
        self._server, self._attachment = server, attachment
        server.words.used_by(self._context.session_uid)
        try:
            await self._begin_thread(server, attachment)
            self._thread_id = attachment.thread_id
            if self._settings.plans:
                params = {
                    "threadId": attachment.thread_id,
                    "collaborationMode": self._settings.collaboration(*self._usual(self._settings)),
                }
                await self._request(attachment, "thread/settings/update", params)
                self._planning = True
        except BaseException as error:
            # Told by the error alone: for the stream this process was never there.
            server.detach(attachment, AgentExit(expected=True))
            with contextlib.suppress(asyncio.CancelledError):
                await attachment.drained()
            if isinstance(error, Refused) and error.code == error_pb2.ERROR_CODE_AGENT_INTERNAL:
                error.code = error_pb2.ERROR_CODE_AGENT_START_FAILED
            raise
        self._begun = True
        return attachment

    async def _begin_thread(self, server: AppServer, attachment: Attachment) -> None:
        params = self._settings.thread_params()
        on_line = _sent(attachment)
        if self._thread_id:
            resume = {"threadId": self._thread_id, "excludeTurns": True, **params}
            try:
                answer = await server.begin(attachment, "thread/resume", resume, on_line)
            except Refused as error:
                lost = error.code == error_pb2.ERROR_CODE_SESSION_NOT_FOUND
                if not lost or self._given or self._state.conversation:
                    raise
                # Begun, but nothing was ever said in it: Codex does not keep such a thread.
                attachment.normalizer.threads.root = ""
                answer = await server.begin(attachment, "thread/start", params, on_line)
        else:
            answer = await server.begin(attachment, "thread/start", params, on_line)
        attachment.normalizer.threads.root = answer.thread_id
        self._model = text_in(answer.result, "model") or self._model
        self._effort = text_in(answer.result, "reasoningEffort") or None


def _sent(attachment: Attachment) -> Callable[[bytes], None]:
    def on_line(line: bytes) -> None:
        attachment.normalizer.sent(line)

    return on_line


def _ends_turn(answer: Answer) -> bool:
    match answer:
        case interaction_pb2.PermissionAnswer():
            return answer.interrupt
        case interaction_pb2.QuestionAnswer():
            return answer.rejected.interrupt
        case _:
            return False


def _load(saved: bytes) -> _State:
    try:
        return msgspec.json.decode(saved, type=_State) if saved else _State()
    except msgspec.MsgspecError:
        return _State()
