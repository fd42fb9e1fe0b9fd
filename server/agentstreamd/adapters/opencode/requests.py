"""Permissions and questions that OpenCode asks for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentstream.v1 import interaction_pb2
from agentstreamd.adapters.opencode import files
from agentstreamd.adapters.opencode.native import (
    Event,
    JsonObject,
    dict_in,
    dump,
    list_in,
    metadata_of,
    text_in,
    texts,
)
from agentstreamd.adapters.opencode.threads import Thread
from agentstreamd.adapters.opencode.tools import Tool, Tools
from agentstreamd.model import Draft, Kind, event

Grant = tuple[str, str]
"""A permission and a pattern that were given for the session."""

_KINDS = {
    "bash": interaction_pb2.PERMISSION_KIND_COMMAND,
    "edit": interaction_pb2.PERMISSION_KIND_FILE_CHANGE,
    "webfetch": interaction_pb2.PERMISSION_KIND_NETWORK,
    "websearch": interaction_pb2.PERMISSION_KIND_NETWORK,
    "external_directory": interaction_pb2.PERMISSION_KIND_GRANT,
}
_REPLIES = {
    "once": interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
    "always": interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION,
    "reject": interaction_pb2.REQUEST_OUTCOME_REJECTED,
}
_TOLD_ELSEWHERE = frozenset({"command", "filepath", "diff", "files"})
SUGGESTION_ID = "always"
"""The only suggestion of a permission: what "for the session" would allow."""


@dataclass(slots=True)
class Ask:
    """A request that waits.

    Attributes:
        request_id: Its native id.
        session_id: The native session that asks, which may be a sub-agent's.
        directory: Where that works, where it was said.
        permission: What is asked for; empty for questions.
        always: The patterns that "for the session" would allow.
        call_id: The call it is about.
        options: The labels that can be chosen, for each question; empty for a permission.
        answered: Our answer is on its way; what the server says of it is no news.
    """

    request_id: str
    session_id: str
    directory: str = ""
    permission: str = ""
    always: tuple[str, ...] = ()
    call_id: str = ""
    options: tuple[frozenset[str], ...] = ()
    answered: bool = False

    @property
    def grants(self) -> list[Grant]:
        """What accepting it for the session allows."""
        return [(self.permission, pattern) for pattern in self.always]


@dataclass(slots=True)
class Requests:
    """The requests of all threads of a session.

    Attributes:
        pending: Those that wait, by native id, oldest first.
        granted: What was given for the session.
        mcp_servers: Names of the session's MCP servers.
        to_accept: Requests that are covered by what was given: the driver must reply to them.
    """

    tools: Tools
    mcp_servers: frozenset[str] = frozenset()
    pending: dict[str, Ask] = field(default_factory=dict)
    granted: set[Grant] = field(default_factory=set)
    to_accept: list[Ask] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _held: dict[str, list[tuple[Thread, Event]]] = field(default_factory=dict)

    def grant(self, grants: Iterable[Grant]) -> list[Draft]:
        """Remember what was given for the session; answers what waits and is covered by it."""
        self.granted.update(grants)
        covered = [ask for ask in self.pending.values() if self._covers(ask) and not ask.answered]
        return [draft for ask in covered for draft in self._accept(ask, ())]

    def on_permission(self, thread: Thread, asked: Event) -> list[Draft]:
        """A permission is asked for."""
        said = asked.properties
        request_id, call = text_in(said, "id"), dict_in(said, "tool")
        if request_id in self._seen or not request_id:
            return []
        self._seen.add(request_id)
        tool = self.tools.of_call(text_in(call, "callID"))
        is_early = tool is not None and not tool.called
        if is_early or (tool is None and call and not dict_in(said, "metadata")):
            # The call's arguments follow at once; without them it says less, or nothing.
            self._held.setdefault(text_in(call, "callID"), []).append((thread, asked))
            return []
        return self._ask(thread, asked, tool)

    def on_called(self, call_id: str) -> list[Draft]:
        """The arguments of a call are known now."""
        held, tool = self._held.pop(call_id, []), self.tools.of_call(call_id)
        return [draft for thread, asked in held for draft in self._ask(thread, asked, tool)]

    def release(self) -> list[Draft]:
        """Show what was held back, with what is known."""
        return [draft for call_id in list(self._held) for draft in self.on_called(call_id)]

    def _ask(self, thread: Thread, asked: Event, tool: Tool | None) -> list[Draft]:
        said = asked.properties
        ask = Ask(
            text_in(said, "id"),
            thread.session_id,
            asked.directory or thread.directory,
            text_in(said, "permission"),
            tuple(texts(list_in(said, "always"))),
            text_in(dict_in(said, "tool"), "callID"),
        )
        self.pending[ask.request_id] = ask
        made = event(metadata_json=_told(said))
        request = made.permission_requested
        request.request_id = request.native_request_id = ask.request_id
        request.call_id = ask.call_id
        request.parent_id = thread.parent_item
        self._describe(request, ask, asked, tool)
        drafts = [Draft(Kind.PERMISSION_REQUESTED, made, (asked.native,))]
        if self._covers(ask):
            drafts += self._accept(ask, (asked.native,))
        return drafts

    def _describe(
        self,
        request: interaction_pb2.PermissionRequest,
        ask: Ask,
        asked: Event,
        tool: Tool | None,
    ) -> None:
        said = asked.properties
        metadata = dict_in(said, "metadata")
        request.kind = self._kind(ask.permission)
        request.tool_name = tool.name if tool is not None else ask.permission
        known = tool.arguments if tool is not None and tool.called else ""
        request.arguments_json = known or (metadata_of(asked) if metadata else "")
        if request.kind == interaction_pb2.PERMISSION_KIND_COMMAND:
            request.command = text_in(metadata, "command")
            request.cwd = text_in(tool.input, "workdir") if tool is not None else ""
            request.cwd = request.cwd or ask.directory
        elif request.kind == interaction_pb2.PERMISSION_KIND_FILE_CHANGE:
            request.files.extend(files.permission_files(request.tool_name, metadata))
            if tool is not None and len(request.files) == 1:
                tool.diff = request.files[0].diff
        else:
            patterns = ", ".join(texts(list_in(said, "patterns")))
            request.reason = f"{ask.permission}: {patterns}" if patterns else ask.permission
        request.takes_message = True
        request.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_ACCEPT)
        if ask.always:
            request.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION)
            request.suggestions.add(
                suggestion_id=SUGGESTION_ID,
                description=f"{ask.permission}: {', '.join(ask.always)}",
                scope=interaction_pb2.PERMISSION_SCOPE_SESSION,
                native_json=dump(list(ask.always)),
            )
        request.allowed_decisions.append(interaction_pb2.PERMISSION_DECISION_REJECT)

    def _kind(self, permission: str) -> interaction_pb2.PermissionKind.ValueType:
        if permission in _KINDS:
            return _KINDS[permission]
        if any(permission.startswith(f"{server}_") for server in self.mcp_servers):
            return interaction_pb2.PERMISSION_KIND_MCP_TOOL
        return interaction_pb2.PERMISSION_KIND_TOOL

    def _covers(self, ask: Ask) -> bool:
        return bool(ask.always) and self.granted.issuperset(ask.grants)

    def _accept(self, ask: Ask, raw: tuple[bytes, ...]) -> list[Draft]:
        """Accept by what was given for the session before."""
        ask.answered = True
        del self.pending[ask.request_id]
        self.to_accept.append(ask)
        made = event(by_daemon=True)
        resolved = made.permission_resolved
        resolved.request_id = ask.request_id
        resolved.outcome = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
        resolved.resolved_by = interaction_pb2.RESOLVED_BY_POLICY
        resolved.answer.decision = interaction_pb2.PERMISSION_DECISION_ACCEPT
        resolved.reason = "The like was accepted for the session."
        return [Draft(Kind.PERMISSION_RESOLVED, made, raw)]

    def on_permission_reply(self, replied: Event) -> list[Draft]:
        """A permission was answered, by us or otherwise."""
        said = replied.properties
        held = self._holding(text_in(said, "requestID"))
        drafts = self.on_called(held) if held else []
        ask = self._take(replied)
        if ask is None or ask.answered:
            return drafts
        made = event()
        resolved = made.permission_resolved
        resolved.request_id = ask.request_id
        resolved.outcome = _REPLIES.get(
            text_in(said, "reply"), interaction_pb2.REQUEST_OUTCOME_UNKNOWN
        )
        resolved.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
        return [*drafts, Draft(Kind.PERMISSION_RESOLVED, made, (replied.native,))]

    def _holding(self, request_id: str) -> str:
        """The call whose arguments a request waits for; empty where it waits for none."""
        for call_id, held in self._held.items():
            if any(text_in(asked.properties, "id") == request_id for _, asked in held):
                return call_id
        return ""

    def on_question(self, thread: Thread, asked: Event) -> list[Draft]:
        """Questions are asked."""
        said = asked.properties
        request_id = text_in(said, "id")
        questions = [q for q in list_in(said, "questions") if isinstance(q, dict)]
        if request_id in self._seen or not request_id or not questions:
            return []
        self._seen.add(request_id)
        ask = Ask(
            request_id,
            thread.session_id,
            asked.directory or thread.directory,
            call_id=text_in(dict_in(said, "tool"), "callID"),
            options=tuple(frozenset(_labels(question)) for question in questions),
        )
        self.pending[request_id] = ask
        made = event()
        request = made.question_requested
        request.request_id = request.native_request_id = request_id
        request.call_id = ask.call_id
        request.parent_id = thread.parent_item
        for number, question in enumerate(questions):
            request.questions.append(_question(number, question))
        return [Draft(Kind.QUESTION_REQUESTED, made, (asked.native,))]

    def on_question_reply(self, replied: Event) -> list[Draft]:
        """Questions were answered or rejected, by us or otherwise."""
        ask = self._take(replied)
        if ask is None or ask.answered:
            return []
        made = event()
        resolved = made.question_resolved
        resolved.request_id = ask.request_id
        resolved.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
        if replied.type == "question.rejected":
            resolved.outcome = interaction_pb2.REQUEST_OUTCOME_REJECTED
            resolved.answer.rejected.SetInParent()
        else:
            resolved.outcome = interaction_pb2.REQUEST_OUTCOME_ACCEPTED
            answers = list_in(replied.properties, "answers")
            for number, (answer, options) in enumerate(zip(answers, ask.options, strict=False)):
                chosen = texts(answer) if isinstance(answer, list) else []
                resolved.answer.answered.answers.add(
                    question_id=str(number),
                    labels=[text for text in chosen if text in options],
                    text="\n".join(text for text in chosen if text not in options),
                )
        return [Draft(Kind.QUESTION_RESOLVED, made, (replied.native,))]

    def on_gone(self, request_id: str) -> list[Draft]:
        """A request is no longer there, and what was answered is not known."""
        ask = self.pending.pop(request_id, None)
        if ask is None or ask.answered:
            return []
        made = event(synthetic=True)
        if ask.options:
            kind, question = Kind.QUESTION_RESOLVED, made.question_resolved
            question.request_id = request_id
            question.outcome = interaction_pb2.REQUEST_OUTCOME_UNKNOWN
            question.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
        else:
            kind, permission = Kind.PERMISSION_RESOLVED, made.permission_resolved
            permission.request_id = request_id
            permission.outcome = interaction_pb2.REQUEST_OUTCOME_UNKNOWN
            permission.resolved_by = interaction_pb2.RESOLVED_BY_AGENT
        return [Draft(kind, made)]

    def forget(self) -> None:
        """The turn is over: the stream keeper resolves what is left, the server never will."""
        self.pending.clear()
        self._held.clear()
        self.to_accept.clear()

    def _take(self, replied: Event) -> Ask | None:
        said = replied.properties
        return self.pending.pop(text_in(said, "requestID") or text_in(said, "permissionID"), None)


def _told(said: JsonObject) -> str:
    """What a permission says that is in no field of the request."""
    more = {k: v for k, v in dict_in(said, "metadata").items() if k not in _TOLD_ELSEWHERE}
    told = {"permission": said.get("permission"), "patterns": said.get("patterns")}
    return dump({**told, **({"metadata": more} if more else {})})


def _question(number: int, native: JsonObject) -> interaction_pb2.Question:
    question = interaction_pb2.Question(
        question_id=str(number),
        header=text_in(native, "header"),
        # One without a text waits for an answer all the same.
        text=text_in(native, "question") or text_in(native, "header") or "?",
        multi_select=native.get("multiple") is True,
        free_text=native.get("custom") is not False,
    )
    for label, description in _labels(native).items():
        question.options.add(label=label, description=description)
    return question


def _labels(native: JsonObject) -> dict[str, str]:
    """The options of a question: labels, each once, and what they mean."""
    options = [option for option in list_in(native, "options") if isinstance(option, dict)]
    labels = {text_in(option, "label"): text_in(option, "description") for option in options}
    return {label: description for label, description in labels.items() if label}
