"""The commands of docs/mesh.md, run as they stand there, in another directory."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.envoy import ROOT, program

SHELL = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
WAIT = """\
trap 'kill $(jobs -p); wait' EXIT
until (exec 3<> /dev/tcp/127.0.0.1/8443) 2> /dev/null && grpcurl -cacert tls/ca.pem \\
  -cert tls/client.pem -key tls/client.key -H "authorization: Bearer $(cat token)" \\
  localhost:8443 grpc.health.v1.Health/Check 2> /dev/null | grep -q SERVING
do
  test $(jobs -pr | wc -l) = 2 || { cat envoy.log >&2; exit 9; }
done
"""


def test_the_commands_of_the_document_work_as_written(tmp_path: Path) -> None:
    program()
    if not (ROOT / ".cache/bin/grpcurl").exists():
        pytest.fail("grpcurl is not there: run `make grpcurl`")
    prepare, start, call = SHELL.findall((ROOT / "docs" / "mesh.md").read_text())
    script = "\n".join(["set -eu", f"cd {ROOT}", prepare, start, WAIT, call])
    script = script.replace("make mesh setup grpcurl\n", "")
    script = script.replace("./try-mesh", str(tmp_path)).replace("../deploy", f"{ROOT}/deploy")
    # The script bounds itself: its trap ends what it started.
    done = subprocess.run(
        ["timeout", "60", "bash", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"name": "mock"') == 1, done.stdout
    assert re.search(r"^mock\b", done.stdout, re.M), done.stdout
