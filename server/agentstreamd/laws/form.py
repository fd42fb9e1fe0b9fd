"""What the contract demands of every single event: ids, enums, JSON, sizes, and laws 8 and 9."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from agentstream.v1 import (
    blob_pb2,
    event_pb2,
    interaction_pb2,
    item_pb2,
)
from agentstreamd.laws.violation import FORM, Report

MAX_EVENT_BYTES = 1024 * 1024
"""The most bytes of a serialized event without `raw`."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")

# Enums whose zero value is never sent, and strings that are never empty.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "SessionStarted": ("agent", "permission_mode"),
    "SessionEnded": ("reason",),
    "TurnEnded": ("status",),
    "Item": ("item_id", "kind", "role", "status"),
    "ItemDelta": ("item_id", "kind"),
    "ToolCallPart": ("name", "call_id"),
    "ToolResultPart": ("call_id",),
    "FileRefPart": ("path", "action"),
    "ReasoningPart": ("visibility",),
    "StatusPart": ("label",),
    "ImagePart": ("media_type",),
    "BlobRef": ("blob_id", "sha256", "media_type"),
    "PermissionRequest": ("request_id", "kind", "allowed_decisions"),
    "PermissionSuggestion": ("suggestion_id",),
    "PermissionAnswer": ("decision",),
    "PermissionResolved": ("request_id", "outcome"),
    "QuestionRequest": ("request_id", "questions"),
    "Question": ("question_id", "text"),
    "QuestionOption": ("label",),
    "QuestionResolved": ("request_id", "outcome"),
    "SingleAnswer": ("question_id",),
    "FormRequest": ("request_id",),
    "FormAnswer": ("action",),
    "FormResolved": ("request_id", "outcome"),
    "QueuedMessage": ("turn_id",),
    "McpServerState": ("name",),
    "AgentUnparsed": ("error",),
}


def check_form(event: event_pb2.Event, raw: bool | None, report: Report) -> None:
    """Check one event by itself.

    `raw` says whether native messages were asked for; None when that is not known.
    """
    if event.WhichOneof("payload") is None:
        report(FORM, "the event has no payload")
    if not event.event_id:
        report(FORM, "the event has no event_id")
    if event.source == event_pb2.EVENT_SOURCE_UNSPECIFIED:
        report(FORM, "Event.source is unspecified")
    _check_size(event, report)
    if event.metadata_json and not isinstance(_parse(event.metadata_json), dict):
        report(FORM, "metadata_json is not a JSON object")
    if event.synthetic and event.source != event_pb2.EVENT_SOURCE_DAEMON:
        report(8, "the event is synthetic, but its source is not the daemon")
    _check_raw(event, raw, report)
    for message in _messages(event):
        _check_fields(message, report)
        if check := _CHECKS.get(message.DESCRIPTOR.name):
            check(message, report)


def check_item_json(item: item_pb2.Item, synthetic: bool, report: Report) -> None:
    """Check that the JSON of a completed item is whole; a failed one's may have been cut off."""
    if item.status != item_pb2.ITEM_STATUS_COMPLETED:
        return
    for part in item.content:
        if part.HasField("external"):
            continue
        kind = part.WhichOneof("part")
        if kind == "json" and _parse(part.json.json) is _INVALID:
            report(FORM, f"a json part of item {item.item_id} is not valid JSON")
        if kind == "tool_call":
            arguments = part.tool_call.arguments_json
            # A call that is made up to stand before a stray result has no arguments.
            if (arguments or not synthetic) and _parse(arguments) is _INVALID:
                report(FORM, f"arguments_json of item {item.item_id} is not valid JSON")


_INVALID = object()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse(text: str) -> object:
    """Parse JSON; `_INVALID` where it is none."""
    try:
        # Numbers stay text: Python refuses to convert integers of more than 4300 digits.
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except RecursionError:
        # Nested deeper than Python goes, which is no fault of the text.
        return None
    except ValueError:
        return _INVALID


def _check_size(event: event_pb2.Event, report: Report) -> None:
    if event.ByteSize() <= MAX_EVENT_BYTES:
        return
    without_raw = event_pb2.Event()
    without_raw.CopyFrom(event)
    without_raw.ClearField("raw")
    if (size := without_raw.ByteSize()) > MAX_EVENT_BYTES:
        report(FORM, f"the event has {size} bytes without raw, more than {MAX_EVENT_BYTES}")


def _check_raw(event: event_pb2.Event, raw: bool | None, report: Report) -> None:
    if raw is False and event.raw:
        report(9, "raw was not asked for, but the event has it")
    if raw is True and not event.raw and event.source == event_pb2.EVENT_SOURCE_AGENT:
        report(9, "raw was asked for, but this event of the agent has none")
    if any(native.WhichOneof("content") is None for native in event.raw):
        report(9, "a native message in raw is empty")


def _messages(message: Message) -> Iterator[Message]:
    """Every message inside `message`, but well-known types and entries of maps."""
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is None or kind.GetOptions().map_entry or kind.file.package != "agentstream.v1":
            continue
        for inner in value if field.is_repeated else (value,):
            yield inner
            yield from _messages(inner)


def _check_fields(message: Message, report: Report) -> None:
    name = message.DESCRIPTOR.name
    for field in _REQUIRED.get(name, ()):
        if not getattr(message, field):
            report(FORM, f"{name}.{field} is missing")
    for descriptor, value in message.ListFields():
        if descriptor.enum_type is None:
            continue
        known = descriptor.enum_type.values_by_number
        numbers = value if descriptor.is_repeated else (value,)
        if any(number not in known for number in numbers):
            report(FORM, f"{name}.{descriptor.name} has a value that the contract does not have")


def _check_part(part: item_pb2.ContentPart, report: Report) -> None:
    if part.WhichOneof("part") is None:
        report(FORM, "a content part is empty")


def _check_image(image: item_pb2.ImagePart, report: Report) -> None:
    if image.WhichOneof("source") == "data" and not image.data:
        report(FORM, "an image has no data")


def _check_status(status: item_pb2.StatusPart, report: Report) -> None:
    if status.label and not _LABEL.fullmatch(status.label):
        report(FORM, f"the status label {status.label!r} is not lower_snake_case")


def _check_reasoning(reasoning: item_pb2.ReasoningPart, report: Report) -> None:
    if reasoning.visibility == item_pb2.REASONING_VISIBILITY_REDACTED and reasoning.text:
        report(FORM, "reasoning is redacted and has text all the same")


def _check_blob(blob: blob_pb2.BlobRef, report: Report) -> None:
    if not _SHA256.fullmatch(blob.sha256):
        report(FORM, f"sha256 of blob {blob.blob_id} is not 64 lower-case hexadecimal digits")


def _check_updated(updated: event_pb2.SessionUpdated, report: Report) -> None:
    if not updated.ListFields():
        report(FORM, "session_updated says nothing")


def _check_turn_ended(ended: event_pb2.TurnEnded, report: Report) -> None:
    if (ended.status == event_pb2.TURN_STATUS_FAILED) and not ended.HasField("error"):
        report(FORM, "the turn failed, but has no error")
    if (ended.status == event_pb2.TURN_STATUS_SUPERSEDED) != bool(ended.superseded_by):
        report(FORM, "superseded_by is set exactly when a turn ends as superseded")


def _check_permission(request: interaction_pb2.PermissionRequest, report: Report) -> None:
    if 0 in request.allowed_decisions:
        report(FORM, "allowed_decisions holds an unspecified decision")
    _check_unique((one.suggestion_id for one in request.suggestions), "suggestion_id", report)
    for suggestion in request.suggestions:
        _check_json(suggestion.native_json, "native_json of a suggestion", report)
    if not request.HasField("arguments_external"):
        _check_json(request.arguments_json, "arguments_json of a permission request", report)


def _check_permission_answer(answer: interaction_pb2.PermissionAnswer, report: Report) -> None:
    if answer.HasField("updated_arguments_json"):
        _check_json(answer.updated_arguments_json or "-", "updated_arguments_json", report)


def _check_questions(request: interaction_pb2.QuestionRequest, report: Report) -> None:
    _check_unique((one.question_id for one in request.questions), "question_id", report)
    for question in request.questions:
        _check_unique((one.label for one in question.options), "option label", report)
        if not question.options and not question.free_text:
            report(FORM, f"question {question.question_id} takes neither options nor free text")


def _check_form_request(request: interaction_pb2.FormRequest, report: Report) -> None:
    _check_json(request.schema_json, "schema_json of a form", report)


def _check_form_answer(answer: interaction_pb2.FormAnswer, report: Report) -> None:
    _check_json(answer.content_json, "content_json of a form's answer", report)


def _check_unique(values: Iterator[str], what: str, report: Report) -> None:
    seen = set()
    for value in values:
        if value in seen:
            report(FORM, f"the {what} {value!r} comes twice in one request")
        seen.add(value)


def _check_json(text: str, what: str, report: Report) -> None:
    if text and _parse(text) is _INVALID:
        report(FORM, f"{what} is not valid JSON")


_CHECKS: dict[str, Callable[[Any, Report], None]] = {
    "ContentPart": _check_part,
    "ImagePart": _check_image,
    "StatusPart": _check_status,
    "ReasoningPart": _check_reasoning,
    "BlobRef": _check_blob,
    "SessionUpdated": _check_updated,
    "TurnEnded": _check_turn_ended,
    "PermissionRequest": _check_permission,
    "PermissionAnswer": _check_permission_answer,
    "QuestionRequest": _check_questions,
    "FormRequest": _check_form_request,
    "FormAnswer": _check_form_answer,
}
