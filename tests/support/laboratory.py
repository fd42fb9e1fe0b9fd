"""Where agents under test come from, and the pytest hooks that shut them in.

tests/conftest.py takes the hooks from here: pytest calls `pytest_cmdline_main` only in conftests of
the directories named on its command line (or in testpaths), and of those above.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.support import netns
from tools.agents.install import InstallError, install, resolve

CLAUDE_VERSIONS = ("claude", "claude-newest")
"""The pins of Claude Code that the tests run: the main one, and the newest."""

AGENTS = (*CLAUDE_VERSIONS, "codex", "opencode", "amp", "amp-newest")
"""Every pin that the tests use."""

_DIRECTORIES = [Path(__file__).resolve().parents[1] / name for name in ("agents", "faults")]
_open_network_because = pytest.StashKey[str]()


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Start a run that includes real agents again where only loopback exists, if possible."""
    if netns.inside() or config.option.collectonly or not _selects_agents(config):
        return
    for name in AGENTS:  # now, for there is no registry inside
        try:
            install(name)
        except InstallError:
            continue  # said by the tests that need it
    reason = netns.restart_pytest_inside(config)
    config.stash[_open_network_because] = reason


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say whether agents can reach the network."""
    if netns.inside():
        return "agents: loopback only (network namespace)"
    reason = config.stash.get(_open_network_because, None)
    return reason and f"agents: the network is open ({reason})"


def agent_executable(name: str) -> Path:
    """The program of the pinned agent `name`, installed now if missing.

    Skips the test where npm is missing, except in CI: there the test fails.
    """
    try:
        agent = resolve(name)
        if not agent.installed and netns.inside() and shutil.which("npm"):
            raise InstallError(f"{name} is missing: run tools/agents/install.py {name}")
        return install(name).executable
    except InstallError as error:
        why = str(error)
    if os.environ.get("CI") or shutil.which("npm"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def _selects_agents(config: pytest.Config) -> bool:
    selected = [
        (config.invocation_params.dir / argument.split("::")[0]).resolve()
        for argument in config.args
    ]
    return any(
        directory.is_relative_to(path) or path.is_relative_to(directory)
        for path in selected
        for directory in _DIRECTORIES
    )
