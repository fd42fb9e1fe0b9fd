"""What is written to Amp, and what a client did, read from it again."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from agentstream.v1 import interaction_pb2, service_pb2
from agentstreamd.adapters.amp import asks, native
from agentstreamd.adapters.amp.content import blocks_of, parts_of
from agentstreamd.adapters.base import CapabilityNotSupported, ClientAction, Prompt

INTERRUPT = b'{"type":"user","message":{"role":"user","content":[]}}'
"""A message without content: it cuts the running turn and says nothing to the model."""


def encode_prompt(prompt: Prompt, *, images: bool) -> bytes:
    """A user message. Raises CapabilityNotSupported for a part that this Amp does not take."""
    content: list[dict[str, Any]] = []
    for part in prompt.parts:
        match part.WhichOneof("part"):
            case "text":
                content.append({"type": "text", "text": part.text})
            case "image" if images:
                source = {
                    "type": "base64",
                    "media_type": part.image.media_type,
                    "data": base64.b64encode(part.image.data).decode(),
                }
                content.append({"type": "image", "source": source})
            case "image":
                raise CapabilityNotSupported("image_input", "This version of Amp takes no images.")
            case _:
                raise CapabilityNotSupported("file_input", "Amp takes no files in messages.")
    line = {"type": "user", "message": {"role": "user", "content": content}}
    return json.dumps(line, ensure_ascii=True).encode()


def client_actions(messages: Sequence[bytes]) -> list[ClientAction]:
    """Prompts and answers, in order; see `Adapter.client_actions`."""
    actions = []
    for message in messages:
        try:
            line = native.members(message)
        except native.Unreadable:
            continue
        kind = native.text(line.get("type"))
        if kind == "user":
            content = native.fields(line.get("message")).get("content")
            if parts := _input_parts(content):
                actions.append(ClientAction(message, prompt=Prompt("", "", parts)))
        elif kind == asks.ANSWERED:
            answer = interaction_pb2.PermissionAnswer(
                decision=_DECISIONS.get(
                    native.text(line.get("decision")),
                    interaction_pb2.PERMISSION_DECISION_REJECT,
                ),
                message=native.text(line.get("message")),
            )
            request_id = native.text(line.get("request_id"))
            actions.append(ClientAction(message, request_id=request_id, answer=answer))
    return actions


_DECISIONS = {
    "accept": interaction_pb2.PERMISSION_DECISION_ACCEPT,
    "accept_for_session": interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
}


def _input_parts(content: Raw | None) -> tuple[service_pb2.InputPart, ...]:
    made = []
    for part in parts_of(blocks_of(content)):
        given = service_pb2.InputPart()
        match part.WhichOneof("part"):
            case "text":
                given.text = part.text.text
            case "image":
                given.image.media_type = part.image.media_type
                given.image.data = part.image.data
            case _:
                continue
        made.append(given)
    return tuple(made)
