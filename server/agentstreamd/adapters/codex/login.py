"""What the server says of the account."""

from typing import Any

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.codex.native import as_object, text_in
from agentstreamd.adapters.login import logged_in, logged_out, unknown

METHOD = "account/read"
PARAMS = {"refreshToken": False}
"""Refreshing a token would ask the provider."""

_FIX = (
    "run `codex login`, or `codex login --with-api-key`, as the daemon's user (OPENAI_API_KEY "
    "alone does not do)"
)
_ACCOUNTS = {"apiKey": "an API key", "chatgpt": "an account of ChatGPT"}


def read(result: dict[str, Any]) -> agent_pb2.AgentLogin:
    """The state that the answer tells of."""
    if account := as_object(result.get("account")):
        kind = text_in(account, "type")
        return logged_in(_ACCOUNTS.get(kind, kind))
    if result.get("requiresOpenaiAuth") is False:
        return unknown("its settings name a model provider that has a login of its own")
    if result.get("requiresOpenaiAuth") is True:
        return logged_out(_FIX)
    return unknown("this version of Codex does not say")
