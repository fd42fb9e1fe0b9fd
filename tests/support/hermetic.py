"""What an agent under test may see of this machine: an allow-listed environment, a workspace."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_environment(home: Path) -> dict[str, str]:
    """The environment of any agent: its own home directory and nothing of the developer's."""
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / "tmp"
    scratch.mkdir(exist_ok=True)
    return {
        "HOME": str(home),
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(scratch),
    }


def claude_environment(home: Path, model_url: str, **more: str) -> dict[str, str]:
    """The environment that points Claude Code at a scripted model and keeps it quiet otherwise."""
    return {
        **base_environment(home),
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": "test-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        **more,
    }


def make_workspace(
    directory: Path, files: Mapping[str, str | bytes] | None = None, *, git: bool = False
) -> Path:
    """Create a directory with these files (by relative path); a git repository on request."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if git:
        subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    return directory
