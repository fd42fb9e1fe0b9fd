"""What a client did, read from the lines of a transcript that were written to the server. Pure."""

import base64
import binascii
from collections.abc import Sequence

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.base import Answer, ClientAction, Prompt
from agentstreamd.adapters.codex.native import (
    JsonObject,
    as_object,
    dump_text,
    objects_in,
    plain,
    text_in,
    texts_in,
)
from agentstreamd.adapters.codex.requests import request_id_of

_FORM_ACTIONS = {
    "accept": interaction_pb2.FORM_ACTION_ACCEPT,
    "decline": interaction_pb2.FORM_ACTION_DECLINE,
    "cancel": interaction_pb2.FORM_ACTION_CANCEL,
}
_ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
_FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
_REJECT = interaction_pb2.PERMISSION_DECISION_REJECT


def client_actions(messages: Sequence[bytes]) -> list[ClientAction]:
    """Prompts and answers, in order; see `Adapter.client_actions`.

    Requests of MCP servers take two kinds of answer that look alike: those with content are taken
    for forms, the others for permissions.
    """
    actions: list[ClientAction] = []
    for message in messages:
        said = plain(message)
        if not isinstance(said, dict):
            continue
        if said.get("method") == "turn/start":
            params = as_object(said.get("params"))
            # One without input begins a turn all the same.
            parts = _parts(objects_in(params, "input"))
            prompt = Prompt("", text_in(params, "clientUserMessageId"), parts)
            call = dump_text(said.get("id"))
            actions.append(ClientAction(message, prompt=prompt, call=call))
        elif said.get("method") == "thread/compact/start":
            command = (service_pb2.InputPart(text="/compact"),)
            prompt, call = Prompt("", "", command, command=True), dump_text(said.get("id"))
            actions.append(ClientAction(message, prompt=prompt, call=call))
        elif "method" not in said and said.get("id") is not None:
            answer = answer_of(said)
            if answer is not None:
                request_id = request_id_of(dump_text(said["id"]))
                actions.append(ClientAction(message, request_id=request_id, answer=answer))
    return actions


def refused(message: bytes) -> str:
    """The request that the server answers with an error, see `Adapter.refused`."""
    said = plain(message) if b'"error"' in message else None
    return dump_text(said.get("id")) if isinstance(said, dict) and "error" in said else ""


def answer_of(said: JsonObject) -> Answer | None:
    """The answer in a response of the client; None where it is none that is known."""
    if "error" in said:
        return interaction_pb2.PermissionAnswer(decision=_REJECT)
    result = as_object(said.get("result"))
    if "decision" in result:
        return _decision(result["decision"])
    if "answers" in result:
        return _answered(as_object(result["answers"]))
    if "permissions" in result:
        if not as_object(result["permissions"]):
            return interaction_pb2.PermissionAnswer(decision=_REJECT)
        for_session = result.get("scope") == "session"
        return interaction_pb2.PermissionAnswer(decision=_FOR_SESSION if for_session else _ACCEPT)
    if "action" in result:
        return _elicited(result)
    return None


def _decision(decision: object) -> interaction_pb2.PermissionAnswer:
    made = interaction_pb2.PermissionAnswer(decision=_REJECT)
    if decision == "accept" or isinstance(decision, dict):
        made.decision = _ACCEPT
    elif decision == "acceptForSession":
        made.decision = _FOR_SESSION
    elif decision == "cancel":
        made.interrupt = True
    return made


def _answered(answers: JsonObject) -> interaction_pb2.QuestionAnswer:
    made = interaction_pb2.QuestionAnswer()
    if not answers:
        made.rejected.SetInParent()
    for question_id, answer in answers.items():
        labels = texts_in(as_object(answer), "answers")
        made.answered.answers.add(question_id=question_id, labels=labels)
    return made


def _elicited(result: JsonObject) -> Answer:
    action = _FORM_ACTIONS.get(text_in(result, "action"), interaction_pb2.FORM_ACTION_CANCEL)
    content, meta = as_object(result.get("content")), as_object(result.get("_meta"))
    if content:
        return interaction_pb2.FormAnswer(action=action, content_json=dump_text(content))
    accepted = action == interaction_pb2.FORM_ACTION_ACCEPT
    for_session = meta.get("persist") == "session"
    return interaction_pb2.PermissionAnswer(
        decision=_REJECT if not accepted else _FOR_SESSION if for_session else _ACCEPT
    )


def _parts(content: list[JsonObject]) -> tuple[service_pb2.InputPart, ...]:
    made: list[service_pb2.InputPart] = []
    for part in content:
        url = text_in(part, "url")
        if text_in(part, "text"):
            made.append(service_pb2.InputPart(text=part["text"]))
        elif url.startswith("data:") and ";base64," in url:
            head, _, body = url.partition(";base64,")
            try:
                data = base64.b64decode(body, validate=True)
            except (binascii.Error, ValueError):
                continue
            image = service_pb2.InputImage(media_type=head.removeprefix("data:"), data=data)
            made.append(service_pb2.InputPart(image=image))
        elif path := text_in(part, "path"):
            made.append(service_pb2.InputPart(image=service_pb2.InputImage(path=path)))
    return tuple(made)
