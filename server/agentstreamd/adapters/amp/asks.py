"""Permissions: what Amp's delegate program is asked, as a message, and as a request.

Amp has no message for it: it runs a program. The driver makes these messages of what that program
passes on, so that they are replayed like all others:

    {"type": "agentstream/permission", "request_id", "tool", "tool_use_id", "thread_id", "cwd",
     "arguments"}
    {"type": "agentstream/permission_withdrawn", "request_id"}

`tool_use_id` is empty where the CLI does not tell it. An answer is written as

    {"type": "agentstream/permission_answer", "request_id", "decision", "message"}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.amp import native
from agentstreamd.adapters.amp.files import (
    COMMAND_TOOLS,
    FILE_CHANGE_TOOLS,
    NETWORK_TOOLS,
    command_of,
    directory_of,
    wanted_files,
)
from agentstreamd.adapters.amp.native import Fields
from agentstreamd.adapters.amp.tools import Tools
from agentstreamd.model import Draft, Kind, event

ASKED = "agentstream/permission"
WITHDRAWN = "agentstream/permission_withdrawn"
ANSWERED = "agentstream/permission_answer"

DECISIONS = (
    interaction_pb2.PERMISSION_DECISION_ACCEPT,
    interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
    interaction_pb2.PERMISSION_DECISION_REJECT,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What the delegate program was asked.

    Attributes:
        tool: The tool.
        arguments_json: Its arguments, as Amp wrote them.
        tool_use_id: The call; empty where the CLI does not tell it.
        thread_id: Amp's thread.
        cwd: Where the program was run.
    """

    tool: str
    arguments_json: str
    tool_use_id: str = ""
    thread_id: str = ""
    cwd: str = ""

    @property
    def arguments(self) -> Any:
        """The arguments as plain values; None where they are no JSON."""
        return native.plain(self.arguments_json.encode("utf-8", "replace"))


def encode_ask(request_id: str, ask: Ask) -> bytes:
    """The message for an ask."""
    text = ask.arguments_json.strip()
    arguments: Any
    try:
        msgspec.json.decode(text)
        arguments = msgspec.Raw(text.replace("\n", " ").encode())
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        arguments = text.encode("utf-8", "replace").decode()
    return msgspec.json.encode(
        {
            "type": ASKED,
            "request_id": request_id,
            "tool": ask.tool,
            "tool_use_id": ask.tool_use_id,
            "thread_id": ask.thread_id,
            "cwd": ask.cwd,
            "arguments": arguments,
        }
    )


def encode_withdrawn(request_id: str) -> bytes:
    """The message for an ask that nobody waits for any more."""
    return json.dumps({"type": WITHDRAWN, "request_id": request_id}).encode()


def requested(line: Fields, tools: Tools, raw: tuple[bytes, ...]) -> list[Draft]:
    """`permission_requested` for an ask; the call is looked for among those of `tools`."""
    tool = native.text(line.get("tool"))
    tool_use_id = native.text(line.get("tool_use_id"))
    value = native.plain(line.get("arguments"))
    arguments: Mapping[str, Any] = value if isinstance(value, dict) else {}
    call_id = tools.asking(tool, tool_use_id, value)
    metadata = {"tool_use_id": tool_use_id} if tool_use_id and not call_id else {}
    made = event(metadata_json=json.dumps(metadata) if metadata else "")
    request = made.permission_requested
    request.request_id = native.text(line.get("request_id"))
    request.kind = kind_of(tool)
    request.tool_name = tool
    request.arguments_json = native.verbatim(line.get("arguments"))
    request.command = command_of(tool, arguments)
    if request.kind == interaction_pb2.PERMISSION_KIND_COMMAND:
        request.cwd = directory_of(arguments) or native.text(line.get("cwd"))
    request.files.extend(wanted_files(tool, arguments))
    request.call_id = call_id
    if call_id:
        tools.calls[call_id].asked = True
    else:
        request.parent_id = tools.sub_agent()
    request.allowed_decisions.extend(DECISIONS)
    request.takes_message = True
    return [Draft(Kind.PERMISSION_REQUESTED, made, raw)]


def withdrawn(line: Fields, raw: tuple[bytes, ...]) -> list[Draft]:
    """`permission_resolved` for an ask that nobody waits for any more."""
    return [
        _resolved(
            native.text(line.get("request_id")),
            interaction_pb2.REQUEST_OUTCOME_CANCELLED,
            "Amp does not wait for the answer any more.",
            raw,
        )
    ]


def refused(call_id: str, tools: Tools, raw: tuple[bytes, ...]) -> list[Draft]:
    """A permission that Amp would have asked for, and refused because nobody could be asked."""
    call = tools.calls[call_id]
    made = event()
    request = made.permission_requested
    request.request_id = f"approval:{call_id}"
    request.kind = kind_of(call.name)
    request.tool_name = call.name
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    request.arguments_json = native.dump(call.arguments).decode()
    request.command = command_of(call.name, arguments)
    request.files.extend(wanted_files(call.name, arguments))
    request.call_id = call_id
    request.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_REJECT)
    return [
        Draft(Kind.PERMISSION_REQUESTED, made, raw),
        _resolved(
            request.request_id,
            interaction_pb2.REQUEST_OUTCOME_REJECTED,
            "Amp can't ask for approval in this mode.",
            raw,
        ),
    ]


def kind_of(tool: str) -> interaction_pb2.PermissionKind.ValueType:
    """What a permission for a tool would allow."""
    if tool in COMMAND_TOOLS:
        return interaction_pb2.PERMISSION_KIND_COMMAND
    if tool in FILE_CHANGE_TOOLS:
        return interaction_pb2.PERMISSION_KIND_FILE_CHANGE
    if tool in NETWORK_TOOLS:
        return interaction_pb2.PERMISSION_KIND_NETWORK
    if tool.startswith("mcp__"):
        return interaction_pb2.PERMISSION_KIND_MCP_TOOL
    return interaction_pb2.PERMISSION_KIND_TOOL


def _resolved(
    request_id: str,
    outcome: interaction_pb2.RequestOutcome.ValueType,
    reason: str,
    raw: tuple[bytes, ...],
) -> Draft:
    made = event()
    resolved = made.permission_resolved
    resolved.request_id = request_id
    resolved.outcome = outcome
    resolved.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
    resolved.reason = reason
    return Draft(Kind.PERMISSION_RESOLVED, made, raw)
