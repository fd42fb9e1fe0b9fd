"""Asking a person what the agent asks: permissions, questions, forms."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.text import Text

from agentstream.cli import describe
from agentstream.cli.terminal import Declined, LineReader
from agentstream.cli.text import enum_name, visible
from agentstream.v1 import interaction_pb2

Answer = (
    interaction_pb2.PermissionAnswer | interaction_pb2.QuestionAnswer | interaction_pb2.FormAnswer
)
Request = (
    interaction_pb2.PermissionRequest
    | interaction_pb2.QuestionRequest
    | interaction_pb2.FormRequest
)

_ACCEPT: Final = interaction_pb2.PERMISSION_DECISION_ACCEPT
_FOR_SESSION: Final = interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
_REJECT: Final = interaction_pb2.PERMISSION_DECISION_REJECT
_BOOLEANS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class Prompter:
    """Asks for answers. Ctrl-D declines; Ctrl-C raises Interrupted."""

    def __init__(
        self, reader: LineReader, show: Callable[[Text], object], *, show_request: bool = False
    ) -> None:
        """`show` writes a line. With `show_request` it also gets what is asked, where the person
        does not see it in the session itself.
        """
        self._reader = reader
        self._show = show
        self._show_request = show_request

    async def ask(self, request: Request) -> Answer:
        """The person's answer to `request`."""
        if self._show_request:
            for line in describe.request_lines(request):
                self._show(line)
        match request:
            case interaction_pb2.PermissionRequest():
                return await self._permission(request)
            case interaction_pb2.QuestionRequest():
                return await self._questions(request)
            case _:
                return await self._form(request)

    async def _permission(
        self, request: interaction_pb2.PermissionRequest
    ) -> interaction_pb2.PermissionAnswer:
        allowed = request.allowed_decisions
        choices = {
            "y": ("yes", _ACCEPT in allowed),
            "s": ("yes, for the session", _FOR_SESSION in allowed),
            "n": ("no", _REJECT in allowed),
            "x": ("no, and stop", _REJECT in allowed),
        }
        offered = [f"[{key}] {words}" for key, (words, possible) in choices.items() if possible]
        suggestions = request.suggestions if _ACCEPT in allowed else ()
        for number, suggestion in enumerate(suggestions, 1):
            self._show(_suggestion_line(number, suggestion))
        while True:
            try:
                typed = (await self._reader.line(f"{'  '.join(offered)} > ")).strip().lower()
            except Declined:
                return interaction_pb2.PermissionAnswer(decision=_REJECT)
            if typed.isdecimal() and 0 < int(typed) <= len(suggestions):
                chosen = suggestions[int(typed) - 1].suggestion_id
                return interaction_pb2.PermissionAnswer(decision=_ACCEPT, suggestion_ids=[chosen])
            if not choices.get(typed[:1], ("", False))[1]:
                continue
            if typed[:1] in "ys":
                decision = _ACCEPT if typed[:1] == "y" else _FOR_SESSION
                return interaction_pb2.PermissionAnswer(decision=decision)
            return interaction_pb2.PermissionAnswer(
                decision=_REJECT,
                interrupt=typed[:1] == "x",
                message=await self._why() if request.takes_message else "",
            )

    async def _why(self) -> str:
        try:
            return (await self._reader.line("Tell the agent why (or just Enter) > ")).strip()
        except Declined:
            return ""

    async def _questions(
        self, request: interaction_pb2.QuestionRequest
    ) -> interaction_pb2.QuestionAnswer:
        answered = interaction_pb2.AnsweredQuestions()
        try:
            for question in request.questions:
                if len(request.questions) > 1:  # else it stands right above
                    for line in describe.single_question_lines(question):
                        self._show(line)
                answer = await self._question(question)
                if answer is not None:
                    answered.answers.append(answer)
        except Declined:
            return interaction_pb2.QuestionAnswer(rejected=interaction_pb2.RejectedQuestions())
        return interaction_pb2.QuestionAnswer(answered=answered)

    async def _question(
        self, question: interaction_pb2.Question
    ) -> interaction_pb2.SingleAnswer | None:
        hint = _question_hint(question)
        while True:
            typed = (await self._reader.line(f"{hint} > ", secret=question.secret)).strip()
            if not typed and question.optional:
                return None
            try:
                return parse_answer(question, typed)
            except ValueError as error:
                self._show(Text(str(error), "yellow"))

    async def _form(self, request: interaction_pb2.FormRequest) -> interaction_pb2.FormAnswer:
        keys = {
            "f": interaction_pb2.FORM_ACTION_ACCEPT,
            "d": interaction_pb2.FORM_ACTION_DECLINE,
            "c": interaction_pb2.FORM_ACTION_CANCEL,
        }
        first = "[f] fill in" if request.schema_json else "[f] done"
        try:
            while True:
                typed = await self._reader.line(f"{first}  [d] decline  [c] cancel > ")
                if action := keys.get(typed.strip().lower()[:1]):
                    break
            content = ""
            if action == interaction_pb2.FORM_ACTION_ACCEPT and request.schema_json:
                content = json.dumps(await self._fields(request.schema_json), ensure_ascii=False)
        except Declined:
            return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE)
        return interaction_pb2.FormAnswer(action=action, content_json=content)

    async def _fields(self, schema_json: str) -> dict[str, Any]:
        schema = json.loads(schema_json)
        properties = schema.get("properties", {})
        content: dict[str, Any] = {}
        for name, about in properties.items():
            required = name in schema.get("required", ())
            while True:
                words = visible(str(about.get("description") or about.get("title") or name))
                hint = f"{words} ({_field_hint(about, required)})"
                typed = (await self._reader.line(f"{hint} > ")).strip()
                if not typed and not required:
                    break
                try:
                    content[name] = _field_value(about, typed)
                    break
                except ValueError as error:
                    self._show(Text(str(error), "yellow"))
        return content


def parse_answer(question: interaction_pb2.Question, typed: str) -> interaction_pb2.SingleAnswer:
    """The answer that `typed` means: numbers or labels of options, separated by commas where
    several may be chosen, else text of one's own. Raises ValueError with what is wrong.
    """
    answer = interaction_pb2.SingleAnswer(question_id=question.question_id)
    whole = _option(question.options, typed)
    words = [word.strip() for word in typed.split(",")] if question.multi_select else [typed]
    chosen = [whole] if whole else [_option(question.options, word) for word in words if word]
    if chosen and all(chosen):
        answer.labels.extend(dict.fromkeys(label for label in chosen if label))
    elif typed and question.free_text:
        answer.text = typed
    elif not typed:
        raise ValueError("An answer is needed; Ctrl-D declines to answer.")
    else:
        raise ValueError(f"{typed!r} is none of the options 1 to {len(question.options)}.")
    return answer


def _option(options: Sequence[interaction_pb2.QuestionOption], typed: str) -> str | None:
    labels = [option.label for option in options]
    if typed in labels:
        return typed
    if typed.isdecimal() and 0 < int(typed) <= len(labels):
        return labels[int(typed) - 1]
    alike = [label for label in labels if label.lower() == typed.lower()]
    return alike[0] if len(alike) == 1 else None


def _question_hint(question: interaction_pb2.Question) -> str:
    most = len(question.options)
    parts = []
    if most:
        parts.append(f"1-{most}, several with commas" if question.multi_select else f"1-{most}")
    if question.free_text:
        parts.append("your own words" if most else "your answer")
    if question.optional:
        parts.append("Enter to skip")
    return " or ".join(parts) + " (Ctrl-D declines)"


def _suggestion_line(number: int, suggestion: interaction_pb2.PermissionSuggestion) -> Text:
    scope = interaction_pb2.PermissionScope.Name(suggestion.scope)
    text = Text.assemble(
        (f"  [{number}] ", "yellow"), f"yes, and allow {visible(suggestion.description)}"
    )
    if suggestion.scope:
        text.append(f" ({enum_name(scope, 'PERMISSION_SCOPE_')})", "dim")
    return text


def _field_hint(about: dict[str, Any], required: bool) -> str:
    if "enum" in about:
        kind = "one of " + ", ".join(map(str, about["enum"]))
    else:
        kind = "yes or no" if about.get("type") == "boolean" else str(about.get("type", "text"))
    return visible(kind if required else f"{kind}, Enter to skip")


def _field_value(about: dict[str, Any], typed: str) -> Any:
    match about.get("type", "string"):
        case "boolean":
            if typed.lower() not in _BOOLEANS:
                raise ValueError("Say yes or no.")
            return _BOOLEANS[typed.lower()]
        case "integer":
            return int(typed)
        case "number":
            return float(typed)
        case "string":
            if "enum" in about and typed not in about["enum"]:
                raise ValueError(f"{typed!r} is none of them.")
            return typed
    return json.loads(typed)
