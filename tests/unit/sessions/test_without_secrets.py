"""What answers show of a session's settings."""

from agentstream.v1 import session_pb2
from agentstreamd.sessions.stored import without_secrets


def test_no_value_of_a_variable_or_header_is_shown() -> None:
    # Many: the order in which maps are iterated differs from one process to the next.
    values = {f"NAME_{number}": "secret" for number in range(100)}
    config = session_pb2.SessionConfig(
        env=values,
        mcp_servers=[
            session_pb2.McpServer(name="a", stdio=session_pb2.McpStdio(command="a", env=values)),
            session_pb2.McpServer(name="b", http=session_pb2.McpHttp(url="b", headers=values)),
        ],
    )
    shown = without_secrets(config)
    names = dict.fromkeys(values, "")
    assert shown.env == names
    assert shown.mcp_servers[0].stdio.env == names
    assert shown.mcp_servers[1].http.headers == names
    assert config.env == values
