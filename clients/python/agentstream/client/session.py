"""Short calls for one session, for both clients."""

import uuid
from typing import TYPE_CHECKING

from agentstream.client.errors import typed_errors
from agentstream.v1 import event_pb2, interaction_pb2, service_pb2, session_pb2

if TYPE_CHECKING:
    from agentstream.client.aio import AsyncClient, AsyncEventStream
    from agentstream.client.sync import Client, EventStream

Answer = (
    interaction_pb2.PermissionAnswer | interaction_pb2.QuestionAnswer | interaction_pb2.FormAnswer
)
"""An answer to a request, of the request's kind."""


class Session:
    """A session of the daemon, made by `Client.create` or `Client.session`.

    Its calls raise `AgentstreamError`.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, client: "Client", session_id: str) -> None:
        self.session_id = session_id
        self._client = client

    def get(self) -> session_pb2.Session:
        """The session as it is now."""
        request = service_pb2.GetSessionRequest(session_id=self.session_id)
        with typed_errors():
            return self._client.stub.GetSession(request).session

    def follow(self, after: int = 0) -> "EventStream":
        """Its events after a sequence, until it ends, across cuts and restarts."""
        return self._client.follow(self.session_id, after)

    def send(self, text: str, *, client_message_id: str = "") -> service_pb2.SendMessageResponse:
        """Send text. The message gets an id, where it is given none, so that it is sent once."""
        with typed_errors():
            return self._client.stub.SendMessage(_message(self.session_id, text, client_message_id))

    def respond(self, request_id: str, answer: Answer) -> service_pb2.RespondResponse:
        """Answer a request; returns when the answer is with the agent."""
        with typed_errors():
            return self._client.stub.Respond(_response(self.session_id, request_id, answer))

    def interrupt(self) -> event_pb2.TurnStatus.ValueType:
        """Stop the running turn; returns how it ended, when it has."""
        request = service_pb2.InterruptTurnRequest(session_id=self.session_id)
        with typed_errors():
            return self._client.stub.InterruptTurn(request).status

    def end(self) -> None:
        """End the session and stop its agent; its events can still be read."""
        with typed_errors():
            self._client.stub.EndSession(service_pb2.EndSessionRequest(session_id=self.session_id))


class AsyncSession:
    """The same as `Session`, for asyncio.

    Attributes:
        session_id: The session's id.
    """

    def __init__(self, client: "AsyncClient", session_id: str) -> None:
        self.session_id = session_id
        self._client = client

    async def get(self) -> session_pb2.Session:
        """See `Session.get`."""
        request = service_pb2.GetSessionRequest(session_id=self.session_id)
        with typed_errors():
            return (await self._client.stub.GetSession(request)).session

    def follow(self, after: int = 0) -> "AsyncEventStream":
        """See `Session.follow`."""
        return self._client.follow(self.session_id, after)

    async def send(
        self, text: str, *, client_message_id: str = ""
    ) -> service_pb2.SendMessageResponse:
        """See `Session.send`."""
        message = _message(self.session_id, text, client_message_id)
        with typed_errors():
            return await self._client.stub.SendMessage(message)

    async def respond(self, request_id: str, answer: Answer) -> service_pb2.RespondResponse:
        """See `Session.respond`."""
        with typed_errors():
            return await self._client.stub.Respond(_response(self.session_id, request_id, answer))

    async def interrupt(self) -> event_pb2.TurnStatus.ValueType:
        """See `Session.interrupt`."""
        request = service_pb2.InterruptTurnRequest(session_id=self.session_id)
        with typed_errors():
            return (await self._client.stub.InterruptTurn(request)).status

    async def end(self) -> None:
        """See `Session.end`."""
        request = service_pb2.EndSessionRequest(session_id=self.session_id)
        with typed_errors():
            await self._client.stub.EndSession(request)


def creation(
    config: session_pb2.SessionConfig, session_id: str
) -> service_pb2.CreateSessionRequest:
    """A request to create a session; an id, made up where none is given, lets it be repeated."""
    return service_pb2.CreateSessionRequest(
        session_id=session_id or uuid.uuid4().hex, config=config
    )


def _message(session_id: str, text: str, client_message_id: str) -> service_pb2.SendMessageRequest:
    return service_pb2.SendMessageRequest(
        session_id=session_id,
        client_message_id=client_message_id or uuid.uuid4().hex,
        parts=[service_pb2.InputPart(text=text)],
    )


def _response(session_id: str, request_id: str, answer: Answer) -> service_pb2.RespondRequest:
    request = service_pb2.RespondRequest(session_id=session_id, request_id=request_id)
    match answer:
        case interaction_pb2.PermissionAnswer():
            request.permission.CopyFrom(answer)
        case interaction_pb2.QuestionAnswer():
            request.question.CopyFrom(answer)
        case interaction_pb2.FormAnswer():
            request.form.CopyFrom(answer)
    return request
