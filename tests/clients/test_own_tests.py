"""The Go and TypeScript clients' own tests, and what a publish of the packages would hold."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT


def run(directory: Path, *argv: str) -> str:
    if not os.environ.get("CI") and shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def test_the_tests_of_the_go_client_pass() -> None:
    directory = ROOT / "clients" / "go"
    # The race detector is written in C.
    cgo = run(directory, "go", "env", "CGO_ENABLED").strip() == "1" and shutil.which("gcc")
    run(directory, "go", "test", *(["-race"] if cgo else []), "./...")


def test_the_tests_of_the_typescript_client_pass() -> None:
    tests = sorted((ROOT / "clients" / "ts" / "dist" / "test").glob("*.test.js"))
    assert tests, "run make clients"
    run(ROOT / "clients" / "ts", "node", "--test", *map(str, tests))


@pytest.mark.parametrize("package", ["clients/ts", "generated/ts"])
def test_a_publish_holds_what_the_package_exports_and_nothing_else(package: str) -> None:
    directory = ROOT / package
    packed = run(directory, "npm", "pack", "--dry-run", "--json", "--ignore-scripts")
    listed = json.loads(packed)
    held = {
        file["path"]
        for one in (listed.values() if isinstance(listed, dict) else listed)
        for file in one["files"]
    }
    exports = json.loads((directory / "package.json").read_text())["exports"]
    for target in (path for entry in exports.values() for path in entry.values()):
        before, star, after = target.removeprefix("./").partition("*")
        found = [path for path in held if path.startswith(before) and path.endswith(after)]
        assert found if star else before in held, target
    assert not [path for path in held if "test" in path or "example" in path]
