"""The README's first session, run as it stands there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def shell_blocks() -> list[str]:
    """The README's commands, in order; those marked `no-test` are make targets of their own."""
    return SHELL.findall(README)


@pytest.fixture
def script(tmp_path: Path) -> str:
    """All commands as one script, with the daemon on a port and a directory of the test's own."""
    blocks = shell_blocks()
    assert "agentstreamd --data-dir ./agentstream-data &\n" in blocks[0]
    # The port is fixed in the README: nobody else may listen there while this runs.
    wait = (
        "trap 'kill $!; wait $!' EXIT\n"
        "until grpcurl -plaintext 127.0.0.1:50051 list > /dev/null 2>&1; do\n"
        "  kill -0 $! || exit 9\n"
        "done\n"
    )
    program = tmp_path / "session.py"
    program.write_text(PYTHON.findall(README)[0])
    lines = [
        "set -eu",
        f"cd {ROOT}",
        blocks[0]
        .replace("./agentstream-data", str(tmp_path / "data"))
        .replace("make setup grpcurl\n", ""),
        wait,
        *blocks[1:],
        f"timeout 60 {sys.executable} {program}",
    ]
    return "\n".join(lines)


def test_the_first_session_of_the_readme_works_as_written(script: str) -> None:
    if not (ROOT / ".cache/bin/grpcurl").exists() and shutil.which("grpcurl") is None:
        pytest.fail("grpcurl is not there: run `make grpcurl`")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert '"opened"' in out
    assert "PERMISSION_DECISION_ACCEPT" in out
    assert '"requestId": "permission-1-3"' in out
    assert '"outcome": "REQUEST_OUTCOME_ACCEPTED"' in out
    assert "turnEnded" in out
    assert "Hello from the terminal." in out
    assert "allowing: make clean" in out


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), f"README.md links to {target}"
