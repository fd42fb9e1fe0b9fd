"""A daemon with TLS and a token, and an Envoy in front of it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, start
from tests.support.envoy import Certificates, Envoy, envoy, make_certificates

TOKEN = "a-token-of-the-tests"


@dataclass
class Mesh:
    """An Envoy, and the daemon behind it, which can be replaced by a new one.

    Attributes:
        envoy: The Envoy.
        daemon: The daemon that runs now.
        arguments: Its flags.
    """

    envoy: Envoy
    daemon: Daemon
    arguments: tuple[str, ...]

    async def restart(self) -> None:
        """What a rolling restart is for one daemon: drain, end, start again on the same data."""
        assert await self.daemon.stop() == 0
        await self.start_again()

    async def start_again(self) -> None:
        """Start a daemon on the data and the address of the one that is gone."""
        self.daemon = await start(
            self.daemon.data_dir, *self.arguments, listen=self.daemon.addresses
        )


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextlib.asynccontextmanager
async def meshed(
    directory: Path, certificates: Certificates, *flags: str, **settings: str
) -> AsyncIterator[Mesh]:
    """A daemon with more flags behind an Envoy with other settings."""
    token = directory / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    chain, key = certificates.daemon
    arguments = (
        f"--tls-certificate-file={chain}",
        f"--tls-key-file={key}",
        f"--tls-client-ca-file={certificates.ca}",
        f"--token-file={token}",
        "--max-streams-per-client=0",  # all of a test's readers have the one token
        *flags,
    )
    daemon = await start(directory / "data", *arguments)
    port = int(daemon.target.rsplit(":", 1)[1])
    mesh = None
    try:
        async with envoy(directory, certificates, upstream=port, **settings) as proxy:
            mesh = Mesh(proxy, daemon, arguments)
            await proxy.healthy(True)
            yield mesh
    finally:
        await (mesh.daemon if mesh else daemon).kill()


@pytest.fixture
async def mesh(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Mesh]:
    """A daemon behind an Envoy, both as shipped."""
    async with meshed(tmp_path, certificates) as made:
        yield made
