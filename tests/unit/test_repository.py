"""The rules of this repository that a machine can check."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "server" / "agentstreamd"
CLIENT = ROOT / "clients" / "python" / "agentstream"

MAX_MODULE_LINES = 500

CONTRACT = "agentstream.v1"

# What each part of the daemon may import of ours, besides itself. Dependencies point one way:
# service -> sessions -> events; an agent's knowledge stays in its adapter.
ALLOWED_IMPORTS = {
    "service": {"sessions", "events", "adapters.registry", "model", CONTRACT},
    "sessions": {"events", "adapters.base", "model", "redaction", CONTRACT},
    "events": set[str](),
    "adapters": {"model", "process", CONTRACT},
    "process": set[str](),
    "laws": {"model", CONTRACT},
    "telemetry": {"events", "model", CONTRACT},
    "model": {CONTRACT},
}

# The parts that know of gRPC; a module directly under agentstreamd wires parts together and may.
GRPC_PARTS = {"service"}

# Built from parts, so that this file keeps the rule that it checks.
REGISTRY_HOSTS = [
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("proxy", "golang", "org"),
        ("deb", "debian", "org"),
        ("repo", "maven", "apache", "org"),
        ("crates", "io"),
    )
]

# A path of somebody's machine: a home, a work folder. Made-up users of examples are fine.
MACHINE_PATH = re.compile(
    rb"(?<![\w.<*/-])/(?:root|work)(?:/[\w.-]|(?=[\"'`\s]))"
    rb"|(?<![\w.<*-])/(?:home|Users)/(?!user\b|you\b|me\b|dev\b|app\b)[\w.-]+"
)


def repository_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def hand_written_modules() -> list[Path]:
    return [
        path
        for path in repository_files()
        if path.suffix == ".py" and "generated" not in path.relative_to(ROOT).parts
    ]


def lines_with(pattern: re.Pattern[bytes], path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if found := pattern.search(line):
            yield f"{name_of(path)}:{number}: {found.group().decode(errors='replace')}"


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import, relative ones resolved against `package`.

    `from a import b` yields `a.b`: only so it is seen that a part is imported by its parent.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def is_within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def forbidden_imports(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield what the daemon's module `module`, a dotted name, must not import."""
    package = module if is_package else module.rpartition(".")[0]
    part = module.split(".")[1]
    allowed = {
        name if name == CONTRACT else f"agentstreamd.{name}"
        for name in ALLOWED_IMPORTS[part] | {part}
    }
    for line, name in imports_of(source, package):
        if name.split(".")[0] in ("agentstream", "agentstreamd"):
            fine = any(is_within(name, one) for one in allowed)
            # The version is nobody's dependency.
            if not fine and name != "agentstreamd.__version__":
                yield f"{module}:{line}: {part} must not import {name}"
        elif name.split(".")[0].startswith("grpc") and part not in GRPC_PARTS:
            yield f"{module}:{line}: {part} must not know of gRPC ({name})"


def parts_of_the_daemon() -> list[str]:
    return sorted({path.parent.name for path in SERVER.glob("*/*.py")})


def test_no_file_names_a_registry_host() -> None:
    hosts = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS).encode())
    found = [line for path in repository_files() for line in lines_with(hosts, path)]
    assert not found, "\n".join(found)


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [line for path in repository_files() for line in lines_with(MACHINE_PATH, path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("cd /ro" + "ot/project", True),
        ('"/wo' + 'rk"', True),
        ("/ho" + "me/alice/x", True),
        ("/Us" + "ers/alice", True),
        ("/home/user/project", False),
        ("</root>", False),
        ("the/work", False),
        ("/workspace/x", False),
    ],
)
def test_machine_paths_are_told_from_others(text: str, is_found: bool) -> None:
    assert bool(MACHINE_PATH.search(text.encode())) is is_found


def test_every_part_of_the_daemon_has_its_dependencies_written_down() -> None:
    assert set(parts_of_the_daemon()) <= ALLOWED_IMPORTS.keys()


@pytest.mark.parametrize("part", sorted(ALLOWED_IMPORTS))
def test_dependencies_of_the_daemon_point_one_way(part: str) -> None:
    found = [
        line
        for path in sorted((SERVER / part).rglob("*.py"))
        for line in forbidden_imports(
            path.read_text(),
            ".".join(path.relative_to(SERVER.parent).with_suffix("").parts).removesuffix(
                ".__init__"
            ),
            is_package=path.name == "__init__.py",
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("agentstreamd.events.log", "from agentstreamd.sessions import manager"),
        ("agentstreamd.events.log", "from agentstream.v1 import event_pb2"),
        ("agentstreamd.events.log", "from ..sessions.manager import Manager"),
        ("agentstreamd.events.log", "from .. import model"),
        ("agentstreamd.service.rpc", "import agentstreamd.adapters.claude.driver"),
        ("agentstreamd.sessions.runtime", "from agentstreamd.adapters import registry"),
        ("agentstreamd.sessions.runtime", "from agentstreamd.process import child"),
        ("agentstreamd.adapters.mock.driver", "import grpc.aio"),
        ("agentstreamd.model.parts", "from agentstreamd.laws import check"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, statement: str) -> None:
    assert list(forbidden_imports(statement, module))


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("agentstreamd.service.rpc", "from agentstreamd.adapters.registry import Registry"),
        ("agentstreamd.service.rpc", "import grpc.aio"),
        ("agentstreamd.sessions.runtime", "from agentstreamd.adapters.base import Adapter"),
        ("agentstreamd.adapters.claude.driver", "from ..base import Adapter"),
        ("agentstreamd.adapters.claude.driver", "from ...process import child"),
        ("agentstreamd.model.parts", "from agentstream.v1 import item_pb2"),
        ("agentstreamd.events.log", "import sqlite3"),
    ],
)
def test_an_import_along_the_direction_is_fine(module: str, statement: str) -> None:
    assert not list(forbidden_imports(statement, module))


def test_the_client_library_needs_nothing_of_the_daemon() -> None:
    found = [
        f"{name_of(path)}:{line}: {name}"
        for path in sorted((CLIENT / "client").rglob("*.py"))
        for line, name in imports_of(path.read_text(), "agentstream.client")
        if is_within(name, "agentstreamd")
    ]
    assert not found, "\n".join(found)


def test_agentstream_stays_a_namespace_package() -> None:
    # An __init__.py in one of its parts would hide the other.
    assert not [
        name_of(path)
        for path in repository_files()
        if path.name == "__init__.py"
        and path.parent.name == "agentstream"
        # betterproto's stubs are a package of their own, whose parts are no namespace.
        and "betterproto" not in path.parts
    ]


def test_modules_stay_small() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in hand_written_modules()}
    assert not {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES}


def test_every_public_module_has_a_docstring() -> None:
    missing = [
        name_of(path)
        for path in hand_written_modules()
        if path.relative_to(ROOT).parts[0] in ("server", "clients", "tools", "bench")
        and (path.name == "__init__.py" or not path.name.startswith("_"))
        and (path.name != "__init__.py" or path.read_text().strip())
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not missing


# What hands a string to a shell, or may.
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
SHELL_NAMES = {"create_subprocess_shell", "subprocess_shell"}


def uses_of_a_shell(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield f"{node.lineno}: shell="
        elif isinstance(node, ast.Attribute):
            if node.attr in SHELL_NAMES or ast.unparse(node) in SHELLS:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if names & SHELLS or {alias.name for alias in node.names} & SHELL_NAMES:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_nothing_that_is_installed_starts_a_shell() -> None:
    found = [
        f"{name_of(path)}:{use}"
        for folder in (SERVER, CLIENT)
        for path in sorted(folder.rglob("*.py"))
        for use in uses_of_a_shell(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)",
        "os.system(x)",
        "from os import popen",
        "asyncio.create_subprocess_shell(x)",
        "from asyncio import create_subprocess_shell",
    ],
)
def test_a_use_of_a_shell_is_found(source: str) -> None:
    assert list(uses_of_a_shell(source))


def test_each_line_of_the_threat_model_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs" / "security.md").read_text().partition("## Threat model")[2]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.M), row
