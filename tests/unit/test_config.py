from pathlib import Path
from typing import Any

import pytest

from agentstreamd.config import ConfigError, environment_of, load
from agentstreamd.settings import AGENT_ENVIRONMENT, SETTINGS, Setting

HOME = {"HOME": "/home/me"}


DOCUMENT = Path(__file__).parents[2] / "docs/configuration.md"


def row(setting: Setting) -> str:
    """The line of a setting in the table of the documentation."""
    default = setting.default_for(HOME)
    if setting.name == "agent_environment":
        shown = "see below"
    elif isinstance(default, bool):
        shown = f"`{str(default).lower()}`"
    elif isinstance(default, tuple) and default:
        shown = " ".join(f"`{one}`" for one in default)
    else:
        home = str(default).replace(HOME["HOME"], "~")
        shown = f"`{home}`" if default not in (None, {}, ()) else "none"
    names = f"`{setting.name}` | `{setting.flag}` | `{setting.variable}`"
    return f"| {names} | {shown} | {setting.meaning} |"


def test_every_setting_is_documented_as_it_is() -> None:
    text = DOCUMENT.read_text()
    assert [one.name for one in SETTINGS if row(one) not in text] == []
    assert all(f"`{name}`" in text for name in AGENT_ENVIRONMENT)


def write(directory: Path, text: str) -> str:
    path = directory / "agentstreamd.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_local_and_under_the_state_directory() -> None:
    config = load([], HOME).config
    assert config.listen == ("127.0.0.1:50051",)
    assert config.data_dir == Path("/home/me/.local/state/agentstream")
    assert load([], {**HOME, "XDG_STATE_HOME": "/state"}).config.data_dir == Path(
        "/state/agentstream"
    )


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'log_level = "error"\nlog_format = "json"\nmax_streams = 5\nreflection = false\n'
    )
    environment = {**HOME, "AGENTSTREAM_LOG_LEVEL": "warning", "AGENTSTREAM_LOG_FORMAT": "text"}
    config = load(["--config", file, "--log-level", "debug"], environment).config
    assert (config.log_level, config.log_format, config.max_streams, config.reflection) == (
        "debug",
        "text",
        5,
        False,
    )
    assert config.drain_timeout_seconds == 20.0
    assert [config.sources[name] for name in ("log_level", "log_format", "max_streams")] == [
        "flag",
        "environment",
        f"file {file}",
    ]
    assert config.sources["drain_timeout_seconds"] == "default"


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "max_streams = 7")
    assert load([], {**HOME, "AGENTSTREAM_CONFIG": file}).config.max_streams == 7


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_can_be_set_by_flag_and_variable(setting: Any) -> None:
    text: str = {
        "listen": "127.0.0.1:1",
        "log_level": "error",
        "log_format": "json",
        "event_log_synchronous": "full",
        "reflection": "false",
        "drain_timeout_seconds": "30",
        "agent_environment": "FOO,BAR_*",
        "allowed_roots": "/srv/work,/home",
        "agent_executables": "claude=/bin/claude",
        "tls_certificate_file": "/c",
        "tls_key_file": "/k",
        "insecure_behind_mesh": "true",
        "metrics_listen": "127.0.0.1:0",
        "max_request_bytes": "1000000",
    }.get(setting.name, "3")
    pair = {
        "tls_certificate_file": ["--tls-key-file=/k"],
        "tls_key_file": ["--tls-certificate-file=/c"],
        "tls_client_ca_file": ["--tls-certificate-file=/c", "--tls-key-file=/k"],
        "client_scopes_file": [
            *("--tls-certificate-file=/c", "--tls-key-file=/k", "--tls-client-ca-file=/a")
        ],
    }
    more = pair.get(setting.name, [])
    switches = {"reflection": "--no-reflection", "insecure_behind_mesh": "--insecure-behind-mesh"}
    flag = switches.get(setting.name, f"{setting.flag}={text}")
    by_flag = load([flag, *more], HOME).config
    by_variable = load(more, {**HOME, setting.variable: text}).config
    default = load([], HOME).config
    assert getattr(by_flag, setting.name) == getattr(by_variable, setting.name)
    assert getattr(by_flag, setting.name) != getattr(default, setting.name)


def test_addresses_add_up_within_a_source_and_replace_across() -> None:
    environment = {**HOME, "AGENTSTREAM_LISTEN": "127.0.0.1:1,unix:/run/a"}
    assert load([], environment).config.listen == ("127.0.0.1:1", "unix:/run/a")
    flags = ["--listen", "127.0.0.1:2", "--listen", "127.0.0.1:3"]
    assert load(flags, environment).config.listen == ("127.0.0.1:2", "127.0.0.1:3")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--log-level", "loud"], {}, '--log-level is "loud"'),
        (["--listen", "nowhere"], {}, '--listen is "nowhere"'),
        (["--drain-timeout-seconds", "nan"], {}, "--drain-timeout-seconds"),
        (["--max-streams", "0"], {}, "--max-streams"),
        (["--max-request-bytes", "1000"], {}, "65536 to 2147483647"),
        (["--client-scopes-file", "/f"], {}, "tls_client_ca_file is not set"),
        (["--unknown"], {}, "--unknown"),
        (["--progress-interval-seconds", "11"], {}, "0.01 to 10 seconds"),
        ([], {"AGENTSTREAM_REFLECTION": "maybe"}, 'AGENTSTREAM_REFLECTION is "maybe"'),
        ([], {"AGENTSTREAM_DATADIR": "/x"}, "Did you mean AGENTSTREAM_DATA_DIR?"),
        (["--config", "/nonexistent.toml"], {}, "/nonexistent.toml can't be read"),
        (["--tls-key-file", "/k"], {}, "tls_certificate_file is not set"),
        (["--tls-client-ca-file", "/a"], {}, "tls_certificate_file is not set"),
        (["--agent-executables", "claude"], {}, "NAME=PATH"),
        (["--drain-notice-seconds", "11"], {}, "drain_notice_seconds is more than half"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(arguments, {**HOME, **environment})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_stream = 1", "max_stream in {file} is not a setting. Did you mean max_streams?"),
        ('max_streams = "many"', "max_streams in {file} is"),
        ("reflection = 1", "reflection in {file} is 1"),
        ("listen = 5", "listen in {file} is 5"),
        ("[agents.claude]\nexecutabel = 'x'", "Did you mean executable?"),
        ("agents = 1", "agents in {file} must be a table"),
        ("[agents.claude]\nexecutable = 1", "agents.claude in {file}"),
        ("not toml", "{file} is not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_it(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(["--config", file], HOME)
    assert said.format(file=file) in str(caught.value)


def test_variables_of_orchestrators_and_clients_are_let_pass() -> None:
    environment = {
        **HOME,
        "AGENTSTREAM_PORT": "tcp://10.0.0.1:50051",
        "AGENTSTREAM_SERVICE_HOST": "10.0.0.1",
        "AGENTSTREAM_ADDRESS": "127.0.0.1:1",
        "AGENTSTREAM_PROCESS": "x/y",
    }
    assert load([], environment).config.listen == ("127.0.0.1:50051",)


def test_agents_come_from_tables_and_flags_win(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[agents.claude]\nexecutable = "/file/claude"\noptions = {effort = "high"}\n'
        '[agents.codex]\nexecutable = "/file/codex"\n',
    )
    config = load(["--config", file, "--agent-executables", "claude=/flag/claude"], HOME).config
    assert {name: agent.executable for name, agent in config.agents.items()} == {
        "claude": "/flag/claude",
        "codex": "/file/codex",
    }
    assert config.agents["claude"].options == {"effort": "high"}


def test_the_shown_settings_have_sources_and_no_secrets(tmp_path: Path) -> None:
    file = write(tmp_path, '[agents.claude.options]\napi_key = "s3cret"\n')
    command = load(["--print-config", "--config", file, "--max-streams", "9"], HOME)
    shown = command.config.shown()
    assert command.print_config
    assert "s3cret" not in shown
    assert "s3cret" not in repr(command.config)
    assert [line.split() for line in shown.splitlines() if line.startswith("max_streams ")] == [
        ["max_streams", "=", "9", "#", "flag"]
    ]


def test_agents_get_allowed_variables_and_never_the_daemons() -> None:
    process = {"PATH": "/bin", "LC_ALL": "C", "SECRET": "x", "AGENTSTREAM_TOKEN": "t", "XPATH": "y"}
    allowed = ("PATH", "LC_*", "AGENTSTREAM_*")
    assert environment_of(process, allowed) == {"PATH": "/bin", "LC_ALL": "C"}
