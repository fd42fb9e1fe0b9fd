"""TLS on a real daemon: who gets in, and certificates that change while it runs."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from agentstream.client import AgentstreamError, connect_aio
from agentstream.v1 import service_pb2
from tests.support.certificates import Files
from tests.support.daemon import Daemon, DaemonFailed, daemon, start

REQUEST = service_pb2.ListAgentsRequest()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files.make(tmp_path)


def address(running: Daemon) -> str:
    return running.target.replace("127.0.0.1", "localhost")


@asynccontextmanager
async def serving(files: Files, *flags: str) -> AsyncIterator[Daemon]:
    async with daemon(files.directory / "data", *files.flags, *flags) as running:
        yield running


async def refusal(call: object) -> grpc.StatusCode:
    with pytest.raises((AgentstreamError, aio.AioRpcError)) as caught:
        await call  # type: ignore[misc]
    error = caught.value
    if isinstance(error, aio.AioRpcError):
        return error.code()
    assert isinstance(error, AgentstreamError)
    return error.code


async def test_calls_are_encrypted(files: Files) -> None:
    async with serving(files) as running:
        async with connect_aio(address(running), tls_ca=files.path("ca.pem")) as client:
            assert (await client.stub.ListAgents(REQUEST)).agents
        async with connect_aio(address(running)) as client:
            assert await refusal(client.stub.ListAgents(REQUEST)) is grpc.StatusCode.UNAVAILABLE


async def test_with_an_authority_for_clients_each_needs_a_certificate_of_it(
    files: Files, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ca = files.path("ca.pem")
    stranger = Files.make(tmp_path_factory.mktemp("stranger"))
    async with serving(files, f"--tls-client-ca-file={ca}") as running:

        async def call(certificates: Files | None) -> object:
            names = ("client.pem", "client.key")
            cert, key = map(certificates.path, names) if certificates else (None, None)
            async with connect_aio(
                address(running), tls_ca=ca, tls_cert=cert, tls_key=key
            ) as client:
                return await client.stub.ListAgents(REQUEST)

        assert await call(files)
        assert await refusal(call(None)) is grpc.StatusCode.UNAVAILABLE
        assert await refusal(call(stranger)) is grpc.StatusCode.UNAVAILABLE


def serial(running: Daemon, files: Files) -> str:
    """The serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(files.path("ca.pem")))
    context.set_alpn_protocols(["h2"])
    host, port = address(running).split(":")
    with (
        socket.create_connection((host, int(port))) as raw,
        context.wrap_socket(raw, server_hostname=host) as wrapped,
    ):
        found = wrapped.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


async def test_a_certificate_is_changed_while_the_daemon_runs(files: Files) -> None:
    async with (
        serving(files) as running,
        connect_aio(address(running), tls_ca=files.path("ca.pem")) as before,
    ):
        await before.stub.ListAgents(REQUEST)
        first = await asyncio.to_thread(serial, running, files)
        files.issue("server", "localhost")
        second = await asyncio.to_thread(serial, running, files)
        assert second != first
        files.path("server.pem").write_text("broken")
        assert await asyncio.to_thread(serial, running, files) == second
        assert "The certificate of before stays." in running.stderr
        files.issue("server", "localhost")
        third = await asyncio.to_thread(serial, running, files)
        assert third not in (first, second)
        assert (await before.stub.ListAgents(REQUEST)).agents, "the connection goes on"


@pytest.mark.parametrize("missing", ["server.pem", "server.key", "ca.pem"])
@pytest.mark.parametrize("how", ["absent", "broken"])
async def test_files_that_can_not_be_used_keep_the_daemon_from_starting(
    files: Files, missing: str, how: str
) -> None:
    path = files.path(missing)
    if how == "absent":
        path.unlink()
    else:
        path.write_text("-----BEGIN NONSENSE-----")
    ca = f"--tls-client-ca-file={files.path('ca.pem')}"
    with pytest.raises(DaemonFailed) as failed:
        await start(files.directory / "data", *files.flags, ca)
    assert failed.value.code == 2
    assert missing in failed.value.stderr
    assert "Traceback" not in failed.value.stderr


@pytest.mark.parametrize("how", ["nothing", "tls", "token"])
async def test_off_loopback_it_takes_tls_and_a_way_to_tell_who_calls(
    files: Files, how: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-0123456789abcdef\n")
    token.chmod(0o600)
    flags = {"nothing": [], "tls": files.flags, "token": [f"--token-file={token}"]}[how]
    with pytest.raises(DaemonFailed) as failed:
        await start(tmp_path / "data", *flags, listen=("0.0.0.0:0",))
    assert failed.value.code == 2
    assert "Refusing to listen on 0.0.0.0:0" in failed.value.stderr


@pytest.mark.parametrize("how", ["token", "certificates", "mesh"])
async def test_off_loopback_with_all_that_it_starts(files: Files, how: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-0123456789abcdef\n")
    token.chmod(0o600)
    flags = {
        "token": [*files.flags, f"--token-file={token}"],
        "certificates": [*files.flags, f"--tls-client-ca-file={files.path('ca.pem')}"],
        "mesh": ["--insecure-behind-mesh"],
    }[how]
    async with daemon(tmp_path / "data", *flags, listen=("0.0.0.0:0",)) as running:
        assert running.addresses
