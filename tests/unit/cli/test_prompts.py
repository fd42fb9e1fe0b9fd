import json
from collections.abc import Callable

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from agentstream.cli.prompts import Answer, Prompter, Request, parse_answer
from agentstream.cli.terminal import Declined, Interrupted, Terminal
from agentstream.v1 import interaction_pb2 as pb

ACCEPT = pb.PERMISSION_DECISION_ACCEPT
FOR_SESSION = pb.PERMISSION_DECISION_ACCEPT_FOR_SESSION
REJECT = pb.PERMISSION_DECISION_REJECT
ALL = (ACCEPT, FOR_SESSION, REJECT)

Typed = str | type[Exception]


class Script:
    """A reader that types what the test says."""

    def __init__(self, *typed: Typed) -> None:
        self.typed = list(typed)
        self.prompts: list[str] = []
        self.hidden: list[bool] = []

    async def line(
        self, prompt: str, *, secret: bool = False, default: str = "", remember: bool = False
    ) -> str:
        self.prompts.append(prompt)
        self.hidden.append(secret)
        typed = self.typed.pop(0)
        if not isinstance(typed, str):
            raise typed
        return typed


async def ask(request: Request, *typed: Typed) -> Answer:
    script = Script(*typed)
    answer = await Prompter(script, lambda line: None).ask(request)
    assert script.typed == []
    return answer


def permission(*allowed: pb.PermissionDecision.ValueType, message: bool = True) -> Request:
    return pb.PermissionRequest(
        request_id="r",
        allowed_decisions=allowed or ALL,
        takes_message=message,
        suggestions=[pb.PermissionSuggestion(suggestion_id="s-1", description="Bash(ls)")],
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["y"], pb.PermissionAnswer(decision=ACCEPT)),
        (["Yes"], pb.PermissionAnswer(decision=ACCEPT)),
        (["s"], pb.PermissionAnswer(decision=FOR_SESSION)),
        (["1"], pb.PermissionAnswer(decision=ACCEPT, suggestion_ids=["s-1"])),
        (["n", "not now"], pb.PermissionAnswer(decision=REJECT, message="not now")),
        (["n", Declined], pb.PermissionAnswer(decision=REJECT)),
        (["x", ""], pb.PermissionAnswer(decision=REJECT, interrupt=True)),
        (["", "maybe", "9", "y"], pb.PermissionAnswer(decision=ACCEPT)),
        ([Declined], pb.PermissionAnswer(decision=REJECT)),
    ],
)
async def test_a_permission_is_answered_as_typed(
    typed: list[Typed], expected: pb.PermissionAnswer
) -> None:
    assert await ask(permission(), *typed) == expected


async def test_what_a_request_does_not_allow_is_not_offered_nor_taken() -> None:
    script = Script("s", "1", "y", "n")
    request = permission(REJECT, message=False)
    answer = await Prompter(script, lambda line: None).ask(request)
    assert answer == pb.PermissionAnswer(decision=REJECT)
    assert script.prompts[0] == "[n] no  [x] no, and stop > "


async def test_ctrl_c_is_no_answer() -> None:
    with pytest.raises(Interrupted):
        await ask(permission(), Interrupted)


def question(*, multi_select: bool = False, free_text: bool = False) -> pb.Question:
    options = [pb.QuestionOption(label=label) for label in ("Red", "Green", "2")]
    made = pb.Question(question_id="q", text="Which?", options=options)
    made.multi_select, made.free_text = multi_select, free_text
    return made


@pytest.mark.parametrize(
    ("flags", "typed", "labels", "text"),
    [
        ({}, "1", ["Red"], ""),
        ({}, "green", ["Green"], ""),
        ({}, "2", ["2"], ""),
        ({"multi_select": True}, "1, Green", ["Red", "Green"], ""),
        ({"multi_select": True}, "1,1", ["Red"], ""),
        ({"free_text": True}, "a bit of both", [], "a bit of both"),
        ({"free_text": True, "multi_select": True}, "Red, or so", [], "Red, or so"),
    ],
)
def test_an_answer_is_an_option_or_words(
    flags: dict[str, bool], typed: str, labels: list[str], text: str
) -> None:
    expected = pb.SingleAnswer(question_id="q", labels=labels, text=text)
    assert parse_answer(question(**flags), typed) == expected


@pytest.mark.parametrize("typed", ["", "4", "purple", "1,2"])
def test_an_answer_that_does_not_fit_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"answer is needed|none of the options"):
        parse_answer(question(), typed)


async def test_questions_are_asked_one_by_one_again_if_need_be_and_skipped_if_optional() -> None:
    request = pb.QuestionRequest(
        questions=[
            question(),
            pb.Question(question_id="o", text="More?", free_text=True, optional=True),
            pb.Question(question_id="p", text="Password?", free_text=True, secret=True),
        ]
    )
    script = Script("9", "1", "", "hunter2")
    shown: list[str] = []
    answer = await Prompter(script, lambda line: shown.append(line.plain)).ask(request)
    answers = [
        pb.SingleAnswer(question_id="q", labels=["Red"]),
        pb.SingleAnswer(question_id="p", text="hunter2"),
    ]
    assert answer == pb.QuestionAnswer(answered=pb.AnsweredQuestions(answers=answers))
    assert script.hidden == [False, False, False, True]
    assert "'9' is none of the options 1 to 3." in shown


async def test_ctrl_d_declines_all_questions() -> None:
    answer = await ask(pb.QuestionRequest(questions=[question(), question()]), "1", Declined)
    assert answer == pb.QuestionAnswer(rejected=pb.RejectedQuestions())


async def test_a_form_is_filled_in_field_by_field_with_the_types_of_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "ok": {"type": "boolean"},
            "size": {"type": "string", "enum": ["S", "L"]},
            "note": {"type": "string"},
        },
        "required": ["name", "age", "ok", "size"],
    }
    request = pb.FormRequest(schema_json=json.dumps(schema))
    answer = await ask(request, "f", "Ada", "old", "36", "yes", "M", "L", "")
    assert isinstance(answer, pb.FormAnswer)
    assert answer.action == pb.FORM_ACTION_ACCEPT
    assert json.loads(answer.content_json) == {"name": "Ada", "age": 36, "ok": True, "size": "L"}


@pytest.mark.parametrize(
    ("typed", "action"),
    [
        (["d"], pb.FORM_ACTION_DECLINE),
        (["c"], pb.FORM_ACTION_CANCEL),
        (["f", Declined], pb.FORM_ACTION_DECLINE),
    ],
)
async def test_a_form_can_be_left(typed: list[Typed], action: pb.FormAction.ValueType) -> None:
    schema = '{"properties": {"a": {}}}'
    assert await ask(pb.FormRequest(schema_json=schema), *typed) == pb.FormAnswer(action=action)


async def test_what_is_asked_is_shown_where_the_session_is_not() -> None:
    shown: list[str] = []
    request = pb.PermissionRequest(
        kind=pb.PERMISSION_KIND_COMMAND, command="make", allowed_decisions=ALL
    )
    prompter = Prompter(Script("y"), lambda line: shown.append(line.plain), show_request=True)
    await prompter.ask(request)
    assert shown == ["? May it run a command?", "  $ make"]


@pytest.mark.parametrize(
    ("keys", "outcome"),
    [
        ("hello\r", lambda line: line == "hello"),
        ("\x03", lambda error: isinstance(error, Interrupted)),
        ("\x04", lambda error: isinstance(error, Declined)),
    ],
)
async def test_the_terminal_reads_a_line_ctrl_c_or_ctrl_d(
    keys: str, outcome: Callable[[object], bool]
) -> None:
    with create_pipe_input() as source:
        source.send_text(keys)
        try:
            result: object = await Terminal(source, DummyOutput()).line("> ")
        except (Interrupted, Declined) as error:
            result = error
    assert outcome(result)
