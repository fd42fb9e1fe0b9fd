"""What a client did, read from the lines of a transcript that were written to the CLI."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.base import Answer, ClientAction, Prompt
from agentstreamd.adapters.claude import native
from agentstreamd.adapters.claude.answers import is_command
from agentstreamd.adapters.claude.errors import text_in
from agentstreamd.adapters.claude.native import JsonObject, plain
from agentstreamd.adapters.claude.requests import answers_of
from agentstreamd.adapters.claude.rules import is_allowing_rule

_FORM_ACTIONS = {
    "accept": interaction_pb2.FORM_ACTION_ACCEPT,
    "decline": interaction_pb2.FORM_ACTION_DECLINE,
    "cancel": interaction_pb2.FORM_ACTION_CANCEL,
}


def client_actions(messages: Sequence[bytes]) -> list[ClientAction]:
    """Prompts and answers, in order, without prompts that were withdrawn before they were taken up;
    see `Adapter.client_actions`.

    What an answer rejects does not show in it: a rejection is that of a permission, also where
    questions were asked. An acceptance has the arguments that were accepted, changed or not.
    """
    actions = []
    withdrawn: set[str] = set()
    for message in messages:
        try:
            line = native.decode(message)
        except native.Unreadable:
            continue
        if line.type == "user" and line.message is not None:
            # The CLI takes up a prompt that says nothing, too.
            parts = _parts(line.message.content) or (service_pb2.InputPart(text=""),)
            command = len(parts) == 1 and is_command(parts[0].text)
            prompt = Prompt("", line.uuid or "", parts, command=command)
            actions.append(ClientAction(message, prompt=prompt))
        elif line.type == "control_response":
            response = native.fields(message).get("response")
            if isinstance(response, dict) and (answer := answer_of(response)) is not None:
                request_id = text_in(response, "request_id")
                actions.append(ClientAction(message, request_id=request_id, answer=answer))
        elif line.type == "control_request":
            request = native.fields(message).get("request")
            if isinstance(request, dict) and request.get("subtype") == "cancel_async_message":
                withdrawn.add(text_in(request, "message_uuid"))
    return [a for a in actions if a.prompt is None or a.prompt.message_id not in withdrawn - {""}]


def answer_of(response: JsonObject) -> Answer | None:
    """The answer in a `control_response`; None where the CLI would not take it for one."""
    said = response.get("response")
    if text_in(response, "subtype") == "error":
        return _rejection(text_in(response, "error"), False)
    if not isinstance(said, dict):
        return None
    action = _FORM_ACTIONS.get(text_in(said, "action"))
    if action is not None:
        content = said.get("content")
        made = interaction_pb2.FormAnswer(action=action)
        if action == interaction_pb2.FORM_ACTION_ACCEPT and isinstance(content, dict):
            made.content_json = msgspec.json.encode(content).decode()
        return made
    match said.get("behavior"):
        case "allow":
            arguments = said.get("updatedInput")
            answered = answers_of(arguments) if isinstance(arguments, dict) else None
            return _acceptance(said) if answered is None else answered
        case "deny":
            return _rejection(text_in(said, "message"), bool(said.get("interrupt")))
        case _:
            return None


def _acceptance(said: JsonObject) -> interaction_pb2.PermissionAnswer:
    updates = said.get("updatedPermissions")
    for_session = any(
        isinstance(update, dict) and is_allowing_rule(update)
        for update in (updates if isinstance(updates, list) else ())
    )
    answer = interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
        if for_session
        else interaction_pb2.PERMISSION_DECISION_ACCEPT
    )
    if isinstance(arguments := said.get("updatedInput"), dict):
        answer.updated_arguments_json = msgspec.json.encode(arguments).decode()
    return answer


def _rejection(message: str, interrupt: bool) -> interaction_pb2.PermissionAnswer:
    return interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_REJECT, message=message, interrupt=interrupt
    )


def _parts(content: Raw) -> tuple[service_pb2.InputPart, ...]:
    value = plain(content)
    blocks: list[Any] = value if isinstance(value, list) else [{"type": "text", "text": value}]
    made = (_part(block) for block in blocks if isinstance(block, dict))
    return tuple(part for part in made if part is not None)


def _part(block: JsonObject) -> service_pb2.InputPart | None:
    part = service_pb2.InputPart()
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    try:
        data = base64.b64decode(text_in(source, "data"), validate=True)
    except (binascii.Error, ValueError):
        data = text_in(source, "data").encode()
    match block.get("type"):
        case "text" if text_in(block, "text"):
            part.text = text_in(block, "text")
        case "image" if data and text_in(source, "media_type"):
            part.image.media_type = text_in(source, "media_type")
            part.image.data = data
        case "document" if source:
            part.file.name = text_in(block, "title")
            part.file.media_type = text_in(source, "media_type")
            is_text = source.get("type") == "text"
            part.file.data = text_in(source, "data").encode() if is_text else data
        case _:
            return None
    return part
