"""How a session's state is kept beside its events: keys and encodings."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from agentstream.v1 import service_pb2, session_pb2
from agentstreamd.events.log import blob_value_key

SESSION = "session"
"""`Session` without secrets, at the last moment nothing was under way (or as a turn began); its
`latest_sequence` is where a restart begins to read the stream."""
CONFIG = "config"
"""`SessionConfig` as it is now, secrets included."""
CREATED = "created"
"""Fingerprint of the settings the session was created with."""
SETTINGS = "settings"
"""`SessionUpdated`: what `session_started` and `session_updated` have said so far."""
ADAPTER = "adapter"
"""The adapter's private state."""

_DIGEST_BYTES = 32


def digest(message: Message) -> bytes:
    """Tells two messages apart."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()


def fingerprint(config: session_pb2.SessionConfig) -> bytes:
    """Tells settings apart, field by field, without holding them."""
    digests: dict[str, str] = {}
    for field, _ in config.ListFields():
        alone: Any = session_pb2.SessionConfig()
        alone.CopyFrom(config)
        for other, _ in config.ListFields():
            if other.name != field.name:
                alone.ClearField(other.name)
        digests[field.name] = digest(alone).hex()
    return json.dumps(digests, sort_keys=True).encode()


def differing(created: bytes, config: session_pb2.SessionConfig) -> list[str]:
    """Names of the fields in which `config` is not what `created` is the fingerprint of."""
    before: dict[str, str] = json.loads(created)
    now: dict[str, str] = json.loads(fingerprint(config))
    names = (field.name for field in session_pb2.SessionConfig.DESCRIPTOR.fields)
    return [name for name in names if before.get(name) != now.get(name)]


def message_key(client_message_id: str) -> str:
    """Key of what was answered to a message: digest of the message, `SendMessageResponse`."""
    return f"message/{client_message_id}"


def intent_key(request_id: str) -> str:
    """Key of an answer that is being delivered. It holds nothing: an answer may be a secret."""
    return f"intent/{request_id}"


def resolution_key(request_id: str) -> str:
    """Key of how a request was resolved: digest of the answer, `RespondResponse`."""
    return f"resolution/{request_id}"


def turn_key(turn_id: str) -> str:
    """Key of how a turn ended: `InterruptTurnResponse`."""
    return f"turn/{turn_id}"


def blob_key(blob_id: str) -> str:
    """Key of what a blob is: `BlobRef`."""
    return blob_value_key(blob_id)


def queue_key(turn_id: str) -> str:
    """Key of a message that waits for its turn."""
    return f"queue/{turn_id}"


def with_digest(of: bytes, message: Message) -> bytes:
    """A digest (empty for none) and a message, as one value."""
    return of.ljust(_DIGEST_BYTES, b"\0") + message.SerializeToString()


def split_digest(value: bytes) -> tuple[bytes, bytes]:
    """The digest and the encoded message of a value that `with_digest` made."""
    return value[:_DIGEST_BYTES], value[_DIGEST_BYTES:]


def steer_key(message_id: str) -> str:
    """Key of a message that is being put into a running turn: `Queued`."""
    return f"steer/{message_id}"


@dataclass(frozen=True, slots=True)
class Queued:
    """A message that waits for its turn, or is on its way into one.

    Attributes:
        shown: As clients see it.
        request: The message.
        position: Its place in the order of acceptance; sequence of the event before it.
    """

    shown: session_pb2.QueuedMessage
    request: service_pb2.SendMessageRequest
    position: int

    def encode(self) -> bytes:
        """As one value."""
        shown = self.shown.SerializeToString()
        head = self.position.to_bytes(8) + len(shown).to_bytes(4)
        return head + shown + self.request.SerializeToString()

    @classmethod
    def decode(cls, value: bytes) -> "Queued":
        """From what `encode` made."""
        end = 12 + int.from_bytes(value[8:12])
        return cls(
            session_pb2.QueuedMessage.FromString(value[12:end]),
            service_pb2.SendMessageRequest.FromString(value[end:]),
            int.from_bytes(value[:8]),
        )


def without_secrets(config: session_pb2.SessionConfig) -> session_pb2.SessionConfig:
    """The settings as answers show them: names of variables and headers, no values."""
    shown = session_pb2.SessionConfig()
    shown.CopyFrom(config)
    # Lists: setting a value while a map is iterated can make the iteration pass over others.
    for name in list(shown.env):
        shown.env[name] = ""
    for server in shown.mcp_servers:
        for name in list(server.stdio.env) if server.HasField("stdio") else ():
            server.stdio.env[name] = ""
        for name in list(server.http.headers) if server.HasField("http") else ():
            server.http.headers[name] = ""
    return shown
