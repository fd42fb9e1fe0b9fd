"""How a session's state is kept."""

from agentstream.v1 import service_pb2, session_pb2
from agentstreamd.sessions import stored


def test_settings_are_told_apart_field_by_field() -> None:
    one = session_pb2.SessionConfig(agent="a", env={"A": "1", "B": "2"}, labels={"x": "y"})
    same = session_pb2.SessionConfig(agent="a", env={"B": "2", "A": "1"}, labels={"x": "y"})
    kept = stored.fingerprint(one)
    assert stored.differing(kept, same) == []
    other = session_pb2.SessionConfig(agent="a", env={"A": "1", "B": "3"}, title="T")
    assert stored.differing(kept, other) == ["env", "title", "labels"]


def test_a_fingerprint_holds_no_setting() -> None:
    kept = stored.fingerprint(session_pb2.SessionConfig(env={"TOKEN": "hunter2"}))
    assert b"hunter2" not in kept
    assert b"TOKEN" not in kept


def test_a_queued_message_is_read_back() -> None:
    shown = session_pb2.QueuedMessage(turn_id="t", preview="hello")
    request = service_pb2.SendMessageRequest(session_id="s", client_message_id="c")
    for position in (0, 7, 2**40):
        queued = stored.Queued(shown, request, position)
        assert stored.Queued.decode(queued.encode()) == queued
    empty = stored.Queued(session_pb2.QueuedMessage(), service_pb2.SendMessageRequest(), 0)
    assert stored.Queued.decode(empty.encode()) == empty


def test_a_digest_and_a_message_are_one_value() -> None:
    message = service_pb2.SendMessageResponse(turn_id="t", sequence=3)
    digest = stored.digest(message)
    assert stored.split_digest(stored.with_digest(digest, message)) == (
        digest,
        message.SerializeToString(),
    )
    none, encoded = stored.split_digest(stored.with_digest(b"", message))
    assert none != digest
    assert encoded == message.SerializeToString()


def test_equal_messages_have_equal_digests() -> None:
    one = session_pb2.SessionConfig(labels={"a": "1", "b": "2"})
    other = session_pb2.SessionConfig(labels={"b": "2", "a": "1"})
    assert stored.digest(one) == stored.digest(other)
