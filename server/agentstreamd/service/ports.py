"""What the service needs of the layers below it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from agentstream.v1 import agent_pb2, blob_pb2, service_pb2, session_pb2
from agentstreamd.events.log import EventLog


class Sessions(Protocol):
    """The session manager as the service sees it. Its methods raise `SessionError`."""

    @property
    def log(self) -> EventLog:
        """The log that the sessions' events are in."""

    async def create(self, request: service_pb2.CreateSessionRequest) -> session_pb2.Session:
        """Create a session, or give the one that the same call created before."""

    async def get(self, session_id: str) -> session_pb2.Session:
        """Give a session as it is now."""

    async def list(
        self, request: service_pb2.ListSessionsRequest
    ) -> service_pb2.ListSessionsResponse:
        """Give a page of sessions."""

    async def send(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        """Accept a message."""

    async def update(self, request: service_pb2.UpdateSessionRequest) -> session_pb2.Session:
        """Change settings."""

    async def interrupt(
        self, request: service_pb2.InterruptTurnRequest
    ) -> service_pb2.InterruptTurnResponse:
        """Stop a turn; returns when it has ended."""

    async def end(self, session_id: str) -> session_pb2.Session:
        """End a session."""

    async def delete(self, session_id: str) -> None:
        """End a session and forget its events."""

    async def respond(self, request: service_pb2.RespondRequest) -> service_pb2.RespondResponse:
        """Deliver an answer."""

    async def blob(self, session_id: str, blob_id: str) -> blob_pb2.BlobRef:
        """Say what a blob is."""

    def following(self, session_id: str) -> AbstractContextManager[object]:
        """Count a follower of the session while the context is open."""

    async def list_agents(
        self, request: service_pb2.ListAgentsRequest
    ) -> service_pb2.ListAgentsResponse:
        """Give a page of agents."""

    async def get_agent(self, name: str, *, include_login: bool = False) -> agent_pb2.Agent:
        """Describe an agent, and find out whether it is logged in where asked."""


class CallWatch(Protocol):
    """Watches one call, from its begin on."""

    @property
    def fields(self) -> Mapping[str, str]:
        """What a line in the log says of it."""

    def opened(self) -> None:
        """The first response of a stream was sent."""

    def ended(self, code: str, reason: str | None) -> None:
        """The call has ended with a status, and the reason of a failure."""


class WatchCall(Protocol):
    """Gives who watches a call, by its path, metadata and request id; None for nobody."""

    def __call__(
        self, path: str, metadata: tuple[tuple[str, str | bytes], ...], request_id: str, /
    ) -> CallWatch | None:
        """Begin to watch a call."""
