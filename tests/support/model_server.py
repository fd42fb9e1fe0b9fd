"""What every scripted model server needs, whatever its dialect.

A test says in advance what the model answers (`ModelServer.script`), runs a real agent against the
server, and reads what the agent asked (`ModelServer.requests`). Nothing is left to timing: a `Gate`
holds a stream exactly where the test wants it.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

Json = dict[str, Any]

DEADLINE = 60.0
"""Seconds after which waiting for an agent is given up, so that a broken test ends."""


class Gate:
    """Holds a stream until the test opens it; one place in one reply.

    `await gate.reached()` returns when a stream has come to the gate: everything before it has
    been sent, nothing after it.
    """

    def __init__(self, name: str = "gate") -> None:
        self._name = name
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    def open(self) -> None:
        """Let the stream go on. Idempotent; may come before the stream gets here."""
        self._open.set()

    async def reached(self) -> None:
        """Wait until a stream is held here."""
        try:
            await asyncio.wait_for(self._reached.wait(), DEADLINE)
        except TimeoutError:
            raise TimeoutError(f"no stream came to {self._name!r} in {DEADLINE:.0f} s") from None

    async def hold(self) -> None:
        """The stream's side: report being here and wait."""
        self._reached.set()
        await self._open.wait()


@dataclass(frozen=True)
class Cut:
    """Drops the TCP connection here."""


@dataclass(frozen=True)
class Hang:
    """Says nothing more, and keeps the connection open until the agent closes it."""


Flow = Gate | Cut | Hang
"""What can stand in a reply between the pieces of an answer."""


class ConnectionCut(Exception):
    """Raised by `flow` at a `Cut`."""


async def flow(step: Flow) -> None:
    """Do what `step` says. Raises ConnectionCut."""
    match step:
        case Gate():
            await step.hold()
        case Hang():
            await asyncio.Event().wait()
        case Cut():
            raise ConnectionCut


@dataclass
class ModelRequest:
    """A request for an answer, as the agent made it."""

    number: int
    """Counts from 0 in order of arrival."""
    body: Json
    headers: dict[str, str]
    outcome: str = "open"
    """open, answered, cut (by the script), dropped (by the agent before the end), unexpected."""
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


class Reply(Protocol):
    """What a script consists of. `when` None matches every request; `repeat` is never used up."""

    @property
    def when(self) -> Callable[[Any], bool] | None: ...
    @property
    def repeat(self) -> bool: ...


RequestT = TypeVar("RequestT", bound=ModelRequest)
ReplyT = TypeVar("ReplyT", bound=Reply)


class ModelServer(ABC, Generic[RequestT, ReplyT]):
    """An HTTP server on loopback that answers from a script. Use as an async context manager.

    A request takes the first reply of the script, in order, whose `when` accepts it. One that
    finds none is answered by an error that says so, and noted in `errors`.
    """

    def __init__(self) -> None:
        self.requests: list[RequestT] = []
        """Every request for an answer, in order of arrival."""
        self.errors: list[str] = []
        """What the script did not foresee."""
        self._script: list[ReplyT] = []
        self._arrival = asyncio.Condition()
        self._refusing = False
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        """Base URL; the port stays the same until the server is left."""
        return f"http://127.0.0.1:{self._port}"

    def script(self, *replies: ReplyT) -> None:
        """Add replies to the end of the script."""
        self._script += replies

    @property
    def unused(self) -> list[ReplyT]:
        """Replies nobody has asked for yet (repeating ones are not counted)."""
        return [reply for reply in self._script if not reply.repeat]

    def check(self) -> None:
        """Raise AssertionError if a request was not foreseen or a reply was not used."""
        problems = [*self.errors, *(f"reply not used: {reply}" for reply in self.unused)]
        assert not problems, "the script and the agent disagree:\n" + "\n".join(problems)

    def forget_script(self) -> None:
        """Drop the replies that are left: for tests whose agent is stopped before it uses them."""
        self._script.clear()

    def encode(self, data: Json) -> bytes:
        """What goes out for one event of an answer's stream; here the bench puts times in."""
        return json.dumps(data, ensure_ascii=False).encode()

    async def request(self, number: int) -> RequestT:
        """Wait for the request with that number (from 0)."""
        async with self._arrival:
            try:
                await asyncio.wait_for(
                    self._arrival.wait_for(lambda: len(self.requests) > number), DEADLINE
                )
            except TimeoutError:
                raise TimeoutError(f"only {len(self.requests)} requests came") from None
        return self.requests[number]

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Refuse connections while in this block, as if no server ran. Open streams go on."""
        assert self._site is not None
        self._refusing = True
        await self._site.stop()
        try:
            yield
        finally:
            self._refusing = False
            await self._listen()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._hide_while_refusing])
        app.add_routes(self.routes())
        # Cancellation is how a held stream ends when the agent goes away.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0
        )
        await self._runner.setup()
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @abstractmethod
    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The endpoints of the dialect."""

    async def note(self, request: RequestT) -> ReplyT | None:
        """Record `request` and take its reply from the script."""
        async with self._arrival:
            self.requests.append(request)
            self._arrival.notify_all()
        for index, reply in enumerate(self._script):
            if reply.when is None or reply.when(request):
                return reply if reply.repeat else self._script.pop(index)
        request.outcome = "unexpected"
        return None

    @asynccontextmanager
    async def answering(self, http: web.Request, request: RequestT) -> AsyncIterator[None]:
        """Surrounds the answer to `request`: settles its outcome, ends the connection at a cut."""
        try:
            yield
            if request.outcome == "open":
                request.outcome = "answered"
        except ConnectionCut:
            request.outcome = "cut"
            if http.transport is not None:
                http.transport.close()  # abort() could take back what has been sent
        except (asyncio.CancelledError, ConnectionResetError):
            request.outcome = "dropped"
            raise
        finally:
            request.ended.set()

    async def _listen(self) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[-1][1]

    @web.middleware
    async def _hide_while_refusing(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        if self._refusing and request.transport is not None:  # a connection kept from before
            request.transport.abort()
        return await handler(request)
