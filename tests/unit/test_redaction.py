"""What is taken out of logs and errors, and what is left in them."""

import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstream.v1 import error_pb2, event_pb2, session_pb2
from agentstreamd import logs
from agentstreamd.adapters.base import AgentExit
from agentstreamd.redaction import redacted
from agentstreamd.sessions.confidential import secrets_of
from tests.unit.sessions.asking import asking
from tests.unit.sessions.lab import laboratory

KEY = "sk-" + "ant-api03-" + "Zm9vYmFyYmF6cXV4" * 2


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [redacted]."),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer [redacted]"),
        ("ANTHROPIC_API_KEY=abcdefgh12345678 next", "ANTHROPIC_API_KEY=[redacted] next"),
        ('{"access_token": "abcdefgh12345678"}', '{"access_token": "[redacted]"}'),
        ("https://user:hunter2hunter2@host/x", "https://user:[redacted]@host/x"),
        ("got ghp_" + "a1" * 18, "got [redacted]"),
        ("AKIA" + "ABCDEFGH12345678", "[redacted]"),
        ("eyJhbGciOi12." + "eyJzdWIiOi12." + "c2lnbmF0dXJl", "[redacted]"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nb",
            "a\n[redacted]\nb",
        ),
    ],
)
def test_secrets_are_taken_out(text: str, left: str) -> None:
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "unexpected status 401 Unauthorized: Incorrect API key provided",
        "max_output_tokens: 4096",
        "a bearer token is required in the metadata key authorization",
        "call method=agentstream.v1.AgentService/SendMessage code=OK duration_ms=3.5",
        "session ses_0f3a9c1e5b7d4e21 turn 01a22f7e-64c0-7821-82c3-af4c90debba2",
        "http://127.0.0.1:50051/v1/responses",
        "token: none",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert redacted(text) == text


@given(st.text())
def test_it_takes_any_text(text: str) -> None:
    redacted(text)


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_log_holds_no_secret(format: str) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.set_up("info", format, stream)  # type: ignore[arg-type]
        try:
            raise ValueError(f"bad key {KEY}")
        except ValueError:
            logging.getLogger("x").exception("failed with %s", KEY, extra={"value": KEY})
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
        logging.captureWarnings(False)
    assert KEY not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") == 3


async def test_errors_of_agents_hold_no_secret(tmp_path: Path) -> None:
    exit = AgentExit(
        expected=False,
        exit_code=1,
        code=error_pb2.ERROR_CODE_AUTHENTICATION,
        message=f"the key {KEY} is wrong",
        stderr_head=f"OPENAI_API_KEY={KEY}",
        stderr_tail=f"Bearer {KEY}",
    )
    async with laboratory(tmp_path) as lab:
        (await asking(lab)).exit(exit)
        events = await lab.until("turn_ended")
    said = "".join(str(event) for event in events)
    assert KEY not in said
    ended = events[-1].turn_ended
    assert ended.status == event_pb2.TURN_STATUS_FAILED
    assert ended.error.message == "the key [redacted] is wrong"


# Like no key of anybody: only the session's settings say that these are secrets.
OWN = "correct horse battery"
SETTINGS = session_pb2.SessionConfig(
    env={"DB": OWN, "DB_LONGER": f"{OWN} staple", "SHORT": "debug", "CACHE_DIR": "/var/cache/own"},
    mcp_servers=[
        session_pb2.McpServer(name="a", stdio=session_pb2.McpStdio(env={"X": "of-stdio-servers"})),
        session_pb2.McpServer(
            name="b", http=session_pb2.McpHttp(headers={"Authorization": "Basic of-http-servers"})
        ),
    ],
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"no login with {OWN}!", "no login with [redacted]!"),
        (f"got {OWN} staple", "got [redacted]"),
        ("of-stdio-servers", "[redacted]"),
        ("Basic of-http-servers or of-http-servers", "[redacted] or [redacted]"),
        ("debug: no /var/cache/own", "debug: no /var/cache/own"),
    ],
)
def test_what_a_session_was_given_is_taken_out_exactly(text: str, left: str) -> None:
    assert redacted(text, secrets_of(SETTINGS)) == left


async def test_errors_of_agents_do_not_hold_what_the_session_was_given(tmp_path: Path) -> None:
    said = AgentExit(expected=False, exit_code=1, message=OWN, stderr_head=OWN, stderr_tail=OWN)
    async with laboratory(tmp_path) as lab:
        (await asking(lab, env=dict(SETTINGS.env))).exit(said)
        events = await lab.until("turn_ended")
    assert OWN not in "".join(str(event) for event in events)
    assert events[-1].turn_ended.error.message == "[redacted]"
