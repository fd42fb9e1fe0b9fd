"""Regenerate generated/ from proto/, or check that it is up to date: `python -m tools.generate`."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "generated"
# Marks the generated package as typed (PEP 561); no generator writes it.
TYPED_MARKER = Path("python/agentstream/v1/py.typed")


def main() -> int:
    """Run the command line. Exits 0, or 1 when generating fails or `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 on drift")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="folder of buf.gen.yaml and proto/ (this project)"
    )
    arguments = parser.parse_args()
    target = arguments.root / GENERATED
    # Generated aside: a failure half-way leaves the old code whole.
    with tempfile.TemporaryDirectory() as scratch:
        if not run_buf(arguments.root, Path(scratch)):
            return 1
        fresh = without_orphans(read_tree(Path(scratch, GENERATED)))
    fresh[TYPED_MARKER] = b""
    changes = differences(read_tree(target), fresh)
    if arguments.check:
        for path in changes:
            print(f"drift: {GENERATED}/{path.as_posix()}", file=sys.stderr)
        if changes:
            print(
                f"{GENERATED}/ is not what proto/ generates: run `make generate` and commit it.",
                file=sys.stderr,
            )
        return 1 if changes else 0
    for path in changes:
        write(target / path, fresh.get(path))
    print(f"{GENERATED}/: {len(fresh)} files, {len(changes)} changed")
    return 0


def run_buf(root: Path, out: Path) -> bool:
    """Run buf.gen.yaml of `root` into `out`, with the plugins of this Python's environment."""
    bin_dir = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}",
        # The plugins that are our own are modules of this project, whatever `root` is.
        "PYTHONPATH": str(ROOT),
    }
    command = [str(bin_dir / "buf"), "generate", "--output", str(out)]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode == 0


def read_tree(root: Path) -> dict[Path, bytes]:
    """Return the content of each file under `root`, by its path below it; caches are no part."""
    return {
        path.relative_to(root): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def without_orphans(files: dict[Path, bytes]) -> dict[Path, bytes]:
    """Leave out type stubs of modules that don't exist.

    protoc-gen-mypy_grpc writes one for each file, also where there is no service.
    """
    return {
        path: content
        for path, content in files.items()
        if path.suffix != ".pyi" or path.with_suffix(".py") in files
    }


def differences(old: dict[Path, bytes], new: dict[Path, bytes]) -> list[Path]:
    """Return the paths that are missing, stale or different, in order."""
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def write(path: Path, content: bytes | None) -> None:
    """Write one file, or remove it when it has no content any more."""
    if content is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
