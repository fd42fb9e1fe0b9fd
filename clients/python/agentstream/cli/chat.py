"""The interactive chat: one prompt line, shared between the person's messages and the agent's
requests, with the session drawn above it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from prompt_toolkit.patch_stdout import patch_stdout

from agentstream.cli import exits
from agentstream.cli.answering import Answerer
from agentstream.cli.context import Context
from agentstream.cli.conversation import Conversation
from agentstream.cli.display import Display
from agentstream.cli.options import PERMISSION_MODES, image_part
from agentstream.cli.prompts import Answer, Request
from agentstream.cli.render import USER_MARK
from agentstream.cli.stopping import Stopper
from agentstream.cli.summary import usage_text
from agentstream.cli.terminal import Declined, Interrupted, Terminal
from agentstream.client import AgentstreamError, AsyncClient, typed_errors
from agentstream.v1 import event_pb2, service_pb2, session_pb2

HELP: Final = f"""\
/help                 this list
/model NAME           change the model
/permissions MODE     change the permission mode: {", ".join(PERMISSION_MODES)}
/title TEXT           name the session
/image FILE           send an image with the next message
/do COMMAND           send a command of the agent's own, as in /do /compact
/usage                what the session has used
/end                  end the session and leave
/quit, Ctrl-D         leave; the session stays
//...                 a message that begins with a slash"""


class Chat:
    """One chat, from the first prompt to leaving."""

    def __init__(
        self, client: AsyncClient, session_id: str, context: Context, answerer: Answerer
    ) -> None:
        self._client = client
        self._context = context
        self._session_id = session_id
        self._terminal = Terminal()
        self._display = Display(context)
        self._line = _SharedLine(self._terminal, answerer)
        self._stopper = Stopper(lambda: self._conversation.interrupt(), context.notice)
        self._conversation = Conversation(
            client,
            session_id,
            show=self._show,
            notice=context.notice,
            answerer=self._line,
            on_interrupt=self._stopper.press,
        )
        self._images: list[service_pb2.InputPart] = []
        self._leave = False
        self._idle = False
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/model": self._model,
            "/permissions": self._permissions,
            "/title": self._title,
            "/image": self._image,
            "/do": self._do,
            "/usage": self._usage,
            "/end": self._end,
            "/quit": self._quit,
            "/exit": self._quit,
        }

    async def run(self, after: int) -> int:
        """Chat until the person leaves or the session ends; returns the exit code."""
        await self._conversation.start(after)
        try:
            while not self._leave:
                text = await self._next_line()
                if text is None:
                    break
                with self._reported():
                    await self._take(text)
                if self._stopper.quit.is_set():
                    self._say_goodbye()
                    return exits.INTERRUPTED
        except Interrupted:
            self._say_goodbye()
            return exits.INTERRUPTED
        finally:
            await self._conversation.close()
            self._display.finish()
        self._say_goodbye()
        return exits.OK

    def _show(self, event: event_pb2.Event) -> None:
        self._display.show(event)
        if self._idle:
            self._display.finish()

    def _say_goodbye(self) -> None:
        if not self._conversation.ended.is_set():
            self._context.notice(
                f"The session stays: `agentstream chat --session {self._session_id}` goes on, "
                f"`agentstream end {self._session_id}` ends it."
            )

    async def _next_line(self) -> str | None:
        """The next line that is typed; None when there is no more. Raises Interrupted."""
        interrupted = False
        while True:
            self._display.finish()
            self._idle = True
            try:
                line = await self._line_or_end()
            except Declined:
                return None
            except Interrupted:
                if interrupted:
                    raise
                interrupted = True
                self._context.notice("Ctrl-C once more, or Ctrl-D, leaves.")
                continue
            finally:
                self._idle = False
            if line is None or line.strip():
                return line

    async def _line_or_end(self) -> str | None:
        with patch_stdout(raw=True):
            typing = asyncio.create_task(self._line.message())
            over = asyncio.create_task(self._conversation.wait_ended())
            try:
                await asyncio.wait([typing, over], return_when=asyncio.FIRST_COMPLETED)
                if typing.done():
                    return typing.result()
                over.result()
                return None
            finally:
                over.cancel()
                typing.cancel()
                await asyncio.gather(typing, over, return_exceptions=True)

    async def _take(self, text: str) -> None:
        word, _, rest = text.strip().partition(" ")
        if word in self._commands:
            await self._commands[word](rest.strip())
        elif word.startswith("/") and not word.startswith("//"):
            self._context.notice(f"There is no command {word}; /help lists them.")
        else:
            await self._send(text.removeprefix("/") if word.startswith("//") else text)

    async def _send(self, text: str, *, command: bool = False) -> None:
        images, self._images = ([], self._images) if command else (self._images, [])
        self._stopper.begin()
        with self._stopper.on_signal():
            turn = await self._conversation.send(
                [service_pb2.InputPart(text=text), *images], command=command, queue=True
            )
            work = asyncio.create_task(self._conversation.wait(turn))
            quitting = asyncio.create_task(self._stopper.quit.wait())
            await asyncio.wait([work, quitting], return_when=asyncio.FIRST_COMPLETED)
            quitting.cancel()
            if work.done():
                work.result()
            work.cancel()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """What is refused is said, and the chat goes on."""
        try:
            yield
        except AgentstreamError as error:
            self._context.notice(str(exits.cli_error(error, self._context.address)))
        except exits.CliError as error:
            self._context.notice(str(error))

    async def _update(self, config: session_pb2.SessionConfig, field: str) -> None:
        request = service_pb2.UpdateSessionRequest(session_id=self._session_id, config=config)
        request.update_mask.paths.append(field)
        with typed_errors():
            await self._client.stub.UpdateSession(request)

    async def _help(self, _: str) -> None:
        self._context.out.print(HELP)

    async def _model(self, name: str) -> None:
        await self._update(session_pb2.SessionConfig(model=name), "model")

    async def _permissions(self, name: str) -> None:
        mode = PERMISSION_MODES.get(name)
        if mode is None:
            raise exits.usage_error(f"The permission modes are {', '.join(PERMISSION_MODES)}.")
        await self._update(session_pb2.SessionConfig(permission_mode=mode), "permission_mode")

    async def _title(self, text: str) -> None:
        await self._update(session_pb2.SessionConfig(title=text), "title")

    async def _image(self, file: str) -> None:
        self._images.append(image_part(file))
        self._context.notice("The image goes with the next message.")

    async def _do(self, command: str) -> None:
        await self._send(command, command=True)

    async def _usage(self, _: str) -> None:
        with typed_errors():
            request = service_pb2.GetSessionRequest(session_id=self._session_id)
            session = (await self._client.stub.GetSession(request)).session
        self._context.out.print(usage_text(session.usage) or "Nothing is known of it.")

    async def _end(self, _: str) -> None:
        with typed_errors():
            request = service_pb2.EndSessionRequest(session_id=self._session_id)
            await self._client.stub.EndSession(request)
        await self._conversation.wait_ended()
        self._leave = True

    async def _quit(self, _: str) -> None:
        self._leave = True


class _SharedLine:
    """The one prompt line: a request takes it from the message that is being typed, which then
    goes on where it was.
    """

    def __init__(self, terminal: Terminal, answerer: Answerer) -> None:
        self._terminal = terminal
        self._answerer = answerer
        self._free = asyncio.Event()
        self._free.set()
        self._typing: asyncio.Task[str] | None = None

    async def message(self) -> str:
        """The next message. Raises Interrupted, Declined."""
        typed = ""
        while True:
            await self._free.wait()
            self._typing = asyncio.create_task(
                self._terminal.line(USER_MARK, default=typed, remember=True)
            )
            try:
                await asyncio.wait([self._typing])
            finally:
                self._typing.cancel()
            if not self._typing.cancelled():
                return self._typing.result()
            typed = self._terminal.typed

    async def ask(self, request: Request) -> Answer:
        """See `Answerer`."""
        self._free.clear()
        try:
            if self._typing is not None and not self._typing.done():
                self._typing.cancel()
                await asyncio.wait([self._typing])
            return await self._answerer.ask(request)
        finally:
            self._free.set()
