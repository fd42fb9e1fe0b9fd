"""A real Envoy with the configuration that deploy/envoy ships, on ports of its own.

async with envoy(tmp_path, certificates, upstream=port) as proxy:
    async with proxy.client(token) as client:
        ...
"""

import asyncio
import contextlib
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from agentstream.client import AsyncClient, connect_aio
from tests.support.model_server import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "deploy" / "envoy" / "envoy.yaml"
PROGRAM = ROOT / ".cache" / "mesh" / "bin" / "envoy"

# What tests put in the place of what the file says. All that they change is here.
_PLACES = {
    "services": "port_value: 8443",
    "browsers": "port_value: 8444",
    "probes": "port_value: 8445",
    "admin": "port_value: 9901",
    "upstream": "port_value: 50051",
    "origin": "https://agentstream.example.com",
    "stream_idle_timeout": "timeout: 0s\n                            idle_timeout: 60s",
}


def program() -> str:
    """The installed Envoy; fails (in CI) or skips the test where there is none."""
    if PROGRAM.exists():
        return str(PROGRAM)
    if os.environ.get("CI"):
        pytest.fail("Envoy is missing: run make mesh", pytrace=False)
    pytest.skip("Envoy is not installed: run make mesh")


@dataclass(frozen=True)
class Certificates:
    """Certificates of one authority, in files.

    Attributes:
        directory: Where Envoy runs: `tls/` in it is what the configuration names.
        ca: Of the authority.
        daemon: Chain and key of the daemon, for the name that Envoy expects.
        client: Chain and key of a caller.
        stranger: Chain and key of a caller of another authority.
    """

    directory: Path
    ca: Path
    daemon: tuple[Path, Path]
    client: tuple[Path, Path]
    stranger: tuple[Path, Path]


def make_certificates(directory: Path) -> Certificates:
    """Issue all certificates that the configuration needs."""
    tls = directory / "tls"
    tls.mkdir(parents=True)
    authority = trustme.CA()

    def issue(name: str, *hosts: str, by: trustme.CA = authority) -> tuple[Path, Path]:
        chain, key = tls / f"{name}.pem", tls / f"{name}.key"
        leaf = by.issue_cert(*hosts, common_name=name)
        leaf.private_key_pem.write_to_path(str(key))
        for number, pem in enumerate(leaf.cert_chain_pems):
            pem.write_to_path(str(chain), append=number > 0)
        return chain, key

    for name in ("client-ca", "daemon-ca"):
        authority.cert_pem.write_to_path(str(tls / f"{name}.pem"))
    issue("server", "localhost", "127.0.0.1")
    issue("envoy", "envoy")
    return Certificates(
        directory=directory,
        ca=tls / "client-ca.pem",
        daemon=issue("daemon", "agentstreamd", "127.0.0.1"),
        client=issue("client", "client"),
        stranger=issue("stranger", "client", by=trustme.CA()),
    )


@dataclass
class Envoy:
    """An Envoy that runs.

    Attributes:
        certificates: Of all parties.
        services: Port for services, which need a client certificate.
        browsers: Port for browsers.
        probes: Port for probes of the daemon's health.
        admin: Port of its own interface.
        log: What it wrote, the access log among it.
    """

    certificates: Certificates
    services: int
    browsers: int
    probes: int
    admin: int
    log: bytearray

    def client(
        self, token: str | None = None, *, identity: tuple[Path, Path] | None = None
    ) -> AsyncClient:
        """A client that comes in by the port for services."""
        cert, key = identity or self.certificates.client
        return connect_aio(
            f"localhost:{self.services}",
            token=token,
            tls_ca=self.certificates.ca,
            tls_cert=cert,
            tls_key=key,
            options=[("grpc.use_local_subchannel_pool", 1)],
        )

    async def ask(self, path: str) -> str:
        """What the admin interface answers."""
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{self.admin}{path}")

    async def healthy(self, wanted: bool) -> None:
        """Wait until Envoy holds its daemon for healthy, or not."""
        async with asyncio.timeout(DEADLINE):
            while True:
                clusters = json.loads(await self.ask("/clusters?format=json"))
                host = clusters["cluster_statuses"][0].get("host_statuses", [{}])[0]
                status = host.get("health_status", {})
                failed = status.get("failed_active_health_check", False)
                known = status.get("eds_health_status") == "HEALTHY"
                if known and failed is not wanted:
                    return
                # There is no event to wait for: Envoy is to be asked.
                await asyncio.sleep(0.05)

    async def logged(self, request_id: str) -> dict[str, Any]:
        """What the access log says of a call, once it does."""
        async with asyncio.timeout(DEADLINE):
            while True:
                lines = bytes(self.log).decode(errors="replace").splitlines()
                for line in lines:
                    if line.startswith("{") and request_id in line:
                        call: dict[str, Any] = json.loads(line)
                        return call
                await asyncio.sleep(0.01)


def _get(url: str) -> str:
    # No proxy of the environment stands between a test and loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=DEADLINE) as answer:
        text: bytes = answer.read()
    return text.decode()


def configuration(**replaced: str) -> str:
    """The shipped configuration with what is named in `_PLACES` replaced."""
    text = CONFIGURATION.read_text()
    for name, value in replaced.items():
        place = _PLACES[name]
        assert text.count(place) == 1, f"{place!r} is not once in {CONFIGURATION.name}"
        text = text.replace(place, value)
    return text


@contextlib.asynccontextmanager
async def envoy(
    directory: Path,
    certificates: Certificates,
    *,
    upstream: int,
    origin: str = "https://localhost",
    stream_idle_timeout: str | None = None,
) -> AsyncIterator[Envoy]:
    """An Envoy before the daemon on port `upstream`, that serves, for the length of a test."""
    places = dict.fromkeys(("services", "browsers", "probes", "admin"), "port_value: 0")
    places |= {"upstream": f"port_value: {upstream}", "origin": origin}
    if stream_idle_timeout is not None:
        was = _PLACES["stream_idle_timeout"]
        places["stream_idle_timeout"] = was.replace("60s", stream_idle_timeout)
    path = directory / "envoy.yaml"
    path.write_text(configuration(**places))
    admin = directory / "admin-address"
    process = await asyncio.create_subprocess_exec(
        *(program(), "--config-path", str(path), "--admin-address-path", str(admin)),
        *("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"),
        # The access log is written out once a second or so by default.
        *("--file-flush-interval-msec", "10"),
        cwd=certificates.directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    log = bytearray()
    reader = asyncio.create_task(_drain(process.stdout, log))
    try:
        yield await _serving(process, admin, certificates, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def _serving(
    process: asyncio.subprocess.Process, admin: Path, certificates: Certificates, log: bytearray
) -> Envoy:
    async with asyncio.timeout(DEADLINE):
        while True:
            assert process.returncode is None, bytes(log).decode(errors="replace")
            with contextlib.suppress(OSError, IndexError, KeyError, ValueError):
                port = int(_read(admin).rsplit(":", 1)[1])
                found = Envoy(certificates, 0, 0, 0, port, log)
                if (await found.ask("/ready")).strip() == "LIVE":
                    listeners = json.loads(await found.ask("/listeners?format=json"))
                    ports = dict(_ports(listeners))
                    found.services, found.browsers = ports["services"], ports["browsers"]
                    found.probes = ports["probes"]
                    return found
            # There is no event to wait for: Envoy is to be asked.
            await asyncio.sleep(0.02)


def _read(path: Path) -> str:
    return path.read_text()


def _ports(listeners: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for listener in listeners["listener_statuses"]:
        yield listener["name"], listener["local_address"]["socket_address"]["port_value"]


async def _drain(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(65536):
        into += chunk


async def call_bytes(
    channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Call any method with an empty request; the response as it came. Raises grpc.RpcError."""
    call: Any = channel.unary_unary(method)
    answer: bytes = await call(b"", timeout=DEADLINE, metadata=metadata)
    return answer


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a failed call."""
    code = error.code()
    assert isinstance(code, grpc.StatusCode)
    return code
