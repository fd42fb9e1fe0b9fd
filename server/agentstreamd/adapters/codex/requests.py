"""What Codex asks of a person: approvals, questions, elicitations. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Raw as RawJson

from agentstream.v1 import interaction_pb2, item_pb2
from agentstreamd.adapters.base import Request
from agentstreamd.adapters.codex.content import file_parts
from agentstreamd.adapters.codex.native import (
    JsonObject,
    Message,
    as_object,
    dump_text,
    objects_in,
    text_in,
    text_of,
    texts_in,
)
from agentstreamd.adapters.codex.threads import Place
from agentstreamd.adapters.codex.tool_shapes import arguments_of, tool_name
from agentstreamd.adapters.codex.tools import Tools
from agentstreamd.model import Draft, Kind, event, file_ref_part

Raw = tuple[bytes, ...]

ACCEPT = interaction_pb2.PERMISSION_DECISION_ACCEPT
FOR_SESSION = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = interaction_pb2.PERMISSION_DECISION_REJECT

_SHOWN = frozenset(
    {
        "threadId",
        "turnId",
        "startedAtMs",
        "environmentId",
        "kind",
        "command",
        "cwd",
        "reason",
        "networkApprovalContext",
        "proposedExecpolicyAmendment",
        "proposedNetworkPolicyAmendments",
        "availableDecisions",
        "grantRoot",
        "permissions",
        "questions",
        "serverName",
        "mode",
        "message",
        "description",
        "url",
        "requestedSchema",
        "codex_approval_kind",
        "persist",
        "tool_name",
        "tool_params",
    }
)
"""Members of requests that have a field of their own, or that tell a person nothing."""

PERSIST_ALWAYS = "persist_always"
"""Suggestion: an MCP tool is never asked for again."""


@dataclass(slots=True)
class NativeRequest:
    """A request of the server that waits for an answer.

    Attributes:
        method: Its method.
        native_id: The JSON text of its id, verbatim.
        thread_id: The thread that asks.
        params: Its parameters.
        suggestions: Native JSON of each suggestion, by id.
        answered: An answer was written.
        kind: Of the draft that asked.
    """

    method: str
    native_id: str
    thread_id: str
    params: JsonObject
    kind: Kind
    suggestions: dict[str, object] = field(default_factory=dict)
    answered: bool = False


_RESOLVED = {
    Kind.PERMISSION_REQUESTED: (Kind.PERMISSION_RESOLVED, "permission_resolved"),
    Kind.QUESTION_REQUESTED: (Kind.QUESTION_RESOLVED, "question_resolved"),
    Kind.FORM_REQUESTED: (Kind.FORM_RESOLVED, "form_resolved"),
}


def request_id_of(native_id: str) -> str:
    """The request's id in the stream."""
    return f"request-{native_id.strip(chr(34))}"


class Requests:
    """The requests of all threads of a session.

    Attributes:
        pending: Those that wait, by request id.
    """

    def __init__(self, tools: Tools) -> None:
        """`tools` knows what requests are about."""
        self.pending: dict[str, NativeRequest] = {}
        self._tools = tools
        self._makers: dict[str, Callable[[Message, Place], _Made | None]] = {
            "item/commandExecution/requestApproval": self._command,
            "item/fileChange/requestApproval": self._file_change,
            "item/permissions/requestApproval": self._grant,
            "item/tool/requestUserInput": self._questions,
            "mcpServer/elicitation/request": self._elicitation,
        }

    def on_request(self, message: Message, place: Place) -> list[Draft] | None:
        """A request of the server; None where it is none that a person can answer."""
        maker = self._makers.get(message.method)
        made = maker(message, place) if maker is not None else None
        if made is None:
            return None
        request = made.request
        request.request_id = request_id_of(message.id)
        request.native_request_id = message.id.strip('"')
        request.parent_id = place.under
        self.pending[request.request_id] = NativeRequest(
            message.method,
            message.id,
            message.thread_id,
            message.params,
            made.kind,
            made.suggestions,
        )
        more = _rest(message.params, bool(request.call_id))
        said = event(metadata_json=dump_text(more) if more else "")
        getattr(said, made.kind.name.lower()).CopyFrom(request)
        return [Draft(made.kind, said, (message.line,))]

    def on_answer(self, native_id: str) -> None:
        """An answer was written to the server."""
        request = self.pending.get(request_id_of(native_id))
        if request is not None:
            request.answered = True

    def on_resolved(self, native_id: str, raw: Raw) -> list[Draft]:
        """The server says that a request is settled.

        What we answered, the session has recorded. Otherwise it does not say how.
        """
        request_id = request_id_of(native_id)
        request = self.pending.pop(request_id, None)
        if request is None or request.answered:
            return []
        kind, name = _RESOLVED[request.kind]
        made = event()
        resolved = getattr(made, name)
        resolved.request_id = request_id
        resolved.outcome = interaction_pb2.REQUEST_OUTCOME_UNKNOWN
        resolved.resolved_by = interaction_pb2.RESOLVED_BY_UNSPECIFIED
        resolved.reason = "Codex went on; how the request was settled, it does not say."
        return [Draft(kind, made, raw)]

    def end_turn(self, thread_id: str) -> None:
        """A turn is over, and with it what it asked: late answers go nowhere."""
        for request_id, request in list(self.pending.items()):
            if request.thread_id == thread_id:
                del self.pending[request_id]

    def _command(self, message: Message, place: Place) -> "_Made":
        params = message.params
        item_id = text_in(params, "itemId")
        request = interaction_pb2.PermissionRequest(
            kind=interaction_pb2.PERMISSION_KIND_COMMAND,
            tool_name="shell",
            command=text_in(params, "command"),
            cwd=text_in(params, "cwd"),
            reason=text_in(params, "reason"),
            arguments_json=dump_text(
                {k: params[k] for k in ("command", "cwd") if params.get(k) is not None}
            ),
        )
        self._about(request, message.thread_id, item_id)
        network = as_object(params.get("networkApprovalContext"))
        if network:
            request.kind = interaction_pb2.PERMISSION_KIND_NETWORK
            request.arguments_json = dump_text(network)
            request.reason = request.reason or f"reach {text_in(network, 'host')}"
        request.allowed_decisions.extend((ACCEPT, FOR_SESSION, REJECT))
        suggestions: dict[str, object] = {}
        prefix = texts_in(params, "proposedExecpolicyAmendment")
        if prefix:
            suggestions["command_prefix"] = {
                "acceptWithExecpolicyAmendment": {"execpolicy_amendment": prefix}
            }
            request.suggestions.add(
                suggestion_id="command_prefix",
                description=f"commands that begin with: {' '.join(prefix)}",
                scope=interaction_pb2.PERMISSION_SCOPE_USER,
                native_json=dump_text(suggestions["command_prefix"]),
            )
        for index, amendment in enumerate(objects_in(params, "proposedNetworkPolicyAmendments")):
            name = f"network_{index}"
            suggestions[name] = {
                "applyNetworkPolicyAmendment": {"network_policy_amendment": amendment}
            }
            request.suggestions.add(
                suggestion_id=name,
                description=f"{text_in(amendment, 'action')} {text_in(amendment, 'host')}",
                scope=interaction_pb2.PERMISSION_SCOPE_USER,
                native_json=dump_text(suggestions[name]),
            )
        return _Made(Kind.PERMISSION_REQUESTED, request, suggestions)

    def _file_change(self, message: Message, place: Place) -> "_Made":
        params = message.params
        item_id = text_in(params, "itemId")
        request = interaction_pb2.PermissionRequest(
            kind=interaction_pb2.PERMISSION_KIND_FILE_CHANGE,
            tool_name="apply_patch",
            reason=text_in(params, "reason"),
        )
        self._about(request, message.thread_id, item_id)
        # The request names no file: they are in the item.
        call = self._tools.call(message.thread_id, item_id)
        if call is not None:
            request.files.extend(part.file_ref for part in file_parts(call.item))
            request.arguments_json = arguments_of(call.item, {})
        if root := text_in(params, "grantRoot"):
            request.files.append(file_ref_part(root, item_pb2.FILE_ACTION_WRITE).file_ref)
        request.allowed_decisions.extend((ACCEPT, FOR_SESSION, REJECT))
        return _Made(Kind.PERMISSION_REQUESTED, request)

    def _grant(self, message: Message, place: Place) -> "_Made":
        params = message.params
        wanted = message.verbatim().get("permissions", RawJson())
        request = interaction_pb2.PermissionRequest(
            kind=interaction_pb2.PERMISSION_KIND_GRANT,
            tool_name="request_permissions",
            arguments_json=text_of(wanted) or "{}",
            cwd=text_in(params, "cwd"),
            reason=text_in(params, "reason"),
        )
        request.allowed_decisions.extend((ACCEPT, FOR_SESSION, REJECT))
        return _Made(Kind.PERMISSION_REQUESTED, request)

    def _questions(self, message: Message, place: Place) -> "_Made | None":
        request = interaction_pb2.QuestionRequest()
        for asked in objects_in(message.params, "questions"):
            options = {
                text_in(option, "label"): text_in(option, "description")
                for option in objects_in(asked, "options")
            }
            options.pop("", None)
            question = request.questions.add(
                question_id=text_in(asked, "id"),
                header=text_in(asked, "header"),
                text=text_in(asked, "question") or text_in(asked, "header") or "?",
                free_text=asked.get("isOther") is not False or not options,
                secret=asked.get("isSecret") is True,
            )
            for label, description in options.items():
                question.options.add(label=label, description=description)
        # An answer names its question: none can be given where one has no id of its own.
        ids = {question.question_id for question in request.questions} - {""}
        if not ids or len(ids) < len(request.questions):
            return None
        return _Made(Kind.QUESTION_REQUESTED, request)

    def _elicitation(self, message: Message, place: Place) -> "_Made | None":
        params = message.params
        meta = as_object(params.get("_meta"))
        server = text_in(params, "serverName")
        if meta.get("codex_approval_kind") == "mcp_tool_call":
            return self._mcp_approval(message, server, meta)
        request = interaction_pb2.FormRequest(
            message=text_in(params, "message") or text_in(params, "description"),
            server_name=server,
            url=text_in(params, "url"),
        )
        call = self._tools.open_mcp_call(message.thread_id, server, "")
        if call is not None:
            request.call_id = call.item_id
        if params.get("mode") in ("form", "openai/form", "openaiForm"):
            schema = text_of(message.verbatim().get("requestedSchema", RawJson()))
            request.schema_json = schema if schema.startswith("{") else '{"type":"object"}'
        elif not request.url:
            # A challenge that only the vendor's own program can meet.
            return None
        return _Made(Kind.FORM_REQUESTED, request)

    def _mcp_approval(self, message: Message, server: str, meta: JsonObject) -> "_Made":
        tool = text_in(meta, "tool_name")
        arguments = text_of(message.verbatim("_meta").get("tool_params", RawJson()))
        request = interaction_pb2.PermissionRequest(
            kind=interaction_pb2.PERMISSION_KIND_MCP_TOOL,
            tool_name=f"{server}/{tool}" if tool else server,
            arguments_json=arguments or "{}",
            reason=text_in(message.params, "message"),
        )
        call = self._tools.open_mcp_call(message.thread_id, server, tool)
        if call is not None:
            request.call_id = call.item_id
        said = meta.get("persist")
        persist = [said] if isinstance(said, str) else texts_in(meta, "persist")
        request.allowed_decisions.append(ACCEPT)
        if "session" in persist:
            request.allowed_decisions.append(FOR_SESSION)
        request.allowed_decisions.append(REJECT)
        suggestions: dict[str, object] = {}
        if "always" in persist:
            suggestions[PERSIST_ALWAYS] = {"persist": "always"}
            request.suggestions.add(
                suggestion_id=PERSIST_ALWAYS,
                description=f"the tool {tool} of {server}, in all sessions",
                scope=interaction_pb2.PERMISSION_SCOPE_USER,
                native_json='{"persist":"always"}',
            )
        return _Made(Kind.PERMISSION_REQUESTED, request, suggestions)

    def _about(
        self, request: interaction_pb2.PermissionRequest, thread_id: str, native_id: str
    ) -> None:
        call = self._tools.call(thread_id, native_id)
        if call is None:
            return
        request.call_id = call.item_id
        request.tool_name = tool_name(call.item)


def _rest(params: JsonObject, has_call: bool) -> JsonObject:
    """What a request says beyond the fields of ours, for those who show it."""
    rest = _unsaid(params)
    if has_call:
        rest.pop("itemId", None)
    if meta := _unsaid(as_object(rest.pop("_meta", None))):
        rest["_meta"] = meta
    return rest


def _unsaid(said: JsonObject) -> JsonObject:
    empty: tuple[object, ...] = (None, "", [], {})
    return {k: v for k, v in said.items() if k not in _SHOWN and v not in empty}


@dataclass(slots=True)
class _Made:
    """A request as it was put together."""

    kind: Kind
    request: Request
    suggestions: dict[str, object] = field(default_factory=dict)
