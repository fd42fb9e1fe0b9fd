"""What `claude auth status` says."""

import json

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.claude.errors import text_in
from agentstreamd.adapters.login import logged_in, logged_out, unknown

COMMAND = ("auth", "status", "--json")

_FIX = (
    "run `claude auth login` as the daemon's user, or set ANTHROPIC_API_KEY or "
    "CLAUDE_CODE_OAUTH_TOKEN (made by `claude setup-token`) for the daemon"
)
_METHODS = {
    "api_key": "an API key",
    "api_key_helper": "a program that gives an API key",
    "oauth_token": "a token",
    "claude.ai": "an account of claude.ai",
}


def read(said: str) -> agent_pb2.AgentLogin:
    """The state that the output tells of. It also names the account: that is not passed on."""
    try:
        status = json.loads(said)
    except ValueError:
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("loggedIn"), bool):
        return unknown("this version of Claude Code does not say")
    if not status["loggedIn"]:
        return logged_out(_FIX)
    method = text_in(status, "authMethod")
    by = _METHODS.get(method, method) or "credentials"
    if method == "third_party":
        return logged_in(text_in(status, "apiProvider") or "another provider")
    source = text_in(status, "apiKeySource")
    return logged_in(f"{by}, from {source}" if source else by)
