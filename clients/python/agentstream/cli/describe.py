"""What a tool call, a result, a change of a file and a request look like, as lines of text."""

import json
import shlex
from typing import Any, Final

from rich.text import Text

from agentstream.cli.text import enum_name, one_line, plain, visible
from agentstream.v1 import interaction_pb2, item_pb2

_TELLING: Final = (
    "command",
    "cmd",
    "file_path",
    "filePath",
    "path",
    "pattern",
    "query",
    "url",
    "description",
    "prompt",
)
"""Arguments that say what a call is about, the most telling first; agents share these names."""
_OUTPUT_LINES: Final = 8
_DIFF_LINES: Final = 60


def call_line(call: item_pb2.ToolCallPart) -> Text:
    """One line that says which tool is called and on what."""
    return Text.assemble((visible(call.name) or "tool", "bold"), "  ", (_summary(call), "cyan"))


def call_subject(name: str, arguments_json: str) -> str:
    """What a call is about, on one line; empty when it has no arguments."""
    return _summary(item_pb2.ToolCallPart(name=name, arguments_json=arguments_json))


def output_lines(result: item_pb2.ToolResultPart, *, limit: int = _OUTPUT_LINES) -> list[Text]:
    """The beginning of what a tool returned."""
    style = "red" if result.is_error else "dim"
    lines = plain(result.output).strip("\n").splitlines()
    shown = [
        Text(f"{'⎿' if n == 0 else ' '} {line}", style) for n, line in enumerate(lines[:limit])
    ]
    if len(lines) > limit:
        shown.append(Text(f"  … {len(lines) - limit} more lines", "dim italic"))
    if result.HasField("exit_code") and result.exit_code:
        shown.append(Text(f"  exit code {result.exit_code}", "red"))
    return shown


def file_line(file: item_pb2.FileRefPart) -> Text:
    """What is done with a file, and how much of it changes."""
    action = enum_name(item_pb2.FileAction.Name(file.action), "FILE_ACTION_")
    text = Text.assemble((f"{action} ", "dim"), (visible(file.path), "bold"))
    if file.new_path:
        text.append(f" → {visible(file.new_path)}", "bold")
    if file.diff:
        changed = _hunks(file.diff)
        text.append(f"  +{sum(line.startswith('+') for line in changed)}", "green")
        text.append(f" -{sum(line.startswith('-') for line in changed)}", "red")
    return text


def diff_lines(diff: str, *, limit: int = _DIFF_LINES) -> list[Text]:
    """A unified diff in colours, without the headers that name the file."""
    lines = _hunks(diff)
    shown = [Text(visible(line), _diff_style(line)) for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(Text(f"… {len(lines) - limit} more lines", "dim italic"))
    return shown


def request_lines(
    request: interaction_pb2.PermissionRequest
    | interaction_pb2.QuestionRequest
    | interaction_pb2.FormRequest,
) -> list[Text]:
    """All that a person needs to answer."""
    match request:
        case interaction_pb2.PermissionRequest():
            return permission_lines(request)
        case interaction_pb2.QuestionRequest():
            return question_lines(request)
        case interaction_pb2.FormRequest():
            return form_lines(request)


def permission_lines(request: interaction_pb2.PermissionRequest) -> list[Text]:
    """All that a person needs to decide on a permission."""
    kind = enum_name(interaction_pb2.PermissionKind.Name(request.kind), "PERMISSION_KIND_")
    title = Text.assemble(("? ", "bold yellow"), "May it ", (_deed(request, kind), "bold"), "?")
    lines = [title]
    if request.command:
        lines += _indented(f"$ {request.command}", "cyan")
    if request.cwd:
        lines += _indented(f"in {request.cwd}", "dim")
    for file in request.files:
        lines.append(Text("  ").append_text(file_line(file)))
        lines += [Text("    ").append_text(line) for line in diff_lines(file.diff)]
    if request.plan:
        lines += _indented(request.plan)
    if request.arguments_json and not (request.command or request.files or request.plan):
        lines += _indented(_pretty(request.arguments_json), "cyan")
    if request.reason:
        lines += _indented(request.reason, "dim italic")
    return lines


def question_lines(request: interaction_pb2.QuestionRequest) -> list[Text]:
    """The questions and what can be answered."""
    lines: list[Text] = []
    for question in request.questions:
        lines += single_question_lines(question)
    return lines


def single_question_lines(question: interaction_pb2.Question) -> list[Text]:
    """One question and its numbered options."""
    header = f"{visible(question.header)}: " if question.header else ""
    lines = [Text.assemble(("? ", "bold yellow"), header, (visible(question.text), "bold"))]
    for number, option in enumerate(question.options, 1):
        line = Text.assemble((f"  {number} ", "yellow"), visible(option.label))
        if option.description:
            line.append(f"  {visible(option.description)}", "dim")
        lines.append(line)
        lines += [Text("  ").append_text(line) for line in _indented(option.preview, "dim")]
    return lines


def form_lines(request: interaction_pb2.FormRequest) -> list[Text]:
    """What a form asks for."""
    who = f"{request.server_name} asks: " if request.server_name else ""
    lines = [Text.assemble(("? ", "bold yellow"), (visible(who + request.message), "bold"))]
    if request.url:
        lines += _indented(f"Go to {request.url}", "cyan")
    return lines


def todo_lines(data: str) -> list[Text]:
    """A to-do list as agents write them, ticked off; empty when `data` is none."""
    try:
        value = json.loads(data)
    except ValueError:
        return []
    if isinstance(value, dict):
        value = next((v for v in value.values() if isinstance(v, list)), None)
    if not isinstance(value, list):
        return []
    lines = []
    for entry in value:
        if not isinstance(entry, dict):
            return []
        words = next((entry[k] for k in ("content", "step", "text", "title") if k in entry), None)
        if not isinstance(words, str):
            return []
        lines.append(_todo_line(words, str(entry.get("status", "")).lower()))
    return lines


def resolution(
    resolved: interaction_pb2.PermissionResolved
    | interaction_pb2.QuestionResolved
    | interaction_pb2.FormResolved,
) -> Text:
    """How a request ended, and by whom."""
    outcome = interaction_pb2.RequestOutcome.Name(resolved.outcome)
    by = enum_name(interaction_pb2.ResolvedBy.Name(resolved.resolved_by), "RESOLVED_BY_")
    good = resolved.outcome in (
        interaction_pb2.REQUEST_OUTCOME_ACCEPTED,
        interaction_pb2.REQUEST_OUTCOME_ACCEPTED_FOR_SESSION,
    )
    words = enum_name(outcome, "REQUEST_OUTCOME_")
    style = "green" if good else "yellow"
    text = Text.assemble((f"{'✓' if good else '✗'} {words}", style))
    if said := _answer(resolved):
        text.append(f": {said}")
    if resolved.resolved_by:
        text.append(f"  by {by}", "dim")
    if resolved.reason:
        text.append(f" ({one_line(resolved.reason)})", "dim")
    return text


def _deed(request: interaction_pb2.PermissionRequest, kind: str) -> str:
    match request.kind:
        case interaction_pb2.PERMISSION_KIND_COMMAND:
            return "run a command"
        case interaction_pb2.PERMISSION_KIND_FILE_CHANGE:
            return (
                f"change {len(request.files)} files" if len(request.files) > 1 else "change a file"
            )
        case interaction_pb2.PERMISSION_KIND_PLAN:
            return "carry out this plan"
        case interaction_pb2.PERMISSION_KIND_NETWORK:
            return f"reach the network with {visible(request.tool_name) or 'a tool'}"
        case interaction_pb2.PERMISSION_KIND_GRANT:
            return "do more than before"
    return f"use {visible(request.tool_name) or kind}"


def _answer(resolved: Any) -> str:
    if isinstance(resolved, interaction_pb2.QuestionResolved):
        answers = resolved.answer.answered.answers
        return "; ".join(
            one_line(", ".join([*a.labels, *([a.text] if a.text else [])])) for a in answers
        )
    if isinstance(resolved, interaction_pb2.PermissionResolved):
        return one_line(resolved.answer.message)
    return ""


def _summary(call: item_pb2.ToolCallPart) -> str:
    if not call.arguments_json:
        return ""
    try:
        arguments = json.loads(call.arguments_json)
    except ValueError:
        return one_line(call.arguments_json)
    if not isinstance(arguments, dict):
        return one_line(json.dumps(arguments, ensure_ascii=False))
    for name in _TELLING:
        value = arguments.get(name)
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            value = shlex.join(value)
        if isinstance(value, str) and value:
            return one_line(value)
    return one_line(", ".join(f"{name}={_brief(value)}" for name, value in arguments.items()))


def _brief(value: object) -> str:
    if isinstance(value, list | dict):
        return f"({len(value)})"
    return json.dumps(value, ensure_ascii=False)


def _indented(text: str, style: str = "") -> list[Text]:
    return [Text(f"  {line}", style) for line in visible(text).strip("\n").splitlines()]


def _pretty(arguments_json: str) -> str:
    try:
        return json.dumps(json.loads(arguments_json), indent=2, ensure_ascii=False)
    except ValueError:
        return arguments_json


def _hunks(diff: str) -> list[str]:
    """The lines of a diff from its first hunk on: in a hunk, `--- x` is a line and no header."""
    lines = diff.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("@@")), 0)
    return lines[first:]


def _diff_style(line: str) -> str:
    if line.startswith("+"):
        return "green"
    if line.startswith("-"):
        return "red"
    return "cyan" if line.startswith("@@") else "dim"


def _todo_line(words: str, status: str) -> Text:
    if status in ("completed", "done"):
        return Text(f"  ☑ {one_line(words)}", "dim strike")
    if status in ("in_progress", "inprogress"):
        return Text(f"  ◐ {one_line(words)}", "bold")
    return Text(f"  ☐ {one_line(words)}")
