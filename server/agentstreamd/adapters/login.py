"""Whether an agent is logged in, in the words that all adapters use."""

from agentstream.v1 import agent_pb2


def logged_in(detail: str) -> agent_pb2.AgentLogin:
    """It has credentials, or needs none; `detail` says which."""
    return agent_pb2.AgentLogin(state=agent_pb2.LOGIN_STATE_LOGGED_IN, detail=detail)


def logged_out(what_to_do: str) -> agent_pb2.AgentLogin:
    """It has none."""
    return agent_pb2.AgentLogin(state=agent_pb2.LOGIN_STATE_LOGGED_OUT, detail=what_to_do)


def unknown(why: str) -> agent_pb2.AgentLogin:
    """It can't be told."""
    return agent_pb2.AgentLogin(state=agent_pb2.LOGIN_STATE_UNSPECIFIED, detail=why)
