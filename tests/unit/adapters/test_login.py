"""What agents say of their login, read: also what no version is known to say."""

from typing import Any

import pytest

from agentstream.v1 import agent_pb2
from agentstreamd.adapters.claude import login as claude
from agentstreamd.adapters.codex import login as codex
from agentstreamd.adapters.opencode import login as opencode

IN = agent_pb2.LOGIN_STATE_LOGGED_IN
OUT = agent_pb2.LOGIN_STATE_LOGGED_OUT
UNKNOWN = agent_pb2.LOGIN_STATE_UNSPECIFIED


@pytest.mark.parametrize(
    ("said", "state", "detail"),
    [
        ('{"loggedIn":true,"authMethod":"third_party","apiProvider":"bedrock"}', IN, "bedrock"),
        ('{"loggedIn":true,"authMethod":"new"}', IN, "new"),
        ('{"loggedIn":true}', IN, "credentials"),
        ('{"loggedIn":"yes"}', UNKNOWN, "does not say"),
        ("[]", UNKNOWN, "does not say"),
        ("", UNKNOWN, "does not say"),
    ],
)
def test_claude(said: str, state: int, detail: str) -> None:
    found = claude.read(said)
    assert found.state == state
    assert detail in found.detail


@pytest.mark.parametrize(
    ("result", "state", "detail"),
    [
        ({"account": {"type": "chatgpt", "email": "me@example.com"}}, IN, "ChatGPT"),
        ({"account": {"type": "new"}, "requiresOpenaiAuth": True}, IN, "new"),
        ({"account": None, "requiresOpenaiAuth": True}, OUT, "codex login"),
        ({"account": 7, "requiresOpenaiAuth": 7}, UNKNOWN, "does not say"),
        ({}, UNKNOWN, "does not say"),
    ],
)
def test_codex(result: dict[str, Any], state: int, detail: str) -> None:
    found = codex.read(result)
    assert found.state == state
    assert detail in found.detail
    assert "me@example.com" not in found.detail


def test_opencode() -> None:
    assert opencode.read([]).state == OUT
    free = opencode.read(["opencode/free-1", "opencode/free-2"])
    assert (free.state, free.detail[:20]) == (OUT, "only the free models")
    many = opencode.read([f"p{number}/m" for number in range(9)])
    assert (many.state, many.detail) == (IN, "p0, p1, p2, p3, p4 and others")
