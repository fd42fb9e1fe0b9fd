import argparse
import json
from pathlib import Path

import pytest

from agentstream.cli.context import make_context
from agentstream.cli.exits import USAGE, CliError
from agentstream.cli.options import add_session_options, image_part, mcp_servers, session_config
from agentstream.v1 import agent_pb2, session_pb2


def config(*arguments: str, address: str = "127.0.0.1:1") -> session_pb2.SessionConfig:
    parser = argparse.ArgumentParser()
    add_session_options(parser)
    context = make_context(argparse.Namespace(address=address))
    return session_config(parser.parse_args(arguments), context, one_shot=True)


def test_options_become_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FROM_HERE", "value")
    monkeypatch.chdir(tmp_path)
    made = config(
        *("--agent", "mock", "--model", "m", "--permission-mode", "accept-edits", "--cwd", "sub"),
        *("--env", "A=b=c", "--env", "FROM_HERE", "--label", "team=x", "--option", "o=1"),
        *("--resume", "native", "--system-prompt", "be brief", "--title", "t"),
    )
    assert made == session_pb2.SessionConfig(
        agent="mock",
        model="m",
        permission_mode=agent_pb2.PERMISSION_MODE_ACCEPT_EDITS,
        working_directory=str(tmp_path / "sub"),
        env={"A": "b=c", "FROM_HERE": "value"},
        labels={"team": "x"},
        agent_options={"o": "1"},
        resume_native_session_id="native",
        system_prompt="be brief",
        title="t",
        one_shot=True,
    )


def test_the_working_directory_is_this_one_unless_the_daemon_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config().working_directory == str(tmp_path)
    assert config("--cwd", "/there", address="far:1").working_directory == "/there"
    with pytest.raises(CliError, match="--cwd"):
        config(address="far:1")


def test_mcp_servers_are_read_from_the_file_that_agents_share(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "local": {"command": "server", "args": ["-x"], "env": {"K": "v"}},
        "far": {"type": "http", "url": "https://mcp.example/", "headers": {"H": "v"}},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    local, far = mcp_servers(str(file))
    assert local == session_pb2.McpServer(
        name="local",
        stdio=session_pb2.McpStdio(command="server", args=["-x"], env={"K": "v"}),
    )
    assert far == session_pb2.McpServer(
        name="far", http=session_pb2.McpHttp(url="https://mcp.example/", headers={"H": "v"})
    )


@pytest.mark.parametrize("content", ["nonsense", "[]", '{"mcpServers": {"x": {}}}', '{"x": 1}'])
def test_a_file_without_mcp_servers_is_wrong_usage(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(content)
    with pytest.raises(CliError) as caught:
        mcp_servers(str(file))
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize(
    "arguments", [["--env", "NOT_SET_ANYWHERE"], ["--label", "x"], ["--mcp-config", "/nowhere"]]
)
def test_what_makes_no_sense_is_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(CliError) as caught:
        config(*arguments)
    assert caught.value.exit_code == USAGE


def test_an_image_is_known_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b"data")
    part = image_part(str(file))
    assert (part.image.media_type, part.image.data) == ("image/png", b"data")
    for name in ("x.txt", "missing.png"):
        with pytest.raises(CliError):
            image_part(str(tmp_path / name))
