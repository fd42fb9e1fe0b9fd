"""What a client did, read from the requests it made to the server.

One JSON object each: `method`, `path` (with its query), `body` (read, or as the text that was
sent), and, where it was recorded, the `status` of the answer; requests that were refused did
nothing.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.base import Answer, ClientAction, Prompt
from agentstreamd.adapters.opencode.native import JsonObject, list_in, text_in, texts

_ROUTES = (
    ("prompt", re.compile(r"/session/(?P<session>[^/]+)/(prompt_async|message|command|summarize)")),
    ("abort", re.compile(r"/session/(?P<session>[^/]+)/abort")),
    ("permission", re.compile(r"/permission/(?P<request>[^/]+)/reply")),
    ("permission", re.compile(r"/session/(?P<session>[^/]+)/permissions/(?P<request>[^/]+)")),
    ("question", re.compile(r"/question/(?P<request>[^/]+)/reply")),
    ("reject", re.compile(r"/question/(?P<request>[^/]+)/reject")),
)
_DECISIONS = {
    "once": interaction_pb2.PERMISSION_DECISION_ACCEPT,
    "always": interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
    "reject": interaction_pb2.PERMISSION_DECISION_REJECT,
}


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that does something to a session.

    Attributes:
        action: prompt, abort, permission, question or reject.
        body: What it carries.
        request_id: The request it answers.
        session_id: The native session it is made to; empty where the path does not say.
    """

    action: str
    body: JsonObject
    request_id: str = ""
    session_id: str = ""


def decode(message: bytes) -> ApiCall | None:
    """Read one request; None for one that does nothing to a session, or was refused."""
    try:
        said: Any = msgspec.json.decode(message)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if not isinstance(said, dict) or text_in(said, "method") != "POST":
        return None
    status = said.get("status", 200)
    path = urlsplit(text_in(said, "path")).path
    for action, route in _ROUTES:
        match = route.fullmatch(path)
        if match is not None and not _refused(action, status):
            named = match.groupdict()
            body = _body(said.get("body"))
            return ApiCall(action, body, named.get("request") or "", named.get("session") or "")
    return None


def _refused(action: str, status: Any) -> bool:
    # A message may be in the session although the answer to it is that its turn broke off.
    return not isinstance(status, int) or 400 <= status < (500 if action == "prompt" else 600)


def _body(said: Any) -> JsonObject:
    if isinstance(said, str):  # as it was sent
        try:
            said = msgspec.json.decode(said)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return {}
    return said if isinstance(said, dict) else {}


def client_actions(messages: Sequence[bytes]) -> list[ClientAction]:
    """Prompts and answers, in order; see `Adapter.client_actions`.

    Prompts are those of the session of the first one.
    """
    actions = []
    session_id = ""
    for message in messages:
        call = decode(message)
        if call is None:
            continue
        if call.action == "prompt":
            parts = tuple(_parts(call.body))
            session_id = session_id or call.session_id
            name = text_in(call.body, "command")
            if name:
                said = f"/{name} {text_in(call.body, 'arguments')}".strip()
                parts = (service_pb2.InputPart(text=said),)
            is_prompt = bool(name) or isinstance(call.body.get("parts"), list)
            if is_prompt and call.session_id == session_id:
                prompt = Prompt("", text_in(call.body, "messageID"), parts, bool(name))
                actions.append(ClientAction(message, prompt=prompt))
        elif call.request_id and (answer := _answer(call)) is not None:
            actions.append(ClientAction(message, request_id=call.request_id, answer=answer))
    return actions


def _answer(call: ApiCall) -> Answer | None:
    if call.action == "reject":
        rejected = interaction_pb2.RejectedQuestions()
        return interaction_pb2.QuestionAnswer(rejected=rejected)
    if call.action == "question":
        answered = interaction_pb2.AnsweredQuestions()
        for number, chosen in enumerate(list_in(call.body, "answers")):
            labels = texts(chosen) if isinstance(chosen, list) else []
            answered.answers.add(question_id=str(number), labels=labels)
        return interaction_pb2.QuestionAnswer(answered=answered)
    reply = text_in(call.body, "reply") or text_in(call.body, "response")
    if reply not in _DECISIONS:
        return None
    return interaction_pb2.PermissionAnswer(
        decision=_DECISIONS[reply], message=text_in(call.body, "message")
    )


def _parts(body: JsonObject) -> list[service_pb2.InputPart]:
    parts = []
    for part in list_in(body, "parts"):
        if not isinstance(part, dict):
            continue
        if text_in(part, "type") == "text" and text_in(part, "text"):
            parts.append(service_pb2.InputPart(text=text_in(part, "text")))
        elif text_in(part, "type") == "file":
            parts.append(_file(part))
        elif text_in(part, "type") == "subtask" and text_in(part, "prompt"):
            parts.append(service_pb2.InputPart(text=text_in(part, "prompt")))
    return parts


def _file(part: JsonObject) -> service_pb2.InputPart:
    mime, url = text_in(part, "mime"), text_in(part, "url")
    head, _, encoded = url.partition(",")
    data = b""
    if head.startswith("data:") and head.endswith(";base64"):
        try:
            data = base64.b64decode(encoded)
        except binascii.Error:
            data = b""
    if mime.startswith("image/") and data:
        return service_pb2.InputPart(image=service_pb2.InputImage(media_type=mime, data=data))
    name = text_in(part, "filename") or url.partition("?")[0][:200]
    return service_pb2.InputPart(file=service_pb2.InputFile(name=name, media_type=mime, data=data))
