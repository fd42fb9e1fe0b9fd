"""What a process of Claude Code says when it will not go on, as the CLI was seen to say it."""

import pytest

from agentstream.v1 import error_pb2
from agentstreamd.adapters.claude.failures import (
    Reason,
    asks_in,
    ends_turn,
    exit_failure,
    start_failure,
)

SESSION = "a91aedb4-b931-40bd-96ad-b7e55d4344eb"


@pytest.mark.parametrize(
    ("stderr", "reason", "code", "part"),
    [
        (
            f"Error: Session ID {SESSION} is already in use.\n",
            Reason.SESSION_EXISTS,
            error_pb2.ERROR_CODE_AGENT_START_FAILED,
            SESSION,
        ),
        (
            f"No conversation found with session ID: {SESSION}\n",
            Reason.SESSION_NOT_FOUND,
            error_pb2.ERROR_CODE_SESSION_NOT_FOUND,
            SESSION,
        ),
        (
            "Warning: odd\nerror: unknown option '--nonsense'\n",
            Reason.OTHER,
            error_pb2.ERROR_CODE_AGENT_START_FAILED,
            "exit code 1 before it was ready: error: unknown option '--nonsense'",
        ),
        (
            "Error: Invalid MCP configuration:\nMCP config file not found: /x.json\n",
            Reason.OTHER,
            error_pb2.ERROR_CODE_AGENT_START_FAILED,
            "not found: /x.json",
        ),
        (
            "Not logged in · Please run /login\n",
            Reason.OTHER,
            error_pb2.ERROR_CODE_AUTHENTICATION,
            "is not logged in",
        ),
        ("", Reason.OTHER, error_pb2.ERROR_CODE_AGENT_START_FAILED, "did not say why"),
    ],
)
def test_a_failed_start_is_classified(
    stderr: str, reason: Reason, code: error_pb2.ErrorCode.ValueType, part: str
) -> None:
    failure = start_failure("exit code 1", stderr)
    assert (failure.reason, failure.code) == (reason, code)
    assert part in failure.message


def test_an_exit_is_told_with_its_last_words() -> None:
    failure = exit_failure("signal SIGKILL", "noise\nout of memory\n")
    assert failure.code == error_pb2.ERROR_CODE_AGENT_EXITED
    assert failure.message == "Claude Code ended unexpectedly with signal SIGKILL: out of memory"


def test_long_last_words_are_cut() -> None:
    assert len(exit_failure("exit code 1", "x" * 100_000).message) < 1000


def test_the_request_in_a_line_too_long_is_found() -> None:
    head = b'{"type":"control_request","request_id":"a-1","request":{"subtype":"can_use_tool",'
    assert asks_in(head) == "a-1"
    assert asks_in(b'{"type":"assistant","request_id":"req_1","message":{') == ""


def test_the_end_of_a_turn_in_a_line_too_long_is_found_wherever_its_type_stands() -> None:
    assert ends_turn(b'{"uuid":"u","type":"result","result":"')
    assert ends_turn(b'{"total_cost_usd":0.1,"result":"')
    assert not ends_turn(rb'{"type":"assistant","text":"{\"type\":\"result\"}')
