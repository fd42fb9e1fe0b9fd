"""Pages of lists."""

from agentstream.v1 import error_pb2
from agentstreamd.sessions.errors import SessionError, invalid

DEFAULT_PAGE = 50
MAX_PAGE = 1000


def page_size(asked: int) -> int:
    """The size of a page. Raises INVALID_FIELD."""
    if asked < 0 or asked > MAX_PAGE:
        raise invalid(("page_size", f"must be 0 to {MAX_PAGE}"))
    return asked or DEFAULT_PAGE


def invalid_page_token() -> SessionError:
    """The token was not made by this server for this call."""
    return SessionError(
        error_pb2.ERROR_REASON_INVALID_PAGE_TOKEN,
        "the page token was not made by this server for this call",
        {},
        [("page_token", "is not a token of this server")],
    )
