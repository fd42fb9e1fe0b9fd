import os
import socket
import stat
from pathlib import Path

import pytest

from agentstreamd.service.listen import Address, ListenError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "::1", 80),
        (":8080", "0.0.0.0", 8080),
        ("example.test:1", "example.test", 1),
    ],
)
def test_tcp_addresses_are_read(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.path) == (host, port, None)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "50051", "host", "host:", "host:x", "host:70000", "::1:5", "unix:", "a b:c"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        Address.parse(text)


def test_a_path_that_the_kernel_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="107 bytes"):
        Address.parse("unix:/" + "x" * 120)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x", True),
        ("0.0.0.0:1", False),
        (":1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.test:1", False),
    ],
)
def test_only_loopback_and_unix_sockets_are_local(text: str, local: bool) -> None:
    assert Address.parse(text).local is local


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ListenError, match="already in use"):
            address.check_free()


def test_a_stale_unix_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(path))
    assert stat.S_ISSOCK(path.stat().st_mode)
    Address(path=path).check_free()
    assert not path.exists()


def test_a_unix_socket_that_is_served_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(os.fspath(path))
        served.listen()
        with pytest.raises(ListenError, match="another process serves it"):
            Address(path=path).check_free()
        assert path.exists()


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        Address(path=path).check_free()
    assert path.read_text() == "precious"


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="is not a directory"):
        Address(path=tmp_path / "none" / "s").check_free()
