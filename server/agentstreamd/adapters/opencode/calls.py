"""What the driver asks of the server: prompts, answers and the rest, as HTTP requests. Pure."""

import base64
import itertools
import secrets
import string
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.base import Answer, Prompt
from agentstreamd.adapters.opencode.native import dump
from agentstreamd.adapters.opencode.requests import SUGGESTION_ID, Ask, Grant

REJECTED = "The user does not allow this."
"""What the model is told of a rejection without a message. Without any, OpenCode ends the turn."""

_ALPHABET = string.ascii_letters + string.digits
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        method: The HTTP method.
        path: The path, without query.
        body: What is sent as JSON; None for nothing.
    """

    method: str
    path: str
    body: dict[str, Any] | None = None

    def line(self) -> bytes:
        """The request as the normalizer takes it."""
        return dump({"method": self.method, "path": self.path, "body": self.body}).encode()


def new_message_id() -> str:
    """A native message id of our own, later ones being greater, as the server's are."""
    moment = (time.time_ns() // 1_000_000 * 0x1000 + next(_counter) % 0x1000) & 0xFFFFFFFFFFFF
    return f"msg_{moment:012x}{''.join(secrets.choice(_ALPHABET) for _ in range(14))}"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What every prompt carries; empty for the server's default."""

    model: str = ""
    agent: str = ""
    variant: str = ""
    system: str = ""


def create(
    *, title: str, settings: TurnSettings, metadata: dict[str, str], rules: list[dict[str, str]]
) -> Call:
    """Begin a native session with these rules of permission."""
    body: dict[str, Any] = {"metadata": metadata}
    if title:
        body["title"] = title
    if settings.agent:
        body["agent"] = settings.agent
    if settings.model:
        provider, _, model = settings.model.partition("/")
        body["model"] = {"providerID": provider, "id": model}  # the prompt says modelID
    if rules:
        body["permission"] = rules
    return Call("POST", "/session", body)


def prompt(session_id: str, message_id: str, sent: Prompt, settings: TurnSettings) -> Call:
    """Send a message."""
    body: dict[str, Any] = {
        "messageID": message_id,
        "parts": [_part(part) for part in sent.parts],
    }
    if settings.model:
        provider, _, model = settings.model.partition("/")
        body["model"] = {"providerID": provider, "modelID": model}
    for key in ("agent", "variant", "system"):
        if value := getattr(settings, key):
            body[key] = value
    return Call("POST", f"/session/{session_id}/prompt_async", body)


def command(
    session_id: str, message_id: str, name: str, arguments: str, settings: TurnSettings
) -> Call:
    """Carry out a command; answered when its turn is over."""
    body: dict[str, Any] = {"messageID": message_id, "command": name, "arguments": arguments}
    for key in ("model", "agent", "variant"):  # the model is one text here; no system prompt
        if value := getattr(settings, key):
            body[key] = value
    return Call("POST", f"/session/{session_id}/command", body)


def compact(session_id: str, model: str) -> Call:
    """Compact the conversation; answered when that is done."""
    provider, _, name = model.partition("/")
    body = {"providerID": provider, "modelID": name}
    return Call("POST", f"/session/{session_id}/summarize", body)


def abort(session_id: str) -> Call:
    """Stop the running turn."""
    return Call("POST", f"/session/{session_id}/abort")


def remember(session_id: str, grants: Iterable[Grant]) -> Call:
    """Have the native session remember what was given for it; from its next turn on."""
    return Call("PATCH", f"/session/{session_id}", {"permission": _rules(grants)})


def once(ask: Ask) -> Call:
    """Give a permission, this once."""
    return Call("POST", f"/permission/{ask.request_id}/reply", {"reply": "once"})


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer for the server.

    Attributes:
        call: The request that carries it.
        granted: What it gives for the session.
        abort: It also stops the turn.
    """

    call: Call
    granted: list[Grant] = field(default_factory=list)
    abort: bool = False


def answer(ask: Ask, given: Answer) -> Encoded:
    """An answer to a request."""
    match given:
        case interaction_pb2.PermissionAnswer():
            return _permission(ask, given)
        case interaction_pb2.QuestionAnswer() if given.WhichOneof("answer") == "answered":
            chosen: list[list[str]] = [[] for _ in ask.options]
            for single in given.answered.answers:
                texts = [*single.labels, *([single.text] if single.text else [])]
                chosen[int(single.question_id)] = texts
            body = {"answers": chosen}
            return Encoded(Call("POST", f"/question/{ask.request_id}/reply", body))
        case _:
            return Encoded(Call("POST", f"/question/{ask.request_id}/reject"))


def _permission(ask: Ask, given: interaction_pb2.PermissionAnswer) -> Encoded:
    path = f"/permission/{ask.request_id}/reply"
    if given.decision == interaction_pb2.PERMISSION_DECISION_REJECT:
        if given.interrupt and not given.message:
            return Encoded(Call("POST", path, {"reply": "reject"}))
        body = {"reply": "reject", "message": given.message or REJECTED}
        return Encoded(Call("POST", path, body), abort=given.interrupt)
    for_session = (
        given.decision == interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
        or SUGGESTION_ID in given.suggestion_ids
    )
    # Never "always": that would hold for all sessions in the directory.
    return Encoded(once(ask), granted=ask.grants if for_session else [])


def _rules(grants: Iterable[Grant]) -> list[dict[str, str]]:
    return [
        {"permission": permission, "pattern": pattern, "action": "allow"}
        for permission, pattern in grants
    ]


def _part(part: service_pb2.InputPart) -> dict[str, str]:
    match part.WhichOneof("part"):
        case "image":
            kind = part.image.media_type.removeprefix("image/")
            return _file(f"image.{kind}", part.image.media_type, part.image.data)
        case "file":
            return _file(part.file.name, part.file.media_type, part.file.data)
        case _:
            return {"type": "text", "text": part.text}


def _file(name: str, media_type: str, data: bytes) -> dict[str, str]:
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "file", "mime": media_type, "filename": name, "url": url}
