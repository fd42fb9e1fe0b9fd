"""A server whose calls fail with the reason that they name: what no daemon does when it is told to.

It is the daemon's service over sessions that only fail, so statuses and details are the daemon's.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentstream.v1 import error_pb2, session_pb2
from agentstreamd.sessions.errors import SessionError
from tests.support.grpc_edge import running
from tests.support.sessions import fake_sessions

METADATA = {
    "EVENTS_COMPACTED": {"earliest_sequence": "7"},
    "CAPABILITY_NOT_SUPPORTED": {"capability": "steer"},
}


@asynccontextmanager
async def faulty_server(directory: Path) -> AsyncIterator[str]:
    """Its address. `GetSession` fails with the reason that the session's id names."""
    async with fake_sessions(directory) as sessions:

        async def get(session_id: str) -> session_pb2.Session:
            if session_id == "INTERNAL":
                raise RuntimeError("a fault that nobody foresaw")
            reason = error_pb2.ErrorReason.Value(f"ERROR_REASON_{session_id}")
            raise SessionError(reason, "as it was told to", METADATA.get(session_id, {}))

        sessions.get = get  # type: ignore[method-assign]
        async with running(sessions) as server:
            yield server.target
