"""The agents of a daemon, and what their adapters refuse."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentstream.v1 import agent_pb2, error_pb2, service_pb2, session_pb2
from agentstreamd.adapters.base import (
    Adapter,
    AdapterError,
    AgentUnavailable,
    CapabilityNotSupported,
    InvalidSetting,
)
from agentstreamd.redaction import redacted
from agentstreamd.sessions import errors
from agentstreamd.sessions.paging import invalid_page_token, page_size


@contextmanager
def adapter_errors(agent: str) -> Iterator[None]:
    """Turns what an adapter raises into what a caller gets."""
    try:
        yield
    except InvalidSetting as error:
        raise errors.invalid((f"config.{error.field}", str(error))) from error
    except CapabilityNotSupported as error:
        raise errors.not_supported(agent, error.capability, str(error)) from error
    except AgentUnavailable as error:
        raise errors.agent_unavailable(agent, str(error)) from error
    except AdapterError as error:
        raise errors.agent_not_responding(agent, str(error)) from error


class Agents:
    """The adapters by name."""

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        """Serve these adapters."""
        self._adapters = dict(sorted(adapters.items()))

    def adapter(self, name: str) -> Adapter:
        """The adapter of an agent. Raises AGENT_NOT_FOUND."""
        found = self._adapters.get(name)
        if found is None:
            raise errors.SessionError(
                error_pb2.ERROR_REASON_AGENT_NOT_FOUND,
                f"there is no agent {name!r}; there are {', '.join(self._adapters)}",
                {"agent": name},
            )
        return found

    async def describe(self, name: str, *, include_login: bool = False) -> agent_pb2.Agent:
        """An agent as it is now. Raises AGENT_NOT_FOUND."""
        adapter = self.adapter(name)
        with adapter_errors(name):
            agent = await adapter.describe()
        if not include_login or agent.state != agent_pb2.AGENT_STATE_AVAILABLE:
            return agent
        try:
            login = await adapter.login()
        except AdapterError as error:
            login = agent_pb2.AgentLogin(detail=redacted(str(error)))
        described = agent_pb2.Agent(login=login)
        described.MergeFrom(agent)
        return described

    async def usable(self, config: session_pb2.SessionConfig) -> agent_pb2.Agent:
        """The agent, if a session can be made with these settings."""
        adapter = self.adapter(config.agent)
        with adapter_errors(config.agent):
            adapter.check(config)
            agent = await adapter.describe()
        if agent.state != agent_pb2.AGENT_STATE_AVAILABLE:
            raise errors.agent_unavailable(config.agent, agent.unavailable_reason)
        return agent

    async def list(self, request: service_pb2.ListAgentsRequest) -> service_pb2.ListAgentsResponse:
        """The agents by name, a page at a time; the token is the last name of the page before."""
        size = page_size(request.page_size)
        if request.page_token and request.page_token not in self._adapters:
            raise invalid_page_token()
        names = [name for name in self._adapters if name > request.page_token]
        response = service_pb2.ListAgentsResponse()
        for name in names[:size]:
            response.agents.append(await self.describe(name))
        if len(names) > size:
            response.next_page_token = names[size - 1]
        return response
