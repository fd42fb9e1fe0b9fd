"""What the mock agent asks: permissions, questions and forms."""

import json
from dataclasses import dataclass, field
from typing import Protocol

from agentstreamd.adapters.mock.script import Directive, json_value, quoted
from agentstreamd.adapters.mock.stage import Json, Stage, file_part

_QUESTION_FLAGS = ("multi", "free", "secret", "optional")
_DECISIONS = ("ACCEPT", "ACCEPT_FOR_SESSION", "REJECT")


class Person(Protocol):
    """Whom the agent asks."""

    permission_mode: str
    granted: set[str]

    async def ask(self, request: Json) -> Json:
        """Send a request and wait for its answer: ProtoJSON of the answer."""
        ...


@dataclass(slots=True)
class Outcome:
    """What became of what was asked last.

    Attributes:
        words: What `on` may name: the outcome, and the labels that were chosen.
        interrupt: The answer also ends the turn.
    """

    words: set[str] = field(default_factory=set)
    interrupt: bool = False


@dataclass(slots=True)
class _Action:
    """What a permission is asked for."""

    kind: str
    tool: str
    arguments: str
    fields: Json = field(default_factory=dict)
    done: str = "done"
    parts: list[Json] = field(default_factory=list)


async def ask(person: Person, stage: Stage, directive: Directive) -> Outcome:
    """Carry out `ask KIND ...`."""
    kind, _, rest = directive.rest.partition(" ")
    if kind == "permission":
        return await _permission(person, stage, _action(directive, rest))
    if kind == "question":
        return await _questions(person, stage, directive, rest)
    if kind == "form":
        return await _form(person, stage, rest)
    raise directive.wrong("ask takes permission, question or form")


def _action(directive: Directive, argument: str) -> _Action:
    kind, rest = quoted(argument)
    subject, more = quoted(rest)
    match kind:
        case "command":
            arguments = json.dumps({"command": subject})
            fields: Json = {"command": subject, "cwd": more}
            return _Action("COMMAND", "Bash", arguments, fields, f"ran {subject}")
        case "file_change" if subject:
            diff = edit_diff("old", "new")
            file = file_part(subject, "patch", diff=diff)
            arguments = json.dumps({"path": subject, "old": "old", "new": "new"})
            fields = {"files": [file["file_ref"]]}
            return _Action("FILE_CHANGE", "Edit", arguments, fields, f"changed {subject}", [file])
        case "tool" | "mcp_tool":
            arguments = json_value(more)[0] or "{}"
            return _Action(kind.upper(), subject, arguments, done=f"{subject} is done")
        case "network":
            arguments = json.dumps({"url": subject})
            return _Action("NETWORK", "WebFetch", arguments, done=f"fetched {subject}")
        case "plan":
            arguments = json.dumps({"plan": subject})
            return _Action("PLAN", "ExitPlanMode", arguments, {"plan": subject}, "plan approved")
        case "grant":
            return _Action("GRANT", "", json.dumps({"grant": subject}), done=f"may use {subject}")
    raise directive.wrong(
        "ask permission takes command, file_change PATH, tool, mcp_tool, network, plan or grant"
    )


async def _permission(person: Person, stage: Stage, action: _Action) -> Outcome:
    call = None
    if action.tool:
        call = await stage.call(action.tool, action.arguments, *action.parts)
    answer: Json = {"decision": "PERMISSION_DECISION_ACCEPT"}
    if _must_ask(person, action):
        request: Json = {
            "type": "permission_requested",
            "request_id": stage.ids.new("permission"),
            "kind": f"PERMISSION_KIND_{action.kind}",
            "tool_name": action.tool,
            "arguments_json": action.arguments,
            "reason": "The script asks for it.",
            "call_id": call["item_id"] if call else "",
            "parent_id": stage.parent_id,
            "suggestions": [
                {
                    "suggestion_id": "always",
                    "description": f"{action.tool or action.kind.lower()}(*)",
                    "scope": "PERMISSION_SCOPE_SESSION",
                    "native_json": json.dumps({"allow": action.kind.lower()}),
                }
            ],
            "allowed_decisions": [f"PERMISSION_DECISION_{one}" for one in _DECISIONS],
            "takes_message": True,
            "takes_updated_arguments": True,
            **action.fields,
        }
        answer = (await person.ask(request)).get("permission", {})
    decision = str(answer.get("decision", "")).removeprefix("PERMISSION_DECISION_").lower()
    if decision == "accept_for_session" or answer.get("suggestion_ids"):
        person.granted.add(action.kind)
    accepted = decision.startswith("accept")
    output = action.done if accepted else f"rejected: {answer.get('message') or 'no reason given'}"
    if accepted and "updated_arguments_json" in answer:
        output += f" with {answer['updated_arguments_json']}"
    if call is not None:
        await stage.result(call, output, *(action.parts if accepted else ()), error=not accepted)
    else:
        await stage.add_text(output)
        stage.close_message()
    return Outcome({decision}, bool(answer.get("interrupt")))


def _must_ask(person: Person, action: _Action) -> bool:
    mode = person.permission_mode
    if mode == "bypass" or action.kind in person.granted:
        return False
    return not (mode == "accept_edits" and action.kind == "FILE_CHANGE")


async def _questions(person: Person, stage: Stage, directive: Directive, rest: str) -> Outcome:
    questions = [
        _question(directive, number, text.strip())
        for number, text in enumerate(rest.split(";;"), start=1)
    ]
    call = await stage.call("AskUserQuestion", json.dumps({"questions": len(questions)}))
    request = {
        "type": "question_requested",
        "request_id": stage.ids.new("question"),
        "questions": questions,
        "call_id": call["item_id"],
        "parent_id": stage.parent_id,
    }
    answer = (await person.ask(request)).get("question", {})
    if "rejected" in answer:
        rejected = answer["rejected"]
        await stage.result(call, f"not answered: {rejected.get('message', '')}", error=True)
        return Outcome({"reject"}, bool(rejected.get("interrupt")))
    answers = answer.get("answered", {}).get("answers", [])
    secret = {one["question_id"] for one in questions if one["secret"]}
    lines = [_answered(one, one.get("question_id") in secret) for one in answers]
    await stage.result(call, "\n".join(lines))
    labels = {str(label) for one in answers for label in one.get("labels", ())}
    return Outcome({"answer", *labels})


def _question(directive: Directive, number: int, argument: str) -> Json:
    flags = []
    while (word := argument.split(" ", 1)[0]) in _QUESTION_FLAGS:
        flags.append(word)
        argument = argument[len(word) :].strip()
    text, rest = quoted(argument)
    options = [label.strip() for label in rest.split("|") if label.strip()]
    if not text:
        raise directive.wrong("ask question needs a question, in quotes")
    return {
        "question_id": f"q{number}",
        "header": f"Question {number}",
        "text": text,
        "options": [
            {"label": label, "description": f"Choose {label}."} for label in dict.fromkeys(options)
        ],
        "multi_select": "multi" in flags,
        "free_text": "free" in flags or not options,
        "secret": "secret" in flags,
        "optional": "optional" in flags,
    }


def _answered(answer: Json, secret: bool) -> str:
    said = [str(label) for label in answer.get("labels", ())]
    if text := str(answer.get("text", "")):
        said.append(f"({len(text)} characters)" if secret else text)
    return f"{answer.get('question_id')}: {', '.join(said)}"


async def _form(person: Person, stage: Stage, rest: str) -> Outcome:
    message, rest = quoted(rest)
    schema, rest = json_value(rest)
    url = rest.removeprefix("url ").strip() if rest.startswith("url ") else ""
    if not schema and not url:
        schema = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}})
    request = {
        "type": "form_requested",
        "request_id": stage.ids.new("form"),
        "message": message,
        "schema_json": schema,
        "url": url,
        "server_name": "mock",
        "parent_id": stage.parent_id,
    }
    answer = (await person.ask(request)).get("form", {})
    action = str(answer.get("action", "")).removeprefix("FORM_ACTION_").lower()
    await stage.add_text(f"form {action}: {answer.get('content_json', '')}".rstrip(": "))
    stage.close_message()
    return Outcome({action})


def edit_diff(old: str, new: str) -> str:
    """The diff of a file of one line that is changed."""
    return f"@@ -1 +1 @@\n-{old}\n+{new}\n"
