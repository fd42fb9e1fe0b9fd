"""The Go and TypeScript clients' own tests: their reconnecting, decided without a daemon."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT


def run(directory: Path, *argv: str) -> None:
    if not os.environ.get("CI") and shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]


def test_the_tests_of_the_go_client_pass() -> None:
    run(ROOT / "clients" / "go", "go", "test", "./...")


def test_the_tests_of_the_typescript_client_pass() -> None:
    tests = sorted((ROOT / "clients" / "ts" / "dist" / "test").glob("*.test.js"))
    assert tests, "run make clients"
    run(ROOT / "clients" / "ts", "node", "--test", *map(str, tests))
