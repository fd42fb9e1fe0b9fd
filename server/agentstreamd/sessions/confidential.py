"""Which values of a session's settings are secrets, for all that the daemon knows."""

from collections.abc import Iterator

from agentstream.v1 import session_pb2

MIN_CHARACTERS = 8
"""Shorter values are words of any text: taking them out would leave none readable."""

# Paths are what errors are about, and no secrets.
_PLACES = ("PATH", "HOME", "DIR", "FILE", "ROOT")


def secrets_of(config: session_pb2.SessionConfig) -> tuple[str, ...]:
    """Values of the session's environment and of its MCP servers', and of their headers.

    Longest first, so that none is left in part because a shorter one was taken out of it.
    """
    return tuple(sorted(set(_values(config)), key=lambda value: (-len(value), value)))


def _values(config: session_pb2.SessionConfig) -> Iterator[str]:
    environments = [config.env, *(server.stdio.env for server in config.mcp_servers)]
    for environment in environments:
        for name, value in environment.items():
            if len(value) >= MIN_CHARACTERS and not name.upper().endswith(_PLACES):
                yield value
    for server in config.mcp_servers:
        for value in server.http.headers.values():
            # What a scheme stands before (`Bearer ...`) is also told of alone.
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= MIN_CHARACTERS:
                    yield secret
