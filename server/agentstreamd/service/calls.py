"""The unary calls: each is one call of the session manager."""

from agentstream.v1 import service_pb2 as pb

from .ports import Sessions


class Calls:
    """The unary calls of `AgentService`, named as in the contract. Requests are checked already."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def list_agents(self, request: pb.ListAgentsRequest) -> pb.ListAgentsResponse:
        """ListAgents."""
        return await self._sessions.list_agents(request)

    async def get_agent(self, request: pb.GetAgentRequest) -> pb.GetAgentResponse:
        """GetAgent."""
        agent = await self._sessions.get_agent(request.name, include_login=request.include_login)
        return pb.GetAgentResponse(agent=agent)

    async def create_session(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        """CreateSession."""
        return pb.CreateSessionResponse(session=await self._sessions.create(request))

    async def get_session(self, request: pb.GetSessionRequest) -> pb.GetSessionResponse:
        """GetSession."""
        return pb.GetSessionResponse(session=await self._sessions.get(request.session_id))

    async def list_sessions(self, request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        """ListSessions."""
        return await self._sessions.list(request)

    async def send_message(self, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """SendMessage."""
        return await self._sessions.send(request)

    async def update_session(self, request: pb.UpdateSessionRequest) -> pb.UpdateSessionResponse:
        """UpdateSession."""
        return pb.UpdateSessionResponse(session=await self._sessions.update(request))

    async def interrupt_turn(self, request: pb.InterruptTurnRequest) -> pb.InterruptTurnResponse:
        """InterruptTurn."""
        return await self._sessions.interrupt(request)

    async def end_session(self, request: pb.EndSessionRequest) -> pb.EndSessionResponse:
        """EndSession."""
        return pb.EndSessionResponse(session=await self._sessions.end(request.session_id))

    async def delete_session(self, request: pb.DeleteSessionRequest) -> pb.DeleteSessionResponse:
        """DeleteSession."""
        await self._sessions.delete(request.session_id)
        return pb.DeleteSessionResponse()

    async def respond(self, request: pb.RespondRequest) -> pb.RespondResponse:
        """Respond."""
        return await self._sessions.respond(request)
