"""What a caller may do: scopes, for all sessions or for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import message, message_factory

from agentstream.v1 import error_pb2, service_pb2

from .errors import CallError

ALL = "admin"
_SESSION = "session:"
_SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]

SCOPES = {
    "read": ("ListAgents", "GetAgent", "ListSessions", "GetSession", "StreamEvents", "ReadBlob"),
    "respond": ("Respond",),
    "run": ("CreateSession", "SendMessage", "InterruptTurn", "UpdateSession", "EndSession"),
    ALL: ("DeleteSession",),
}
"""The calls that each scope allows; `admin` allows those of all others, too."""

_SCOPE_OF = {f"/{_SERVICE.full_name}/{m}": scope for scope, ms in SCOPES.items() for m in ms}
# What a grant for one session may call although it names none: it tells nothing of others.
_OF_NO_SESSION = frozenset({"ListAgents", "GetAgent"})


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token or a client's certificate allows.

    Attributes:
        scopes: Keys of `SCOPES`.
        session_id: The one session it is for; empty for all.
    """

    scopes: frozenset[str] = frozenset({ALL})
    session_id: str = ""

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Grant":
        """Read scopes and `session:ID`; no scope for all. Raises ValueError, a phrase."""
        sessions = [word.removeprefix(_SESSION) for word in words if word.startswith(_SESSION)]
        scopes = frozenset(word for word in words if not word.startswith(_SESSION))
        if not scopes <= SCOPES.keys():
            known = ", ".join((*SCOPES, f"{_SESSION}ID"))
            raise ValueError(f"has a scope that there is not; there are {known}")
        if len(sessions) > 1 or "" in sessions:
            raise ValueError(f"may have one {_SESSION}ID")
        return cls(scopes or frozenset({ALL}), "".join(sessions))

    def check(self, path: str, request: Any, what: str = "token") -> None:
        """Raise PERMISSION_DENIED unless a call with this request, serialized, is allowed.

        Calls of other services, such as reflection, need no scope. `what` says whose grant it is.
        """
        scope = _SCOPE_OF.get(path)
        if scope is None:
            return
        if not self.scopes & {scope, ALL}:
            raise missing(scope, f"the {what} has not the scope {scope!r}, which this call needs")
        method = path.rpartition("/")[2]
        if not self.session_id or method in _OF_NO_SESSION:
            return
        if _session_in(method, request) != self.session_id:
            raise missing("session", f"the {what} is for another session")


def missing(scope: str, text: str) -> CallError:
    """A call that the caller's scopes do not allow."""
    return CallError(error_pb2.ERROR_REASON_SCOPE_MISSING, text, {"scope": scope})


def _session_in(method: str, request: Any) -> str:
    """The session that a request names; empty where it names none, or can't be read."""
    made: Any = message_factory.GetMessageClass(_SERVICE.methods_by_name[method].input_type)()
    try:
        made.ParseFromString(request)
    except (message.DecodeError, TypeError):
        return ""
    return str(getattr(made, "session_id", ""))
