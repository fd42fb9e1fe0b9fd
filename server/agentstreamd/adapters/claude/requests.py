"""What Claude Code asks: permissions, questions and forms, from control requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.claude.files import FILE_CHANGE_TOOLS, wanted_files
from agentstreamd.adapters.claude.native import plain, text_of
from agentstreamd.adapters.claude.rules import describe, scope_of, session_rules
from agentstreamd.adapters.claude.threads import call_item_id
from agentstreamd.adapters.claude.tools import REJECTION
from agentstreamd.model import Draft, Kind, event

_MAPPED = frozenset({"subtype", "tool_name", "input", "permission_suggestions", "tool_use_id"})
_UNANSWERED = "Error: Tool permission request failed"
_NETWORK_TOOLS = frozenset({"WebFetch", "WebSearch", "SandboxNetworkAccess"})


@dataclass(slots=True)
class NativeRequest:
    """A request that waits for an answer, as the CLI made it.

    Attributes:
        request_id: Its id, native and in the stream.
        kind: Which of the three kinds of request it became: the kind of its draft.
        tool_name: The tool; empty for a form.
        input_json: The tool's arguments, verbatim.
        suggestions: The permissions the CLI suggests to remember, each verbatim.
        tool_use_id: The call it is about; may be empty.
        answered: An answer was sent.
    """

    request_id: str
    kind: Kind
    tool_name: str = ""
    input_json: str = "{}"
    suggestions: tuple[str, ...] = ()
    tool_use_id: str = ""
    answered: bool = False


class Requests:
    """Maps control requests, and knows which of them wait for an answer."""

    def __init__(self, parent_of_agent: Callable[[str], str]) -> None:
        """`parent_of_agent(agent_id)` gives the tool use that started a sub-agent, or ""."""
        self.pending: dict[str, NativeRequest] = {}
        self.asked_calls: set[str] = set()
        self.cwd = ""
        self._parent_of_agent = parent_of_agent

    def on_request(
        self, request_id: str, request: dict[str, Raw], raw: tuple[bytes, ...]
    ) -> list[Draft] | None:
        """A control request of the CLI; None where it is of a kind that nobody here answers."""
        match plain(request.get("subtype", Raw())):
            case "can_use_tool":
                return self._on_can_use_tool(request_id, request, raw)
            case "elicitation":
                return self._on_elicitation(request_id, request, raw)
            case _:
                return None

    def on_cancel(self, request_id: str, raw: tuple[bytes, ...]) -> list[Draft]:
        """The CLI withdraws a request."""
        request = self.pending.pop(request_id, None)
        if request is None or request.answered:
            return []
        return [
            _resolved(
                request,
                interaction_pb2.REQUEST_OUTCOME_CANCELLED,
                raw,
                by=interaction_pb2.RESOLVED_BY_AGENT,
                reason="the agent withdrew the request",
            )
        ]

    def on_answer(self, request_id: str) -> None:
        """An answer was sent to the CLI; who sent it reports it."""
        if request := self.pending.get(request_id):
            request.answered = True

    def on_result(
        self, tool_use_id: str, is_error: bool, result: object, raw: tuple[bytes, ...]
    ) -> list[Draft]:
        """The call has a result, so its request is over, also where nobody saw the answer (a
        transcript without its client's side).
        """
        drafts = []
        about = [r for r in self.pending.values() if tool_use_id and r.tool_use_id == tool_use_id]
        for request in about:
            del self.pending[request.request_id]
            if not request.answered:
                drafts.append(_inferred(request, is_error, result, raw))
        return drafts

    def end_turn(self) -> None:
        """A turn has ended: which of its calls were asked for no longer matters."""
        self.asked_calls.clear()

    def _on_can_use_tool(
        self, request_id: str, native: dict[str, Raw], raw: tuple[bytes, ...]
    ) -> list[Draft]:
        arguments = plain(native.get("input", Raw()))
        request = NativeRequest(
            request_id,
            Kind.PERMISSION_REQUESTED,
            tool_name=_string(native, "tool_name"),
            input_json=text_of(native.get("input", Raw(b"{}"))),
            suggestions=_suggestions(native.get("permission_suggestions", Raw())),
            tool_use_id=_string(native, "tool_use_id"),
        )
        if not isinstance(arguments, dict):
            arguments = {}
        if request.tool_use_id:
            self.asked_calls.add(request.tool_use_id)
        made = event(metadata_json=_beyond(native))
        agent = self._parent_of_agent(_string(native, "agent_id"))
        parent_id = call_item_id(agent) if agent else ""
        if request.tool_name == "AskUserQuestion" and (asked := questions_of(arguments)):
            request.kind = Kind.QUESTION_REQUESTED
            question = made.question_requested
            question.request_id = question.native_request_id = request_id
            question.questions.extend(asked)
            question.call_id = request.tool_use_id
            question.parent_id = parent_id
        else:
            self._fill_permission(made.permission_requested, request, arguments, native)
            made.permission_requested.parent_id = parent_id
        self.pending[request_id] = request
        return [Draft(request.kind, made, raw)]

    def _fill_permission(
        self,
        permission: interaction_pb2.PermissionRequest,
        request: NativeRequest,
        arguments: Mapping[str, Any],
        native: dict[str, Raw],
    ) -> None:
        permission.request_id = permission.native_request_id = request.request_id
        permission.kind = _kind_of(request.tool_name)
        permission.tool_name = request.tool_name
        permission.arguments_json = request.input_json
        permission.call_id = request.tool_use_id
        permission.reason = _reason(permission.kind, native, arguments)
        if permission.kind == interaction_pb2.PERMISSION_KIND_COMMAND:
            permission.command = _text(arguments, "command")
            permission.cwd = self.cwd
        permission.plan = _text(arguments, "plan") if request.tool_name == "ExitPlanMode" else ""
        permission.files.extend(wanted_files(request.tool_name, arguments))
        for number, suggestion in enumerate(request.suggestions, 1):
            update = plain(suggestion.encode())
            added = permission.suggestions.add()
            added.suggestion_id = str(number)
            added.description = describe(update)
            added.scope = scope_of(update)
            added.native_json = suggestion
        permission.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_ACCEPT)
        if session_rules(request.tool_name, arguments, request.suggestions):
            permission.allowed_decisions.append(
                interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
            )
        permission.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_REJECT)
        permission.takes_message = True
        permission.takes_updated_arguments = True

    def _on_elicitation(
        self, request_id: str, native: dict[str, Raw], raw: tuple[bytes, ...]
    ) -> list[Draft]:
        self.pending[request_id] = NativeRequest(request_id, Kind.FORM_REQUESTED)
        made = event(metadata_json=_beyond(native))
        form = made.form_requested
        form.request_id = form.native_request_id = request_id
        form.message = _string(native, "message")
        schema = native.get("requested_schema", Raw())
        form.schema_json = text_of(schema) if isinstance(plain(schema), dict) else ""
        form.url = _string(native, "url")
        form.server_name = _string(native, "mcp_server_name")
        return [Draft(Kind.FORM_REQUESTED, made, raw)]


def questions_of(arguments: Mapping[str, Any]) -> list[interaction_pb2.Question]:
    """The questions of an AskUserQuestion call; empty where one of them cannot be read.

    A question's id is its number, from 1.
    """
    asked = arguments.get("questions")
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        return []
    made = []
    for number, native in enumerate(asked, 1):
        question = interaction_pb2.Question(
            question_id=str(number),
            header=_text(native, "header"),
            text=_text(native, "question"),
            multi_select=bool(native.get("multiSelect")),
            free_text=True,
        )
        options = native.get("options")
        labels: set[str] = {""}
        for option in options if isinstance(options, list) else ():
            if isinstance(option, dict) and (label := _text(option, "label")) not in labels:
                labels.add(label)
                question.options.add(
                    label=label,
                    description=_text(option, "description"),
                    preview=_text(option, "preview"),
                )
        made.append(question)
    return made if all(question.text for question in made) else []


def answers_of(arguments: Mapping[str, Any]) -> interaction_pb2.QuestionAnswer | None:
    """The answers in an AskUserQuestion call's edited arguments or result; None where these are not
    of such a call. Questions may be left without an answer.
    """
    asked = questions_of(arguments)
    answers, response = arguments.get("answers", {}), _text(arguments, "response")
    if not asked or not isinstance(answers, dict):
        return None
    made = interaction_pb2.QuestionAnswer()
    made.answered.SetInParent()
    for question in asked:
        said = answers.get(question.text)
        if said is None and not response:
            continue
        single = made.answered.answers.add(question_id=question.question_id)
        labels = {option.label for option in question.options}
        pieces = [said] if isinstance(said, str) else said if isinstance(said, list) else []
        if question.multi_select and isinstance(said, str) and said not in labels:
            pieces = said.split(", ")
        pieces = [str(piece) for piece in pieces]
        own = [piece for piece in pieces if piece not in labels]
        single.labels.extend(piece for piece in pieces if piece in labels)
        single.text = ", ".join(own) or ("" if single.labels else response)
    return made


def _inferred(
    request: NativeRequest, is_error: bool, result: object, raw: tuple[bytes, ...]
) -> Draft:
    """What a result says of an answer that nobody saw."""
    if is_error:
        if isinstance(result, str) and result.startswith(_UNANSWERED):
            return _resolved(
                request,
                interaction_pb2.REQUEST_OUTCOME_CANCELLED,
                raw,
                by=interaction_pb2.RESOLVED_BY_AGENT,
                reason="the agent got no answer that it understands",
            )
        rejected = result == REJECTION
        return _resolved(
            request,
            interaction_pb2.REQUEST_OUTCOME_REJECTED
            if rejected
            else interaction_pb2.REQUEST_OUTCOME_UNKNOWN,
            raw,
            reason="" if rejected else "the tool failed, or was not allowed to run",
        )
    draft = _resolved(request, interaction_pb2.REQUEST_OUTCOME_ACCEPTED, raw)
    if request.kind is Kind.QUESTION_REQUESTED and isinstance(result, dict):
        answer = answers_of(result)
        if answer is not None:
            draft.event.question_resolved.answer.CopyFrom(answer)
    return draft


def _resolved(
    request: NativeRequest,
    outcome: interaction_pb2.RequestOutcome.ValueType,
    raw: tuple[bytes, ...],
    *,
    by: interaction_pb2.ResolvedBy.ValueType = interaction_pb2.RESOLVED_BY_UNSPECIFIED,
    reason: str = "",
) -> Draft:
    made = event()
    match request.kind:
        case Kind.QUESTION_REQUESTED:
            kind = Kind.QUESTION_RESOLVED
            made.question_resolved.CopyFrom(
                interaction_pb2.QuestionResolved(
                    request_id=request.request_id, outcome=outcome, resolved_by=by, reason=reason
                )
            )
        case Kind.FORM_REQUESTED:
            kind = Kind.FORM_RESOLVED
            made.form_resolved.CopyFrom(
                interaction_pb2.FormResolved(
                    request_id=request.request_id, outcome=outcome, resolved_by=by, reason=reason
                )
            )
        case _:
            kind = Kind.PERMISSION_RESOLVED
            made.permission_resolved.CopyFrom(
                interaction_pb2.PermissionResolved(
                    request_id=request.request_id, outcome=outcome, resolved_by=by, reason=reason
                )
            )
    return Draft(kind, made, raw)


def _kind_of(tool: str) -> interaction_pb2.PermissionKind.ValueType:
    if tool in ("Bash", "PowerShell"):
        return interaction_pb2.PERMISSION_KIND_COMMAND
    if tool in FILE_CHANGE_TOOLS:
        return interaction_pb2.PERMISSION_KIND_FILE_CHANGE
    if tool in _NETWORK_TOOLS:
        return interaction_pb2.PERMISSION_KIND_NETWORK
    if tool == "ExitPlanMode":
        return interaction_pb2.PERMISSION_KIND_PLAN
    if tool.startswith("mcp__"):
        return interaction_pb2.PERMISSION_KIND_MCP_TOOL
    return interaction_pb2.PERMISSION_KIND_TOOL


def _reason(
    kind: interaction_pb2.PermissionKind.ValueType,
    native: dict[str, Raw],
    arguments: Mapping[str, Any],
) -> str:
    """Why the CLI asks. Its description of a command is the model's own words; of other calls it
    may be no more than the file or the address that the arguments name.
    """
    described = _string(native, "description")
    if kind != interaction_pb2.PERMISSION_KIND_COMMAND:
        named = (value for value in arguments.values() if isinstance(value, str))
        if any(value.endswith(described) for value in named):
            described = ""
    return _string(native, "decision_reason") or described


def _suggestions(native: Raw) -> tuple[str, ...]:
    try:
        each = msgspec.json.decode(native, type=list[Raw])
    except msgspec.MsgspecError:
        return ()
    return tuple(text_of(one) for one in each if isinstance(plain(one), dict))


def _beyond(native: dict[str, Raw]) -> str:
    """What a request says beyond the universal model, as a JSON object."""
    beyond = {key: value for key, value in native.items() if key not in _MAPPED}
    return msgspec.json.encode(beyond).decode("utf-8", "replace") if beyond else ""


def _string(native: dict[str, Raw], name: str) -> str:
    value = plain(native[name]) if name in native else None
    return value if isinstance(value, str) else ""


def _text(source: Mapping[str, Any], name: str) -> str:
    value = source.get(name)
    return value if isinstance(value, str) else ""
