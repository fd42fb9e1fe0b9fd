"""Bearer tokens: how the file is read, and what each scope allows."""

import logging
from pathlib import Path

import grpc
import pytest
from google.protobuf import message_factory
from grpc import aio

from agentstream.v1 import error_pb2, service_pb2
from agentstreamd.service.auth import TokenAuth
from agentstreamd.service.errors import CallError
from agentstreamd.service.grant_file import GrantFileError
from agentstreamd.service.grants import SCOPES, Grant
from tests.support.grpc_edge import details, running
from tests.support.sessions import fake_sessions

SERVICE = service_pb2.DESCRIPTOR.services_by_name["AgentService"]
METHODS = [method.name for method in SERVICE.methods]
FILE = """
# Lines of comment, and empty ones, are left out.
everything

watcher   read
answerer  read respond
one       run session:s
"""


@pytest.fixture
def auth(tmp_path: Path) -> TokenAuth:
    path = tmp_path / "tokens"
    path.write_text(FILE)
    return TokenAuth.from_file(path)


def allowed(auth: TokenAuth, token: str, method: str, session_id: str = "s") -> bool:
    _, grant = auth.check((("authorization", f"Bearer {token}"),))
    kind = SERVICE.methods_by_name[method].input_type
    request = message_factory.GetMessageClass(kind)()
    if "session_id" in kind.fields_by_name:
        setattr(request, "session_id", session_id)  # noqa: B010
    try:
        grant.check(f"/{SERVICE.full_name}/{method}", request.SerializeToString())
    except CallError as error:
        return error.reason != error_pb2.ERROR_REASON_SCOPE_MISSING
    return True


def test_every_call_needs_a_scope() -> None:
    assert sorted(method for methods in SCOPES.values() for method in methods) == sorted(METHODS)


@pytest.mark.parametrize(
    ("token", "scopes"),
    [
        ("everything", ["read", "respond", "run", "admin"]),
        ("watcher", ["read"]),
        ("answerer", ["read", "respond"]),
    ],
)
def test_a_token_allows_the_calls_of_its_scopes_alone(
    auth: TokenAuth, token: str, scopes: list[str]
) -> None:
    expected = {method for scope in scopes for method in SCOPES[scope]}
    assert {method for method in METHODS if allowed(auth, token, method)} == expected


def test_a_token_for_one_session_is_of_no_use_for_others(auth: TokenAuth) -> None:
    assert {method for method in METHODS if allowed(auth, "one", method)} == set(SCOPES["run"])
    assert not any(allowed(auth, "one", method, "other") for method in METHODS)


def test_a_token_for_one_session_lists_no_sessions() -> None:
    auth = TokenAuth([("t", Grant(frozenset({"admin"}), "s"))])
    assert not allowed(auth, "t", "ListSessions")
    assert allowed(auth, "t", "ListAgents")
    with pytest.raises(CallError):
        Grant(session_id="s").check(f"/{SERVICE.full_name}/GetSession", b"\xff")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no token"),
        ("# only this", "holds no token"),
        ("a\na read", "holds a token twice"),
        ("good\nbad reed", "Line 2 .* has a scope that there is not; there are read, respond"),
        ("t session:", "may have one session:ID"),
        ("t session:a session:b", "may have one session:ID"),
        ("tökén", "printable ASCII"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_token(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(GrantFileError, match=said) as caught:
        TokenAuth.from_file(path)
    assert not any(word in str(caught.value) for word in ("good", "bad", "tökén"))


async def test_a_call_beyond_the_scopes_is_refused_before_it_is_made(
    auth: TokenAuth, tmp_path: Path
) -> None:
    metadata = (("authorization", "Bearer watcher"),)
    async with fake_sessions(tmp_path / "log") as sessions, running(sessions, auth=auth) as server:
        await sessions.add("s")
        read = service_pb2.GetSessionRequest(session_id="s")
        assert (await server.stub.GetSession(read, metadata=metadata)).session.session_id == "s"
        calls = list(sessions.calls)
        with pytest.raises(aio.AioRpcError) as caught:
            await server.stub.DeleteSession(
                service_pb2.DeleteSessionRequest(session_id="s"), metadata=metadata
            )
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        info = details(caught.value).info
        assert (info.reason, dict(info.metadata)) == ("SCOPE_MISSING", {"scope": "admin"})
        assert sessions.calls == calls


def works(auth: TokenAuth, token: str) -> bool:
    try:
        auth.check((("authorization", f"Bearer {token}"),))
    except CallError:
        return False
    return True


def test_a_changed_file_counts_from_the_next_call_on(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("old\nkept")
    auth = TokenAuth.from_file(path)
    assert works(auth, "old")
    path.write_text("kept\nfresh read")
    assert [works(auth, token) for token in ("old", "kept", "fresh")] == [False, True, True]
    assert auth.check((("authorization", "Bearer fresh"),))[1] == Grant(frozenset({"read"}))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("text", ["", "# all gone\n", "bef\xf6re\n"])
def test_an_emptied_file_revokes_all(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("before")
    auth = TokenAuth.from_file(path)
    path.write_text(text)
    assert not works(auth, "before")
    assert not works(auth, "")
    assert len(errors(caplog)) == 1, "told once, not at each call"
    assert "What can't be read allows nothing." in errors(caplog)[0]
    path.write_text("mended")
    assert [works(auth, token) for token in ("before", "mended")] == [False, True]


def test_a_slip_in_a_line_takes_that_line_away_and_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("revoked\nnarrowed\nkept read")
    auth = TokenAuth.from_file(path)
    path.write_text("narrowed reed\nkept read\nadded read\ntwice\ntwice read")
    expected = {"revoked": 0, "narrowed": 0, "kept": 1, "added": 1, "twice": 0, "reed": 0}
    assert {token: works(auth, token) for token in expected} == expected
    assert [("Line 1" in one, "twice" in one) for one in errors(caplog)] == [
        (True, False),
        (False, True),
    ]
    assert not any(token in caplog.text for token in ("narrowed", "kept", "added"))


@pytest.mark.parametrize("how", ["missing", "unreadable"])
def test_while_there_is_no_file_the_tokens_of_before_stay(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("before")
    auth = TokenAuth.from_file(path)
    path.unlink()
    if how == "unreadable":
        path.mkdir()
    for _ in range(3):
        assert works(auth, "before")
    assert len(errors(caplog)) == 1
    assert "What it held before stays in force." in errors(caplog)[0]
    fresh = tmp_path / "fresh"
    fresh.write_text("after")
    if how == "unreadable":
        path.rmdir()
    fresh.replace(path)
    assert [works(auth, token) for token in ("before", "after")] == [False, True]


def test_a_file_that_can_be_read_again_is_read_although_it_did_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text("before")
    auth = TokenAuth.from_file(path)
    path.write_text("after")

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert works(auth, "before")
    assert [works(auth, token) for token in ("before", "after")] == [False, True]


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o440, False), (0o644, True), (0o660, True)]
)
def test_a_file_that_others_can_read_or_change_is_told_of(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("t0ken")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        TokenAuth.from_file(path)
    assert ("other users" in caplog.text) is warned
    assert "t0ken" not in caplog.text
