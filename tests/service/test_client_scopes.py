"""What clients may do by their certificates: names, scopes, and files that change."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from agentstream.v1 import service_pb2, service_pb2_grpc
from agentstreamd.model import Kind
from agentstreamd.service.auth import TokenAuth
from agentstreamd.service.grant_file import GrantFileError
from agentstreamd.service.grants import Grant
from agentstreamd.service.limits import CallLimits
from agentstreamd.service.listen import Address
from agentstreamd.service.peers import ClientScopes
from agentstreamd.service.tls import Certificates, TlsFiles
from tests.support.certificates import Files
from tests.support.daemon import daemon
from tests.support.grpc_edge import Running, details, running
from tests.support.sessions import FakeSessions, fake_sessions

READER = "spiffe://cluster.example/ns/team/sa/reader"
SCOPES = f"""
# Service accounts of the mesh.
{READER}  read
runner.example  run session:s
operator  admin
"""


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[FakeSessions]:
    async with fake_sessions(tmp_path / "log") as made:
        for name in ("s", "t"):
            await made.add(name)
            await made.write(name, Kind.SESSION_STARTED)
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files.make(tmp_path)
    made.path("scopes").write_text(SCOPES)
    return made


@asynccontextmanager
async def serving(sessions: FakeSessions, files: Files, **more: Any) -> AsyncIterator[Running]:
    """A server that knows what certificates are for."""
    tls = Certificates(
        TlsFiles(files.path("server.pem"), files.path("server.key"), files.path("ca.pem"))
    )
    peers = ClientScopes(files.path("scopes"))
    async with running(
        sessions, **{"tls": tls, "peers": peers, "listen": [Address.parse("localhost:0")], **more}
    ) as server:
        yield server


@asynccontextmanager
async def client(target: str, files: Files, name: str, **names: Any) -> AsyncIterator[Any]:
    """The calls of a client whose certificate has these names."""
    files.issue_named(name, **names)
    credentials = grpc.ssl_channel_credentials(
        files.path("ca.pem").read_bytes(),
        files.path(f"{name}.key").read_bytes(),
        files.path(f"{name}.pem").read_bytes(),
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.secure_channel(target, credentials, options=options) as channel:
        yield service_pb2_grpc.AgentServiceStub(channel)


async def allowed(stub: Any, session_id: str = "s", **more: Any) -> dict[str, bool]:
    """Which calls, one for each scope, are let in."""
    calls = {
        "read": stub.GetSession(service_pb2.GetSessionRequest(session_id=session_id), **more),
        "run": stub.EndSession(service_pb2.EndSessionRequest(session_id=session_id), **more),
        "admin": stub.DeleteSession(service_pb2.DeleteSessionRequest(session_id="no"), **more),
    }
    found = {}
    for scope, call in calls.items():
        try:
            await call
        except aio.AioRpcError as error:
            found[scope] = details(error).info.reason != "SCOPE_MISSING"
        else:
            found[scope] = True
    return found


def only(*scopes: str) -> dict[str, bool]:
    return {scope: scope in scopes for scope in ("read", "run", "admin")}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"uris": (READER,)}, only("read")),
        ({"uris": ("https://other.example/", READER), "cn": "operator"}, only("read")),
        ({"dns": ("other.example", "runner.example")}, only("run")),
        # URIs before names of hosts, which a mesh may give to any workload.
        ({"uris": (READER,), "dns": ("runner.example",)}, only("read")),
        ({"cn": "operator"}, only("read", "run", "admin")),
        # With alternative names the common name says nothing.
        ({"dns": ("other.example",), "cn": "operator"}, only()),
        ({"cn": READER}, only()),
        ({"dns": ("stranger.example",)}, only()),
    ],
)
async def test_a_certificate_allows_what_is_listed_for_its_name(
    sessions: FakeSessions, files: Files, names: dict[str, Any], expected: dict[str, bool]
) -> None:
    async with (
        serving(sessions, files) as server,
        client(server.target, files, "client", **names) as stub,
    ):
        assert await allowed(stub) == expected


async def test_a_certificate_for_one_session_is_of_no_use_for_others(
    sessions: FakeSessions, files: Files
) -> None:
    async with (
        serving(sessions, files) as server,
        client(server.target, files, "client", dns=("runner.example",)) as stub,
    ):
        assert await allowed(stub, "s") == only("run")
        assert await allowed(stub, "t") == only()


async def test_a_changed_file_counts_from_the_next_call_on_of_open_connections(
    sessions: FakeSessions, files: Files
) -> None:
    async with (
        serving(sessions, files) as server,
        client(server.target, files, "client", uris=(READER,)) as stub,
    ):
        assert await allowed(stub) == only("read")
        files.path("scopes").write_text(f"{READER} run")
        assert await allowed(stub) == only("run")
        files.path("scopes").write_text("")
        assert await allowed(stub) == only(), "an emptied file allows nothing"
        files.path("scopes").unlink()
        assert await allowed(stub) == only()
        files.path("scopes").write_text(READER)
        assert await allowed(stub) == only("read", "run", "admin")


async def test_with_tokens_too_both_must_allow_a_call(sessions: FakeSessions, files: Files) -> None:
    auth = TokenAuth([("runs", Grant(frozenset({"run", "read"})))])
    metadata = (("authorization", "Bearer runs"),)
    async with (
        serving(sessions, files, auth=auth) as server,
        client(server.target, files, "reader", uris=(READER,)) as reader,
        client(server.target, files, "operator", cn="operator") as operator,
    ):
        assert await allowed(reader, metadata=metadata) == only("read")
        assert await allowed(operator, metadata=metadata) == only("read", "run")
        with pytest.raises(aio.AioRpcError) as caught:
            await operator.GetSession(service_pb2.GetSessionRequest(session_id="s"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_owner_of_the_socket_needs_no_certificate(
    sessions: FakeSessions, files: Files
) -> None:
    listen = [Address(path=files.path("socket"))]
    async with (
        serving(sessions, files, listen=listen) as server,
        aio.insecure_channel(server.target) as channel,
    ):
        stub: Any = service_pb2_grpc.AgentServiceStub(channel)
        assert await allowed(stub) == only("read", "run", "admin")


async def test_streams_are_counted_by_the_name_of_the_certificate(
    sessions: FakeSessions, files: Files
) -> None:
    request = service_pb2.StreamEventsRequest(session_id="s", follow=True)
    async with (
        serving(sessions, files, limits=CallLimits(max_streams_per_client=1)) as server,
        client(server.target, files, "one", uris=(READER,)) as one,
        client(server.target, files, "same", uris=(READER,)) as same,
        client(server.target, files, "two", cn="operator") as two,
    ):
        held = [stub.StreamEvents(request) for stub in (one, two)]
        for call in held:
            assert (await call.read()).HasField("opened")
        with pytest.raises(aio.AioRpcError) as caught:
            await same.StreamEvents(request).read()
        assert details(caught.value).info.metadata["limit"] == "max_streams_per_client"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no subject"),
        ("a read\na run", "holds a subject twice"),
        ("a reed", "Line 1 .* has a scope that there is not"),
        ("ü read", "begins with no subject"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "scopes"
    path.write_text(text)
    with pytest.raises(GrantFileError, match=said):
        ClientScopes(path)


async def test_a_daemon_takes_the_file(files: Files) -> None:
    flags = [*files.client_flags, f"--client-scopes-file={files.path('scopes')}"]
    async with daemon(files.directory / "data", *flags) as made:
        target = made.target.replace("127.0.0.1", "localhost")
        request = service_pb2.ListAgentsRequest()
        async with client(target, files, "reader", uris=(READER,)) as stub:
            assert (await stub.ListAgents(request)).agents
        async with client(target, files, "stranger", dns=("other.example",)) as stub:
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListAgents(request)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
