#!/usr/bin/env python3
"""Install pinned coding agents, by npm, into a private cache.

    tools/agents/install.py claude codex          install what is missing
    tools/agents/install.py claude --print-path   print only the path of the program to spawn

Needs Python 3.11 and npm, nothing else. An installation appears whole or not at all, two installers
at once wait for each other, and an agent that is already there costs no network and no npm.
"""

import argparse
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).with_name("pins.toml")

_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_TRIPLES = {
    "linux-x64": "x86_64-unknown-linux-musl",
    "linux-arm64": "aarch64-unknown-linux-musl",
    "darwin-x64": "x86_64-apple-darwin",
    "darwin-arm64": "aarch64-apple-darwin",
}


class InstallError(Exception):
    """The agent could not be installed; the message says why and, where known, what to do."""


@dataclass(frozen=True)
class Agent:
    """A pinned agent, resolved for this machine."""

    name: str
    version: str
    package: str
    """What is handed to `npm install`."""
    directory: Path
    """Where the installation is, or will be."""
    executable: Path
    """The program to spawn."""

    @property
    def installed(self) -> bool:
        """Whether the program is there."""
        return os.access(self.executable, os.X_OK)


def names() -> list[str]:
    """The agents that have a pin."""
    return list(tomllib.loads(PINS.read_text()))


def resolve(name: str) -> Agent:
    """Read the pin of `name`; installs nothing. Raises InstallError (unknown name, platform)."""
    pins = tomllib.loads(PINS.read_text())
    if name not in pins:
        raise InstallError(f"no agent named {name!r}; there are: {', '.join(pins)}")
    pin = pins[name]
    static_platform = _static_platform()
    values = {
        "version": pin["version"],
        "platform": static_platform + ("-musl" if _is_musl() else ""),
        "static_platform": static_platform,
        "triple": _TRIPLES[static_platform],
    }
    directory = cache_directory() / f"{name}-{pin['version']}"
    return Agent(
        name=name,
        version=pin["version"],
        package=pin["package"].format(**values),
        directory=directory,
        executable=directory / pin["executable"].format(**values),
    )


def install(name: str) -> Agent:
    """Install `name` unless it is there. Raises InstallError."""
    agent = resolve(name)
    if agent.installed:
        return agent
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError(
            f"installing {name} {agent.version} needs npm (Node.js), not found in PATH"
        )
    agent.directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(agent.directory.with_name(f".{agent.directory.name}.lock")):
        if not agent.installed:  # else another installer was faster
            _npm_install(npm, agent)
    return agent


def cache_directory() -> Path:
    """$AGENTSTREAM_AGENT_CACHE, or agentstream/agents in the user's cache directory."""
    if own := os.environ.get("AGENTSTREAM_AGENT_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "agentstream" / "agents"


def _npm_install(npm: str, agent: Agent) -> None:
    parent = agent.directory.parent
    with tempfile.TemporaryDirectory(prefix=f".{agent.directory.name}.", dir=parent) as scratch:
        building = Path(scratch) / "installation"
        building.mkdir()
        # An own package.json keeps npm from adopting a project further up the tree.
        (building / "package.json").write_text('{"private": true}\n')
        command = [npm, "install", "--prefix", str(building), "--save-exact", "--ignore-scripts"]
        command += ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        done = subprocess.run(
            [*command, agent.package],
            cwd=building,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise InstallError(f"npm could not install {agent.package}:\n{done.stdout.strip()}")
        program = building / agent.executable.relative_to(agent.directory)
        if not program.exists():
            raise InstallError(f"{agent.package} has no {program.relative_to(building)}")
        target = program.resolve()  # .bin entries are links
        target.chmod(target.stat().st_mode | 0o111)
        if agent.directory.exists():  # left by something else, without the program
            shutil.rmtree(agent.directory)
        building.rename(agent.directory)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _static_platform() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    found = f"{system}-{_ARCHITECTURES.get(machine, machine)}"
    if found not in _TRIPLES:
        raise InstallError(f"no agent is published for {found}; there are: {', '.join(_TRIPLES)}")
    return found


def _is_musl() -> bool:
    return platform.system() == "Linux" and not platform.libc_ver()[0]


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Install pinned coding agents into a private cache."
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"one of: {', '.join(names())}")
    parser.add_argument("--print-path", action="store_true", help="print only the paths to spawn")
    arguments = parser.parse_args()
    for name in arguments.names:
        try:
            agent = install(name)
        except InstallError as error:
            print(f"install.py: {error}", file=sys.stderr)
            return 1
        where = str(agent.executable)
        print(where if arguments.print_path else f"{name} {agent.version}: {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
