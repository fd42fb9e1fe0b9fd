"""What is written to `codex app-server`, encoded. Pure.

Encoding is strict: one byte that is not UTF-8 ends the server, and with it every session on it.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.base import Answer, CapabilityNotSupported, NotDelivered, Prompt
from agentstreamd.adapters.codex.native import JsonObject, as_object, plain
from agentstreamd.adapters.codex.requests import ACCEPT, FOR_SESSION, NativeRequest
from agentstreamd.model import Kind

METHOD_NOT_FOUND = -32601


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line without terminator. Raises ValueError for what is not Unicode."""
    try:
        line = msgspec.json.encode(message)
    except (UnicodeError, TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"cannot be sent to Codex: {error}") from error
    line.decode("utf-8", "strict")
    if b"\n" in line:  # escaped by every JSON encoder; a raw one would be two messages
        raise ValueError("cannot be sent to Codex: it holds a line feed")
    return line


def encode_request(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request of ours."""
    return encode({"id": request_id, "method": method, "params": params})


def encode_notification(method: str) -> bytes:
    """A notification of ours."""
    return encode({"method": method})


def encode_result(native_id: str, result: Mapping[str, Any]) -> bytes:
    """The answer to a request of the server, whose id is given verbatim."""
    return encode({"id": msgspec.Raw(native_id.encode()), "result": result})


def encode_refusal(native_id: str, message: str) -> bytes:
    """An error as the answer to a request of the server."""
    error = {"code": METHOD_NOT_FOUND, "message": message}
    return encode({"id": msgspec.Raw(native_id.encode()), "error": error})


def encode_answer(request: NativeRequest, answer: Answer) -> bytes:
    """A person's answer. Raises `NotDelivered` where it is not of the request's kind."""
    match answer:
        case interaction_pb2.PermissionAnswer() if request.kind is Kind.PERMISSION_REQUESTED:
            result = _permission(request, answer)
        case interaction_pb2.QuestionAnswer() if request.kind is Kind.QUESTION_REQUESTED:
            result = _questions(answer)
        case interaction_pb2.FormAnswer() if request.kind is Kind.FORM_REQUESTED:
            result = _form(answer)
        case _:
            raise NotDelivered("The answer is not of the request's kind.")
    return encode_result(request.native_id, result)


def _permission(request: NativeRequest, answer: interaction_pb2.PermissionAnswer) -> JsonObject:
    accepted = answer.decision in (ACCEPT, FOR_SESSION)
    for_session = answer.decision == FOR_SESSION
    granted = [request.suggestions[name] for name in answer.suggestion_ids if accepted]
    match request.method:
        case "item/permissions/requestApproval":
            if not accepted:
                return {"permissions": {}, "scope": "turn"}
            wanted = as_object(request.params.get("permissions"))
            given = {name: value for name, value in wanted.items() if value is not None}
            return {"permissions": given, "scope": "session" if for_session else "turn"}
        case "mcpServer/elicitation/request":
            if not accepted:
                return {"action": "decline", "content": None, "_meta": None}
            meta = granted[0] if granted else {"persist": "session"} if for_session else None
            return {"action": "accept", "content": {}, "_meta": meta}
        case _:
            if granted:
                return {"decision": granted[0]}
            decision = "acceptForSession" if for_session else "accept" if accepted else "decline"
            return {"decision": decision}


def _questions(answer: interaction_pb2.QuestionAnswer) -> JsonObject:
    if answer.WhichOneof("answer") != "answered":
        return {"answers": {}}
    answers = {}
    for single in answer.answered.answers:
        said = [*single.labels, *([single.text] if single.text else [])]
        answers[single.question_id] = {"answers": said}
    return {"answers": answers}


def _form(answer: interaction_pb2.FormAnswer) -> JsonObject:
    if answer.action == interaction_pb2.FORM_ACTION_ACCEPT:
        content = json.loads(answer.content_json) if answer.content_json else {}
        return {"action": "accept", "content": content, "_meta": None}
    declined = answer.action == interaction_pb2.FORM_ACTION_DECLINE
    return {"action": "decline" if declined else "cancel", "content": None, "_meta": None}


def prompt_input(prompt: Prompt) -> list[JsonObject]:
    """The input of a message. Raises `CapabilityNotSupported` for files."""
    made: list[JsonObject] = []
    for part in prompt.parts:
        match part.WhichOneof("part"):
            case "text":
                made.append({"type": "text", "text": part.text, "text_elements": []})
            case "image":
                data = base64.b64encode(part.image.data).decode()
                url = f"data:{part.image.media_type};base64,{data}"
                made.append({"type": "image", "url": url})
            case _:
                raise CapabilityNotSupported("file_input", "Codex takes text and images only.")
    return made


def id_of(line: bytes) -> str:
    """The JSON text of the id of a line that was written; empty where there is none."""
    value = plain(line)
    if not isinstance(value, dict) or value.get("id") is None:
        return ""
    return msgspec.json.encode(value["id"]).decode()
