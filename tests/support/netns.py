"""Run something where only loopback exists: `python tests/support/netns.py COMMAND...`, or pytest.

A network namespace of its own (Linux; as root, or where unprivileged user namespaces are allowed)
ensures that agents under test reach nothing but the scripted servers. Where it can't be had, the
command runs without it and that is said. AGENTSTREAM_TEST_NETWORK=open asks for no namespace.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command needs nothing but Python
    import pytest

_INSIDE = "AGENTSTREAM_INSIDE_NETNS"
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def inside() -> bool:
    """Whether this process has been put in a namespace by `enter`."""
    return _INSIDE in os.environ


def enter() -> str | None:
    """Move this process into a loopback-only namespace; returns why not, if not.

    Only this thread and what it starts move: exec afterwards, or call before there are threads.
    """
    if inside():
        return None
    if sys.platform != "linux":
        return f"no network namespaces on {sys.platform}"
    if os.environ.get("AGENTSTREAM_TEST_NETWORK") == "open":
        return "AGENTSTREAM_TEST_NETWORK=open"
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    if uid != 0:
        # Keep the user's own ids: agents behave differently for root.
        for file, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as proc:
                proc.write(line)
    _loopback_up()
    os.environ[_INSIDE] = "1"
    return None


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def restart_pytest_inside(config: "pytest.Config") -> str:
    """Start this pytest run again inside a namespace (does not return), or say why not.

    For the hook `pytest_cmdline_main`, outside.
    """
    reason = enter()
    if reason is not None:
        return reason
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:  # gives back the real stdout and stderr
        capture.stop_global_capturing()
    os.chdir(config.invocation_params.dir)
    os.execv(
        sys.executable,
        [sys.executable, "-m", "pytest", *map(os.fspath, config.invocation_params.args)],
    )


def main() -> None:
    """Run the command line inside."""
    reason = enter()
    if reason is not None:
        print(f"netns: the network stays open ({reason})", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
