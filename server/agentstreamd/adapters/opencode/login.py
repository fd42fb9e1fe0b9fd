"""Which providers OpenCode has credentials for, by the models that it offers."""

from collections.abc import Iterable

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.login import logged_in, logged_out

_ITS_OWN = "opencode"
"""The provider that offers free models to everybody."""

_SHOWN = 5
_FIX = (
    "run `opencode auth login` as the daemon's user, or set the key of a provider (such as "
    "ANTHROPIC_API_KEY) for the daemon"
)


def read(models: Iterable[str]) -> agent_pb2.AgentLogin:
    """The state that the offered models (`provider/model`) tell of."""
    providers = list(dict.fromkeys(model.partition("/")[0] for model in models))
    theirs = [provider for provider in providers if provider != _ITS_OWN]
    if theirs:
        shown = ", ".join(theirs[:_SHOWN]) + (" and others" if len(theirs) > _SHOWN else "")
        return logged_in(shown)
    free = "only the free models of OpenCode itself can be used: " if providers else ""
    return logged_out(free + _FIX)
