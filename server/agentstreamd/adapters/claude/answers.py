"""What is written to Claude Code: prompts, answers and control requests, one JSON line each. Pure.

A line the CLI cannot read ends its process, and with it the turn, so nothing is passed on as a
client gave it: every line is made here. Lines are without terminator and have no raw newline.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from agentstream.v1 import agent_pb2, interaction_pb2, service_pb2
from agentstreamd.adapters.base import Answer, CapabilityNotSupported, NotDelivered, Prompt
from agentstreamd.adapters.claude.native import members, plain
from agentstreamd.adapters.claude.requests import NativeRequest, questions_of
from agentstreamd.adapters.claude.rules import (
    Update,
    for_session,
    is_allowing_rule,
    session_rules,
)
from agentstreamd.model import Kind

PERMISSION_MODES = {
    agent_pb2.PERMISSION_MODE_UNSPECIFIED: "default",
    agent_pb2.PERMISSION_MODE_DEFAULT: "default",
    agent_pb2.PERMISSION_MODE_ACCEPT_EDITS: "acceptEdits",
    agent_pb2.PERMISSION_MODE_PLAN: "plan",
    agent_pb2.PERMISSION_MODE_BYPASS: "bypassPermissions",
}
"""The CLI's names of permission modes. It takes any string, so never write another."""

REJECTED = "The user does not want this to be done."
"""Said to the model where a rejection has no message of its own."""

DECLINED = "The user declined to answer the questions."
"""Said to the model where questions are rejected without a message."""

UNANSWERED = "Nobody answered before the turn ended."
"""Said to the model where a turn ends while a request of it waits."""

_COMMAND = re.compile(r"/[^/\s]*(\s|\Z)")
_FORM_ACTIONS = {
    interaction_pb2.FORM_ACTION_ACCEPT: "accept",
    interaction_pb2.FORM_ACTION_DECLINE: "decline",
    interaction_pb2.FORM_ACTION_CANCEL: "cancel",
}
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class EncodedAnswer(NamedTuple):
    """An answer as it is written.

    Attributes:
        line: The line.
        granted: The permission updates it grants, in the CLI's terms. Those of destination
            `session` end with the process and must be given to the next one.
    """

    line: bytes
    granted: tuple[Update, ...] = ()


def encode_prompt(prompt: Prompt) -> bytes:
    """A user message. Raises CapabilityNotSupported for a part the CLI takes no content of."""
    parts = prompt.parts
    content: object
    if len(parts) == 1 and parts[0].WhichOneof("part") == "text":
        content = _text(parts[0].text, prompt.command)
    else:
        content = [_block(part, prompt.command) for part in parts]
    return _line(
        {
            "type": "user",
            "uuid": prompt.message_id,
            "parent_tool_use_id": None,
            "message": {"role": "user", "content": content},
        }
    )


def encode_control(request_id: str, subtype: str, fields: Mapping[str, Any]) -> bytes:
    """A control request of ours: `initialize`, `interrupt`, `set_model {model}`,
    `set_permission_mode {mode}`, `cancel_async_message {message_uuid}`, ...
    """
    return _line(
        {
            "type": "control_request",
            "request_id": request_id,
            "request": {**fields, "subtype": subtype},
        }
    )


def encode_refusal(request_id: str, message: str) -> bytes:
    """The answer to a control request that is not supported; without one the CLI waits for ever."""
    return _line(
        {
            "type": "control_response",
            "response": {"subtype": "error", "request_id": request_id, "error": message},
        }
    )


def encode_answer(request: NativeRequest, answer: Answer) -> EncodedAnswer:
    """The answer to a request that waits. Raises NotDelivered where it is not of its kind."""
    if isinstance(answer, interaction_pb2.FormAnswer):
        return _form(request, answer)
    if isinstance(answer, interaction_pb2.QuestionAnswer):
        return _questions(request, answer)
    if answer.decision == interaction_pb2.PERMISSION_DECISION_REJECT:
        return _deny(request, answer.message or REJECTED, answer.interrupt)
    return _allow(request, answer)


def encode_unanswered(request: NativeRequest) -> bytes:
    """The answer to a request of a turn that ended before anybody had answered it."""
    answer: Answer
    match request.kind:
        case Kind.FORM_REQUESTED:
            answer = interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_CANCEL)
        case Kind.QUESTION_REQUESTED:
            rejected = interaction_pb2.RejectedQuestions(message=UNANSWERED)
            answer = interaction_pb2.QuestionAnswer(rejected=rejected)
        case _:
            answer = interaction_pb2.PermissionAnswer(
                decision=interaction_pb2.PERMISSION_DECISION_REJECT, message=UNANSWERED
            )
    return encode_answer(request, answer).line


def _allow(request: NativeRequest, answer: interaction_pb2.PermissionAnswer) -> EncodedAnswer:
    edited = answer.HasField("updated_arguments_json")
    arguments = answer.updated_arguments_json if edited else request.input_json
    updates = []
    if answer.decision == interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION:
        asked = plain(request.input_json.encode())
        updates += session_rules(
            request.tool_name, asked if isinstance(asked, dict) else {}, request.suggestions
        )
    for suggestion_id in answer.suggestion_ids:
        number = int(suggestion_id) - 1 if suggestion_id.isdecimal() else -1
        if not 0 <= number < len(request.suggestions):
            continue
        update = plain(request.suggestions[number].encode())
        updates.append(update)
        if is_allowing_rule(update) and update.get("destination") != "session":
            # Rules of a workspace that the CLI does not trust are written down and not applied.
            updates.append(for_session(update))
    granted = tuple(update for n, update in enumerate(updates) if update not in updates[:n])
    # Without updatedInput the CLI takes an allowance for a denial.
    response: dict[str, object] = {"behavior": "allow", "updatedInput": _object(arguments)}
    if granted:
        response["updatedPermissions"] = granted
    return EncodedAnswer(_response(request.request_id, response), granted)


def _deny(request: NativeRequest, message: str, interrupt: bool) -> EncodedAnswer:
    response: dict[str, object] = {"behavior": "deny", "message": message}
    if interrupt:
        response["interrupt"] = True
    return EncodedAnswer(_response(request.request_id, response))


def _questions(request: NativeRequest, answer: interaction_pb2.QuestionAnswer) -> EncodedAnswer:
    if answer.WhichOneof("answer") != "answered":
        return _deny(request, answer.rejected.message or DECLINED, answer.rejected.interrupt)
    asked = plain(request.input_json.encode())
    texts = {q.question_id: q.text for q in questions_of(asked if isinstance(asked, dict) else {})}
    answers = {}
    for single in answer.answered.answers:
        if single.question_id not in texts:
            raise NotDelivered(f"there is no question {single.question_id!r} in this request")
        said = [*single.labels, single.text] if single.text else [*single.labels]
        if said:
            answers[texts[single.question_id]] = ", ".join(said)
    arguments: dict[str, object] = dict(members(request.input_json.encode()))
    arguments["answers"] = answers
    response = {"behavior": "allow", "updatedInput": arguments}
    return EncodedAnswer(_response(request.request_id, response))


def _form(request: NativeRequest, answer: interaction_pb2.FormAnswer) -> EncodedAnswer:
    action = _FORM_ACTIONS.get(answer.action, "cancel")
    response: dict[str, object] = {"action": action}
    if action == "accept":
        response["content"] = _object(answer.content_json or "{}")
    return EncodedAnswer(_response(request.request_id, response))


def _response(request_id: str, response: Mapping[str, object]) -> bytes:
    return _line(
        {
            "type": "control_response",
            "response": {"subtype": "success", "request_id": request_id, "response": response},
        }
    )


def _object(json: str) -> object:
    """A JSON object, verbatim where it has no raw newline (JSON allows it between tokens, a line
    does not).
    """
    try:
        msgspec.json.decode(json, type=dict[str, Raw])
    except msgspec.MsgspecError:
        return {}
    return Raw(json.encode()) if "\n" not in json and "\r" not in json else members(json.encode())


def _line(message: Mapping[str, object]) -> bytes:
    line = msgspec.json.encode(message)
    if b"\n" in line or b"\r" in line:
        # Only between the tokens of JSON that was given: inside a string they are escaped.
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line


def is_command(text: str) -> bool:
    """The CLI takes the text for a command, whether or not it knows it; a path it leaves alone."""
    return _COMMAND.match(text) is not None


def _text(text: str, command: bool) -> str:
    """Text that reaches the model, unless it is meant as a command."""
    return text if command or not is_command(text) else f" {text}"


def _block(part: service_pb2.InputPart, command: bool) -> dict[str, object]:
    match part.WhichOneof("part"):
        case "text":
            return {"type": "text", "text": _text(part.text, command)}
        case "image":
            return _image(part.image.media_type, part.image.data)
        case "file":
            return _file(part.file)
        case _:
            raise CapabilityNotSupported("file_input", "the message has a part without content")


def _image(media_type: str, data: bytes) -> dict[str, object]:
    if media_type not in _IMAGE_TYPES:
        raise CapabilityNotSupported("image_input", f"Claude Code takes no {media_type} images")
    return {"type": "image", "source": _base64(media_type, data)}


def _file(file: service_pb2.InputFile) -> dict[str, object]:
    if file.media_type in _IMAGE_TYPES:
        return _image(file.media_type, file.data)
    if file.media_type == "application/pdf":
        source: dict[str, object] = _base64(file.media_type, file.data)
    else:
        try:
            text = file.data.decode()
        except UnicodeDecodeError:
            message = f"Claude Code takes text and PDF files, no {file.media_type}"
            raise CapabilityNotSupported("file_input", message) from None
        source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, "title": file.name}


def _base64(media_type: str, data: bytes) -> dict[str, object]:
    encoded = base64.b64encode(data).decode()
    return {"type": "base64", "media_type": media_type, "data": encoded}
