"""A unix socket: the kernel lets in its owner alone, from the first moment on."""

import errno
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from agentstreamd.service.listen import Address, ListenError
from tests.support.grpc_edge import running
from tests.support.sessions import FakeSessions, fake_sessions

OWNER, OTHER = 65534, 65533
CONNECT = """
import os, socket, sys
user, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([])
os.setgid(user)
os.setuid(user)
try:
    socket.socket(socket.AF_UNIX).connect(path)
except OSError as error:
    print(error.errno)
else:
    print(0)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[FakeSessions]:
    async with fake_sessions(tmp_path / "log") as made:
        yield made


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that all users may enter."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def connect(user: int, path: Path) -> int:
    """The error that a user gets who connects; 0 for none."""
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CONNECT, str(user), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout)


@needs_root
async def test_the_kernel_asks_who_connects_and_lets_in_the_owner(
    sessions: FakeSessions, open_directory: Path
) -> None:
    path = open_directory / "socket"
    async with running(sessions, listen=[Address(path=path)]):
        assert connect(OTHER, path) == errno.EACCES
        assert connect(OWNER, path) == errno.EACCES
        assert connect(0, path) == 0
        # As it is when a daemon of that user made it.
        os.chown(path, OWNER, OWNER)
        assert connect(OWNER, path) == 0
        assert connect(OTHER, path) == errno.EACCES


@needs_root
async def test_a_private_directory_is_a_wall_of_its_own(
    sessions: FakeSessions, open_directory: Path
) -> None:
    path = open_directory / "socket"
    async with running(sessions, listen=[Address(path=path)]):
        path.chmod(0o666)
        assert connect(OTHER, path) == 0
        os.chmod(open_directory, 0o700)
        assert connect(OTHER, path) == errno.EACCES


async def test_the_socket_is_private_as_soon_as_it_is_there(
    sessions: FakeSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    modes = []
    server_type: Any = type(aio.server())
    bind = server_type.add_insecure_port

    def observed(self: Any, target: str) -> int:
        port: int = bind(self, target)
        modes.append(stat.S_IMODE(path.lstat().st_mode))
        return port

    monkeypatch.setattr(server_type, "add_insecure_port", observed)
    before = os.umask(0)
    try:
        async with running(sessions, listen=[Address(path=path)]):
            assert os.umask(0) == 0, "the umask is put back"
    finally:
        os.umask(before)
    assert modes == [0o600]


async def start(sessions: FakeSessions, path: Path) -> None:
    async with running(sessions, listen=[Address(path=path)]):
        pass


@pytest.mark.parametrize("target", ["nothing", "file", "socket"])
async def test_a_link_is_not_followed(sessions: FakeSessions, tmp_path: Path, target: str) -> None:
    pointed = tmp_path / "pointed"
    if target == "file":
        pointed.write_text("precious")
    elif target == "socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(pointed))
    path = tmp_path / "socket"
    path.symlink_to(pointed)
    before = pointed.lstat() if target != "nothing" else None
    with pytest.raises(ListenError, match="it exists and is not a socket"):
        await start(sessions, path)
    assert path.is_symlink()
    assert (pointed.lstat() if before else None) == before
    assert pointed.exists() is (target != "nothing")


@needs_root
@pytest.mark.parametrize("kind", ["file", "socket"])
async def test_what_another_user_put_there_is_left_alone(
    sessions: FakeSessions, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "socket"
    if kind == "file":
        path.write_text("")
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    os.chown(path, OTHER, OTHER)
    with pytest.raises(ListenError, match=r"is another user's|is not a socket"):
        await start(sessions, path)
    assert path.lstat().st_uid == OTHER


async def test_a_socket_that_came_out_otherwise_is_not_served(
    sessions: FakeSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    monkeypatch.setattr(os, "umask", lambda mask: 0o022)
    with pytest.raises(ListenError, match="other users could connect"):
        await start(sessions, path)


@pytest.mark.parametrize(("mode", "warned"), [(0o755, False), (0o1777, False), (0o777, True)])
async def test_a_directory_where_others_could_replace_it_is_told_of(
    sessions: FakeSessions,
    open_directory: Path,
    mode: int,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    os.chmod(open_directory, mode)
    with caplog.at_level(logging.WARNING):
        await start(sessions, open_directory / "socket")
    assert ("put a socket of theirs in the place" in caplog.text) is warned
